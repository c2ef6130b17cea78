"""Fenced writes: derive the change, swap it by version, and when the answer is not OK, read the row back.

The row tells what happened. My own write id: it was applied. The same token and owner: somebody else touched the
row (a person, a sweep), so derive the change again. Another token or owner: `LeaseLost`. Never guess.
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
    """One change on its way: the row it is derived from, and the row it makes."""

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
    """Applies changes to leases of one owner. Blocks, with backoff, while the store does not answer."""

    def __init__(self, store: Store, world: World, patience: float | None = None) -> None:
        self._store = store
        self._world = world
        self._patience = patience

    def apply(self, changes: Sequence[tuple[Lease, Change]]) -> list[Lease | LeaseLost]:
        """Write each change under the token and owner of its lease; each for itself.

        Answers per change the row as written, or a `LeaseLost` (not raised). A change that does not alter the row
        writes nothing. May be called again with the same lease after any answer. Raises `Interrupted` when the
        process must stop while the store is away, and `StoreUnavailable` when `patience` is over; what was sent
        may then be applied or not.
        """
        pending = [_Pending(lease, change, self._world.new_id()) for lease, change in changes]
        for one in pending:
            self._derive(one)
        while open_ones := [one for one in pending if one.result is None]:
            self._send(open_ones)
        return [one.result for one in pending if one.result is not None]

    def _derive(self, one: _Pending) -> None:
        try:
            one.derive()
        except TransitionRefused as refused:
            one.result = LeaseLost(str(refused))

    def _send(self, pending: list[_Pending]) -> None:
        swaps = [Swap(one.lease.version, one.wanted) for one in pending if one.wanted is not None]
        outcomes = self._until_answered(lambda: self._store.swap(swaps))
        doubtful = []
        for one, outcome in zip(pending, outcomes, strict=True):
            if outcome is Outcome.OK:
                one.result = one.wanted
            else:
                doubtful.append(one)
        if doubtful:
            self._read_back(doubtful)

    def _until_answered(self, call: Callable[[], T]) -> T:
        return until_answered(self._world, "store", call, self._patience)

    def _read_back(self, doubtful: list[_Pending]) -> None:
        keys = [one.lease.id for one in doubtful]
        rows = self._until_answered(lambda: self._store.get(keys))
        for one, row in zip(doubtful, rows, strict=True):
            if row is None:
                one.result = LeaseMissing(f"the row of {one.lease.key!r} is gone")
            elif row.ownership.write_id == one.write_id:
                one.result = row
            elif row.unreadable is not None:
                one.result = LeaseLost(f"the row of {row.key!r} cannot be read any more")
            elif still_held(row, one.lease):
                one.lease = row
                self._derive(one)
            else:
                one.result = LeaseLost(f"{row.key!r} is {row.status} of {row.owner} under token {row.token}")


def add_surely(store: Store, world: World, make: Callable[[], Sequence[Lease]]) -> int:
    """Add the rows that are not there yet; answers how many are this call's own. Blocks until every row is there.

    `make` is called before every try and may raise `StoreUnavailable`. Its rows have the same keys each time, and one
    write id, new for this call: it tells an own earlier try from somebody else's row.
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
    """Whether the stored row is under the same token and owner as the lease in hand, and knows all that it knows.

    A row that is behind the lease has lost writes that were acknowledged: nothing may be derived from it in passing.
    """
    behind = row.version < held.version or row.commit.sequence < held.commit.sequence
    return row.token == held.token and row.owner == held.owner and not behind


def until_answered(world: World, what: str, call: Callable[[], T], patience: float | None = None) -> T:
    """The call's answer; while it raises `Unavailable`, wait and call again. The call must be repeatable.

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
