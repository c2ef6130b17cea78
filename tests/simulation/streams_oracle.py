"""What must be true of acknowledged records of a stream.

The committed position never passes a record that nobody acknowledged; ranges beyond it stay within the window; what was
committed as acknowledged is never forgotten, and never delivered again by a later owner.
"""

from __future__ import annotations

from holdfast.leases.lease import Key, Lease, Progress, Ranges, Status
from tests.simulation.host import Host
from tests.simulation.kernel import Kernel
from tests.simulation.oracle import PIPELINE, Oracle
from tests.simulation.source import Data


class StreamsOracle(Oracle):
    """Judges positions against what handlers have said."""

    def __init__(self, kernel: Kernel, data: Data, window: int) -> None:
        super().__init__(kernel)
        self._data = data
        self._window = window
        self._acked: set[tuple[str, int]] = set()
        self._counts_all = True
        """Whether only owners have acknowledged: each record is counted then, and within the window."""
        self._found: dict[tuple[str, int], Progress] = {}
        """What the row said when it was taken, by partition and token."""

    def row_written(self, row: Lease, sender: Host) -> None:
        if row.pipeline == PIPELINE and row.owner is not None:
            self._found.setdefault((row.key, row.token), row.progress)
        super().row_written(row, sender)

    def _written_after_rollback(self, before: Lease, row: Lease) -> None:
        if row.pipeline == PIPELINE:
            self._require_acknowledged(row)

    # --- the handlers' side ---------------------------------------------------------------------------------------

    def delivered(self, lease: Lease, item: int) -> None:
        """A handler is given this record under this lease."""
        for parent in () if self.rollbacks else self._data.parents.get(lease.key, ()):
            row = self.rows.get(Key(PIPELINE, "", parent))
            if row is None or row.status is not Status.COMPLETED:
                self.fail(f"{lease.key}: record {item} is delivered before {parent} is complete")
        found = self._found.get((lease.key, lease.token))
        if found is not None and not self.rollbacks and (_knows(found, item) or _within(found.forwarded, item)):
            self.fail(f"{lease.key}: record {item} was acknowledged and committed before, and is delivered again")

    def acknowledged(self, key: str, item: int) -> None:
        """A handler has said that it is done with this record."""
        self._acked.add((key, item))

    def acknowledged_elsewhere(self, key: str, item: int) -> None:
        """The same on a node that does not have the partition any more: nobody counts the record then."""
        self.acknowledged(key, item)
        self._counts_all = False

    # --- the store's side -----------------------------------------------------------------------------------------

    def committed(self, before: Lease, row: Lease) -> None:
        self._require_acknowledged(row)
        # What was acknowledged elsewhere may touch the position, or lie before it until the next record is delivered.
        reached = row.progress.position if self._counts_all else 0
        for start, end in row.progress.acked:
            if start < reached + self._counts_all:
                self.fail(f"{row.key}: ranges {row.progress.acked} overlap or touch what lies before them")
            reached = end
        if reached > row.progress.position + self._window and self._counts_all:
            self.fail(f"{row.key}: {row.progress.acked} reaches beyond the window of {self._window}")
        for item in range(self._data.items[row.key]):
            forwarded = _within(before.progress.forwarded, item)
            if forwarded and not _knows(row.progress, item) and not _within(row.progress.forwarded, item):
                self.fail(f"{row.key}: record {item} was acknowledged elsewhere, and the commit forgets it")
            if _knows(before.progress, item) and not _knows(row.progress, item):
                self.fail(f"{row.key}: record {item} was acknowledged, and commit {row.commit.sequence} forgets it")

    def _require_acknowledged(self, row: Lease) -> None:
        for item in range(self._data.items[row.key]):
            known = _knows(row.progress, item) or _within(row.progress.forwarded, item)
            if known and (row.key, item) not in self._acked:
                self.fail(f"{row.key}: record {item} is committed and nobody acknowledged it")

    def judge_end(self) -> None:
        for key, number in self._data.items.items():
            row = self.rows.get(Key(PIPELINE, "", key))
            if row is None:
                if not self.rollbacks:
                    self.fail(f"{key}: was never found")
            elif row.status is not Status.COMPLETED or row.progress.position != number:
                self.fail(f"{key}: rests as {row.status} at {row.progress.position}: {row.history.last_error}")
            elif row.progress.counts.processed != number and self._counts_all and not self.rollbacks:
                self.fail(f"{key}: {row.progress.counts.processed} records counted, {number} there")


def _knows(progress: Progress, item: int) -> bool:
    return item < (progress.position or 0) or _within(progress.acked, item)


def _within(ranges: Ranges, item: int) -> bool:
    return any(start <= item < end for start, end in ranges)
