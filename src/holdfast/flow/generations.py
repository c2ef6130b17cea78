"""Generations: which version of the parsing is current, and which node may run it.

A generation is a number with the digest of everything that decides what files look like: processors, formats, code. A
node runs the current generation only if the digest is its own. So new code can be started beside old code, and takes
over when the generation is switched; the way back is one more generation, with the digest of an earlier one. Each
partition changes its generation between two commits, by its owner: every record is in exactly one generation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import Protocol

from holdfast.errors import PartitionNotFound, Refused, StoreUnavailable, UsageError
from holdfast.leases.lease import Json, Lease, Ownership, Progress, Status
from holdfast.leases.operator import Operator
from holdfast.leases.store import Store
from holdfast.leases.world import World
from holdfast.leases.writes import until_answered

CURRENT = "$current"


@dataclass(frozen=True, slots=True)
class Generation:
    """One version of the parsing. `settings` are for people; the digest decides."""

    number: int
    digest: str
    settings: Json = None
    created_by: str = ""
    created_at: float = 0.0


def generations_of(pipeline: str) -> str:
    """Where the rows of a pipeline's generations are kept."""
    return f"{pipeline}/$generations"


class Generations:
    """The generations of one pipeline. Raises `StoreUnavailable` at once; the same call may be made again."""

    def __init__(self, store: Store, new_id: Callable[[], str], pipeline: str) -> None:
        self._store = store
        self._new_id = new_id
        self._rows = Operator(store, new_id, generations_of(pipeline))

    def register(self, mine: Generation, *, switch: bool) -> tuple[int, str]:
        """Make a node's generation known, and the current one if it is the first, or later and `switch` says so.

        Returns number and digest of the current one. Raises `Refused` when that number has another digest: the parsing
        was changed and its generation was not.
        """
        known = self._added(_key(mine.number), asdict(replace(mine, created_at=self._store.now())))
        if known["digest"] != mine.digest:
            raise Refused(
                f"generation {mine.number} was made by other processors, formats or code: its digest is "
                f"{known['digest'][:12]}, not {mine.digest[:12]}. Raise `generation`, so that files can be told apart"
            )
        told = {"number": mine.number, "digest": mine.digest}
        current = self._added(CURRENT, told)
        if switch and mine.number > current["number"]:
            current = self._switched(lambda present: told if mine.number > present["number"] else present)
        return current["number"], current["digest"]

    def remember(self, mine: Generation, current: tuple[int, str]) -> None:
        """Make rows again that the store has lost: a node's generation, and the current one as that node knew it."""
        number, digest = current
        self._added(_key(mine.number), asdict(replace(mine, created_at=self._store.now())))
        self._added(CURRENT, {"number": number, "digest": digest})

    def current(self) -> tuple[int, str]:
        """Number and digest of the current generation. Raises `PartitionNotFound` before the first is registered."""
        told = self._rows.show(CURRENT).progress.state
        return told["number"], told["digest"]

    def list(self) -> Iterator[Generation]:
        """All of them, the first one first."""
        return (Generation(**row.progress.state) for row in self._rows.rows() if row.key != CURRENT)

    def show(self, number: int) -> Generation:
        """That generation. Raises `UsageError` if there is none."""
        try:
            return Generation(**self._rows.show(_key(number)).progress.state)
        except PartitionNotFound:
            raise UsageError(f"there is no generation {number}; start a node that has it") from None

    def switch(self, number: int) -> Generation:
        """Make a later generation the current one. Nodes see it with their next pass."""
        wanted = self.show(number)

        def later(present: dict[str, Json]) -> dict[str, Json]:
            if present["number"] > number:
                raise UsageError(
                    f"generation {present['number']} is current, and none goes back; use `generation back`"
                )
            return {"number": number, "digest": wanted.digest}

        self._switched(later)
        return wanted

    def back(self, created_by: str) -> Generation:
        """Return to the parsing before the current one, under the next number."""
        number, digest = self.current()
        everything = list(self.list())
        earlier = [one for one in everything if one.number < number and one.digest != digest]
        if not earlier:
            raise UsageError(f"there is no other parsing before generation {number}")
        again = replace(
            earlier[-1], number=everything[-1].number + 1, created_by=created_by, created_at=self._store.now()
        )
        self._added(_key(again.number), asdict(again))
        return self.switch(again.number)

    def _switched(self, later: Callable[[dict[str, Json]], dict[str, Json]]) -> dict[str, Json]:
        """What the row of the current generation says, changed by version."""

        def change(row: Lease, _now: float) -> Lease:
            return replace(row, progress=replace(row.progress, state=later(row.progress.state)))

        try:
            told: dict[str, Json] = self._rows.change(CURRENT, change).progress.state
        except PartitionNotFound:
            raise _not_kept() from None
        return told

    def _added(self, key: str, state: dict[str, Json]) -> dict[str, Json]:
        """What the row says; it is made if it was not there."""
        never_due = Ownership(Status.UNASSIGNED, due_at=None, write_id=self._new_id())
        self._store.add([Lease(self._rows.pipeline, key, ownership=never_due, progress=Progress(state=state))])
        try:
            told: dict[str, Json] = self._rows.show(key).progress.state
        except PartitionNotFound:
            raise _not_kept() from None
        return told


class NodeGeneration(Protocol):
    """What one node's loop needs to know of generations."""

    def current(self) -> int | None:
        """The number of the current generation; None if its parsing is not this node's. Does not raise."""

    def has_parsing_of(self, number: int) -> bool:
        """Whether this node's parsing is that of the generation. Raises `StoreUnavailable`."""


@dataclass(frozen=True, slots=True)
class FixedGeneration:
    """The generation of a run, or of a node without others: always current."""

    number: int

    def current(self) -> int | None:
        return self.number

    def has_parsing_of(self, number: int) -> bool:
        return number == self.number


class OwnGeneration:
    """The generation of a node, as the store tells; made by `follow`."""

    def __init__(self, known: Generations, recent: Generations, mine: Generation, latest: tuple[int, str]) -> None:
        self._known = known
        self._recent = recent
        self._mine = mine
        self._latest = latest

    def current(self) -> int | None:
        with suppress(StoreUnavailable):  # what is current was current a moment ago; a commit tests the row's own
            try:
                self._latest = self._recent.current()
            except PartitionNotFound:  # the store has lost writes; what this node knew is the best that there is
                self._known.remember(self._mine, self._latest)
        number, digest = self._latest
        return number if digest == self._mine.digest else None

    def has_parsing_of(self, number: int) -> bool:
        try:
            return self._known.show(number).digest == self._mine.digest
        except UsageError:
            return number == self._mine.number


def follow(
    known: Generations, recent: Generations, mine: Generation, world: World, *, switch: bool, patience: float | None
) -> OwnGeneration:
    """Make a node's generation known. `recent` may be a little behind.

    Blocks while the store is away, for at most `patience` seconds.
    """
    latest = until_answered(world, "store", lambda: known.register(mine, switch=switch), patience)
    return OwnGeneration(known, recent, mine, latest)


def _not_kept() -> StoreUnavailable:
    return StoreUnavailable("the store has not kept what it was given; it may be given again")


def _key(number: int) -> str:
    return f"{number:010d}"
