"""Fenced writes: derive the change, swap it by version, and if the outcome is not OK, read the row back.

The row shows what happened. With the write's id, it was applied. With the same token and owner, a person or a sweep has
changed the row, and the change is derived from the new row. With another token or owner, the lease is lost. No outcome
is guessed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from holdfast.errors import LeaseLost, LeaseMissing, TransitionRefused, Unavailable
from holdfast.events import Unreachable
from holdfast.leases.lease import Lease
from holdfast.leases.store import Outcome, Store, Swap
from holdfast.leases.transitions import stamped
from holdfast.leases.world import World

T = TypeVar("T")
Change = Callable[[Lease], Lease]
FIRST_WAIT = 0.2
LONGEST_WAIT = 10.0


@dataclass(slots=True)
class _Pending:
    """A change that is not applied yet: the row that it is derived from, and the new row."""

    lease: Lease
    change: Change
    write_id: str
    wanted: Lease | None = None
    result: Lease | LeaseLost | None = None

    def derive(self) -> None:
        changed = self.change(self.lease)
        if changed is self.lease:
            self.result = self.lease
        else:
            self.wanted = stamped(self.lease, changed, self.write_id)


class FencedWrites:
    """Applies changes to leases of one owner. Blocks, with backoff, while the store does not respond."""

    def __init__(self, store: Store, world: World, patience: float | None = None) -> None:
        self._store = store
        self._world = world
        self._patience = patience

    def apply(self, changes: Sequence[tuple[Lease, Change]]) -> list[Lease | LeaseLost]:
        """Write each change under the token and owner of its lease, independently of the others.

        Returns for each change the row as written, or a `LeaseLost` (not raised). A change that does not alter the row
        writes nothing. May be called repeatedly with the same lease. Raises `Interrupted` when the process must stop
        while the store does not respond, and `StoreUnavailable` when `patience` is over; what was sent may then be
        applied or not.
        """
        pending = [_Pending(lease, change, self._world.new_id()) for lease, change in changes]
        for write in pending:
            self._derive(write)
        while unanswered := [write for write in pending if write.result is None]:
            self._send(unanswered)
        return [write.result for write in pending if write.result is not None]

    def _derive(self, write: _Pending) -> None:
        try:
            write.derive()
        except TransitionRefused as refused:
            write.result = LeaseLost(str(refused))

    def _send(self, pending: list[_Pending]) -> None:
        swaps = [Swap(write.lease.version, write.wanted) for write in pending if write.wanted is not None]
        outcomes = self._until_answered(lambda: self._store.swap(swaps))
        doubtful = []
        for write, outcome in zip(pending, outcomes, strict=True):
            if outcome is Outcome.OK:
                write.result = write.wanted
            else:
                doubtful.append(write)
        if doubtful:
            self._read_back(doubtful)

    def _until_answered(self, call: Callable[[], T]) -> T:
        return until_answered(self._world, "store", call, self._patience)

    def _read_back(self, doubtful: list[_Pending]) -> None:
        keys = [write.lease.id for write in doubtful]
        rows = self._until_answered(lambda: self._store.get(keys))
        for write, row in zip(doubtful, rows, strict=True):
            if row is None:
                write.result = LeaseMissing(f"the row of {write.lease.key!r} is gone")
            elif row.ownership.write_id == write.write_id:
                write.result = row
            elif row.unreadable is not None:
                write.result = LeaseLost(f"the row of {row.key!r} cannot be read any more")
            elif still_held(row, write.lease):
                write.lease = row
                self._derive(write)
            else:
                write.result = LeaseLost(f"{row.key!r} is {row.status} of {row.owner} under token {row.token}")


def ensure_rows(store: Store, world: World, make: Callable[[], Sequence[Lease]]) -> int:
    """Add the rows that do not exist yet; returns how many this call has added. Blocks until every row exists.

    `make` is called before every try and may raise `StoreUnavailable`. Its rows have the same keys each time, and one
    write id, new for this call, which distinguishes an earlier try of this call from another node's row.
    """
    tries = 0
    rows: Sequence[Lease] = ()

    def add() -> list[Outcome]:
        nonlocal tries, rows
        rows = make()
        tries += 1
        return store.add(rows)

    outcomes = until_answered(world, "store", add)
    while Outcome.UNKNOWN in outcomes:
        outcomes = until_answered(world, "store", add)
    if tries == 1:
        return outcomes.count(Outcome.OK)
    found = until_answered(world, "store", lambda: store.get([row.id for row in rows]))
    write_ids = {row.ownership.write_id for row in rows}
    return sum(row is not None and row.ownership.write_id in write_ids for row in found)


def still_held(row: Lease, held: Lease) -> bool:
    """Whether the stored row has the token and owner of the held lease, and is not older.

    A row that is older than the lease has lost writes that were acknowledged: no change may be derived from it.
    """
    behind = row.version < held.version or row.commit.sequence < held.commit.sequence
    return row.token == held.token and row.owner == held.owner and not behind


def until_answered(world: World, what: str, call: Callable[[], T], patience: float | None = None) -> T:
    """The result of the call, which is repeated with pauses while it raises `Unavailable`. It must be repeatable.

    With `patience`, the error is raised to the caller once that many seconds are over.
    """
    wait = FIRST_WAIT
    give_up_at = None if patience is None else world.clock.monotonic() + patience
    while True:
        try:
            return call()
        except Unavailable as away:
            pause = world.jittered(wait)
            if give_up_at is not None and world.clock.monotonic() + pause > give_up_at:
                raise
            world.emit(Unreachable(what, str(away), pause))
            world.clock.wait(pause)
            wait = min(wait * 2, LONGEST_WAIT)
