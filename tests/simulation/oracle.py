"""The oracle: what must be true after every write, whatever goes wrong.

It sees each row that the store accepts, whoever sent it and however late, and shares no code with what it judges. This
module knows the rules of rows, the same for all jobs; what a commit may say is a matter of the job's own oracle.
"""

from __future__ import annotations

from collections.abc import Callable

from holdfast.leases.lease import FINISHED, Key, Lease, Status
from tests.simulation.host import Host
from tests.simulation.kernel import Crash, Kernel
from tests.simulation.session_rules import NODES, SessionRules
from tests.simulation.tenure_rules import TenureRules

PIPELINE = "pipe"
EPOCH = 1_000_000.0
"""The store's time when the world begins; no node's clock shows anything like it."""


def nobody_works(_host: Host, _lease: Lease) -> bool:
    """Whether the host's engine works on a batch under the lease, where nobody can tell."""
    return False


class Oracle:
    """Judges rows. The first violation stops the world."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.rows: dict[Key, Lease] = {}
        self.violation: str | None = None
        self.rollbacks = 0
        self.halts_allowed = False
        """Whether something was injected after which a partition may stop with an alarm."""
        self.owner_works: Callable[[Host, Lease], bool] = nobody_works
        self.sessions = SessionRules(lambda: self.rows, self.fail)
        self.tenures = TenureRules(self.fail)

    def fail(self, message: str) -> None:
        """Record the violation and stop everything. Raises `Crash` to whoever caused it."""
        if self.violation is None:
            self.violation = f"at {self.kernel.now:.3f} s: {message}"
            self.kernel.note("ORACLE", message)
        self.kernel.halt()
        raise Crash

    def row_written(self, row: Lease, sender: Host) -> None:
        """The store has accepted this row."""
        key = row.id
        before = self.rows.get(key)
        self.rows[key] = row
        if before is None:
            return
        if self.rollbacks:
            # Versions have gone back, so a write may meet its number again: only what readers see can be judged.
            self._written_after_rollback(before, row)
            return
        if row.version != before.version + 1:
            self.fail(f"{row.key}: version went from {before.version} to {row.version}")
        if row.pipeline == PIPELINE:
            self._lease_written(before, row, sender)
        elif row.pipeline == NODES:
            self.sessions.session_written(before, row, sender, EPOCH + self.kernel.now)

    def row_removed(self, row: Lease) -> None:
        """The store has deleted this row."""
        self.rows.pop(row.id, None)

    @property
    def may_be_undone(self) -> bool:
        """Whether a late write may undo what is done."""
        return self.rollbacks > 0

    def rolled_back(self, rows: dict[Key, Lease]) -> None:
        """The store has lost writes on purpose."""
        self.rollbacks += 1
        self.halts_allowed = True
        self.rows = rows

    def _lease_written(self, before: Lease, row: Lease, sender: Host) -> None:
        owner, former = row.owner, before.owner
        taken = owner is not None and (former != owner or before.status is not Status.ASSIGNED)
        if row.token != before.token + taken and not self._taken_again(before, row):
            self.fail(f"{row.key}: token went from {before.token} to {row.token}")
        if before.status in FINISHED and row.status is not before.status:
            self.fail(f"{row.key}: was {before.status} and became {row.status}")
        steps = row.commit.sequence - before.commit.sequence
        if steps not in (0, 1):
            self.fail(f"{row.key}: sequence went from {before.commit.sequence} to {row.commit.sequence}")
        if steps == 1:
            self._require_sent_by_owner(before, row, sender)
            self.committed(before, row)
        elif row.progress.position != before.progress.position or row.progress.acked != before.progress.acked:
            self.fail(f"{row.key}: progress changed without a commit")
        elif row.commit.receipts != before.commit.receipts:
            self.receipts_changed(before, row)
        self.sessions.lease_written(before, row, sender)
        self.tenures.lease_written(before, row)
        if former is not None and owner != former and self.owner_works(sender, before):
            self.fail(f"{row.key}: {sender.name} let go of it while its engine still works on it")

    def _written_after_rollback(self, before: Lease, row: Lease) -> None:
        if row.pipeline == PIPELINE and row.commit.receipts != before.commit.receipts:
            self.decided(row)

    def _taken_again(self, before: Lease, row: Lease) -> bool:
        # A session may take back its own lease after it was orphaned.
        due_at = before.ownership.due_at
        return due_at is not None and row.ownership.due_at is None and row.token == before.token + 1

    def _require_sent_by_owner(self, before: Lease, row: Lease, sender: Host) -> None:
        if before.owner is None or not before.owner.startswith(f"{sender.name}:"):
            self.fail(f"{row.key}: {sender.name} committed on a lease of {before.owner}")
        if row.owner != before.owner and row.status is not Status.COMPLETED:
            self.fail(f"{row.key}: went with a commit from {before.owner} to {row.owner}")

    # --- what a job's oracle adds ---------------------------------------------------------------------------------

    def committed(self, before: Lease, row: Lease) -> None:
        """The row's sequence has grown by one."""

    def receipts_changed(self, before: Lease, row: Lease) -> None:
        """Receipts were cleared or replaced without a new commit."""

    def decided(self, row: Lease) -> None:
        """The row's receipts are accepted, whatever was there before: what they name may become visible."""

    def judge_end(self) -> None:
        """Everything has come to rest."""
