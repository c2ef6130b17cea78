"""Actions of a person on partitions: reopen, release, fail, purge, forget.

No lease is needed; the row's version decides. If the partition has an owner, the owner's next write finds another
version, and the owner drops the lease.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from holdfast.errors import PartitionNotFound, PartitionUpdateFailed, TransitionRefused
from holdfast.leases import transitions
from holdfast.leases.lease import Key, Lease, Ownership, Status
from holdfast.leases.query import Query
from holdfast.leases.store import Outcome, Store, Swap
from holdfast.leases.token_floor import REST, floor_of, height
from holdfast.leases.transitions import stamped

PAGE = 1000
TRIES = 20


@dataclass(frozen=True, slots=True)
class Operator:
    """Acts on one pipeline (and run). Raises `StoreUnavailable` at once; a person can repeat the call."""

    store: Store
    new_id: Callable[[], str]
    pipeline: str
    run: str = ""
    rest: float = REST
    """Seconds from purging a row until it may be forgotten; `holdfast.leases.token_floor` depends on it."""
    by: str | None = None
    """The person who acts; a tenure that ends by the action names them."""
    check: Callable[[Lease], object] = lambda _row: None
    """Called with the row that a change is derived from, each time; may raise, and nothing is changed then."""

    def rows(self, statuses: tuple[Status, ...] = ()) -> Iterator[Lease]:
        """All rows in order of key, page by page."""
        after: str | None = None
        while True:
            page = self.store.find(Query(self.pipeline, self.run, statuses, after_key=after, limit=PAGE))
            yield from page
            if len(page) < PAGE:
                return
            after = page[-1].key

    def show(self, key: str) -> Lease:
        """The row as it is. Raises `PartitionNotFound`."""
        (row,) = self.store.get([Key(self.pipeline, self.run, key)])
        if row is None:
            raise PartitionNotFound(key, "there is no such partition")
        return row

    def reopen(self, key: str) -> Lease:
        """Make a FAILED, CLOSED or COMPLETED partition claimable again, from its position."""
        return self.change(key, transitions.reopen)

    def release(self, key: str) -> Lease:
        """Take a partition away from its owner, so that any node may claim it. Late writes of its owner are refused."""
        return self.change(key, lambda row, now: transitions.release(row, now, by=self.by))

    def fail(self, key: str, reason: str) -> Lease:
        """Stop work on a partition until a person reopens it."""
        return self.change(key, lambda row, now: transitions.halt(_unfinished(row), reason, now, by=self.by))

    def purgeable(self, older_than: float) -> Iterator[Lease]:
        """COMPLETED rows without receipts that were completed at least that long ago and are not purged yet."""
        limit = self.store.now() - older_than
        for row in self.rows((Status.COMPLETED,)):
            if row.commit.receipts is None and row.unreadable is None and _completed_by(row, limit):
                yield row

    def purge(self, rows: list[Lease]) -> int:
        """Reduce the rows to key and token: space is freed, deduplication and fence stay. Returns how many.

        The token floor is raised above them first, so that they may be forgotten later.
        """
        if not rows:
            return 0
        self._raise_floor(max(map(height, rows)))
        # Read after the floor was raised: `forget` counts from here.
        now = self.store.now()
        swaps = [Swap(row.version, stamped(row, transitions.strip(row, now), self.new_id())) for row in rows]
        return sum(outcome is Outcome.OK for outcome in self.store.swap(swaps))

    def forgettable(self) -> Iterator[Lease]:
        """Rows that were purged long enough ago."""
        limit = self.store.now() - self.rest
        return (row for row in self.rows((Status.COMPLETED,)) if _purged_by(row, limit))

    def forget(self, rows: list[Lease]) -> int:
        """Delete those of the rows that were purged long enough ago. Returns how many.

        A partition that discovery finds later is then read a second time: deduplication is the source's task. No node
        ever works under a token of a deleted row, see `holdfast.leases.token_floor`.
        """
        limit = self.store.now() - self.rest
        rested = [row for row in rows if _purged_by(row, limit)]
        return sum(outcome is Outcome.OK for outcome in self.store.remove(rested))

    def _raise_floor(self, token: int) -> None:
        key = floor_of(self.pipeline)
        self.store.add([Lease(key.pipeline, key.key, ownership=Ownership(Status.COMPLETED, due_at=None))])
        self._swap(key, lambda row, _: _with_token(row, max(row.token, token)))

    def change(self, key: str, change: Callable[[Lease, float], Lease]) -> Lease:
        """Change a row by version; the change is derived again if the row has changed. Raises `PartitionNotFound`.

        Nothing is written if `change` returns the row itself. Raises `PartitionUpdateFailed` if others are too fast.
        """

        def checked(row: Lease, now: float) -> Lease:
            self.check(row)
            return change(row, now)

        return self._swap(Key(self.pipeline, self.run, key), checked)

    def _swap(self, key: Key, change: Callable[[Lease, float], Lease]) -> Lease:
        write_id = self.new_id()
        for _ in range(TRIES):
            (row,) = self.store.get([key])
            if row is None:
                raise PartitionNotFound(key.key, "there is no such partition")
            if row.ownership.write_id == write_id:
                return row
            made = change(row, self.store.now())
            if made is row:
                return row
            wanted = stamped(row, made, write_id)
            if self.store.swap([Swap(row.version, wanted)]) == [Outcome.OK]:
                return wanted
        raise PartitionUpdateFailed(key.key, "other writers changed the row every time; try again")


def _unfinished(row: Lease) -> Lease:
    if row.status is Status.COMPLETED:
        raise TransitionRefused(f"{row.key!r} is COMPLETED; there is nothing to stop")
    return row


def _completed_by(row: Lease, limit: float) -> bool:
    done = row.history.completed_at
    return not transitions.is_stripped(row) and done is not None and done <= limit


def _purged_by(row: Lease, limit: float) -> bool:
    stripped_at = row.history.updated_at
    return (
        row.status is Status.COMPLETED
        and transitions.is_stripped(row)
        and row.commit.receipts is None
        and stripped_at is not None
        and stripped_at <= limit
    )


def _with_token(row: Lease, token: int) -> Lease:
    return replace(row, ownership=replace(row.ownership, token=token))
