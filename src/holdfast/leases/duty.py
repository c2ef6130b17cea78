"""Duties: work for a whole pipeline that one node does at a time, such as discovery.

Every node has an instance of each duty and runs it periodically, in a thread beside its loop. A lease decides which
node does the work, and its row keeps the state of the duty. A node that dies loses nothing: another node takes the
lease over and goes on from the saved state.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

from holdfast.errors import Interrupted, LeaseLost
from holdfast.leases import transitions
from holdfast.leases.coordinator import ClaimPolicy, Coordinator
from holdfast.leases.lease import Json, Key, Lease, Partition, new_lease
from holdfast.leases.query import Query
from holdfast.leases.transitions import RetryLimits
from holdfast.leases.writes import ensure_rows, until_answered

NEVER_GIVE_UP = RetryLimits(max_retries=1 << 31, max_takeovers=1 << 31)


class Duty(ABC):
    """One duty of one node. `turn` is called by the loop, `run` in a thread of its own; both may be repeated."""

    interval: float = 0.0
    """Seconds between two runs that `turn` starts, give or take a fifth; 0: each turn starts one."""

    def __init__(self, partitions: Coordinator, key: Key, *, patience: float) -> None:
        """`partitions` has the leases of the pipeline that the work is for, `key` names the lease of the duty.

        `patience`: seconds that the work may take without `renew`; after that another node may do it.
        """
        self.world = partitions.world
        self.pipeline = partitions.pipeline
        policy = ClaimPolicy(ownership_timeout=patience, limits=NEVER_GIVE_UP)
        self.lock = Coordinator(
            partitions.store, partitions.world, partitions.session, key.pipeline, run=key.run, policy=policy
        )
        self._key = key
        self._patience = patience
        self._next_turn = 0.0
        self.running = False

    # --- beside the loop ---------------------------------------------------------------------------------------

    def turn(self) -> None:
        """Start a run in a separate thread if one is due and none is in progress. Does not block."""
        if not self.running and self._is_time():
            self.running = True
            self.world.spawn(self._run_beside)

    def _is_time(self) -> bool:
        if not self.interval:
            return True
        now = self.world.clock.monotonic()
        if now < self._next_turn:
            return False
        self._next_turn = now + self.world.jittered(self.interval)
        return True

    def run_soon(self) -> None:
        """Let the next `turn` start a run, regardless of the interval."""
        self._next_turn = 0.0

    def _run_beside(self) -> None:
        try:
            self.run()
        except Interrupted:
            return
        except Exception as error:  # noqa: BLE001 - duties call foreign code, and a later run tries again
            self.report(error)
        finally:
            self.running = False

    @abstractmethod
    def run(self) -> bool:
        """Do the work if it is due and no other node does it. Returns whether this node did it. Blocks."""

    @abstractmethod
    def report(self, error: Exception) -> None:
        """Emit the event for a run that `turn` started and that raised this error."""

    # --- under the lease ---------------------------------------------------------------------------------------

    def row(self) -> Lease | None:
        """The row of the duty; None if there is none yet. Blocks until the store has responded."""
        (row,) = until_answered(self.world, "store", lambda: self.lock.store.get([self._key]))
        return row

    def recent_row(self) -> Lease | None:
        """Like `row`, but possibly a little older. For reads that decide nothing."""
        query = Query(self._key.pipeline, self._key.run)
        rows = until_answered(self.world, "store", lambda: self.lock.recent.find(query))
        return rows[0] if rows else None

    def add_row(self) -> None:
        """Add the row of the duty if it does not exist."""
        lock, partition = self.lock, Partition(self._key.key)
        row = new_lease(lock.pipeline, partition, self.world.new_id(), run=lock.run, now=lock.now())
        ensure_rows(lock.store, self.world, lambda: [row])

    def under_lease(self, work: Callable[[Lease], None]) -> bool:
        """Do the work under the duty's lease; returns False if the lease is not due or another node has it.

        The work itself ends the lease, with a write that sets when the duty is due next.
        """
        self.lock.sweep()
        lease = until_answered(self.world, "store", self.lock.check_out)
        if lease is None:
            return False
        try:
            work(lease)
        finally:
            self.lock.check_in(lease)
        return True

    def renew(self, lease: Lease, state: Json = None) -> Lease | LeaseLost:
        """Extend the lease by its patience, and save the state of the duty if one is given."""

        def change(row: Lease, now: float) -> Lease:
            kept = row.progress.state if state is None else state
            return transitions.save_state(row, kept, now, now + self._patience)

        (written,) = self.lock.write([lease], change)
        return written
