"""Generations: which version of the parsing is current, and which node may run it.

A generation is a number with the digest of everything that decides what files look like: processors, formats, code. A
node runs the current generation only if the digest is that of its own code. So new code can be started beside old code,
and takes over when the generation is switched; the way back is another generation, with the digest of an earlier one.
The owner of a partition switches its generation between two commits: every record is in exactly one generation.
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
    """The pipeline name under which the rows of a pipeline's generations are kept."""
    return f"{pipeline}/$generations"


class Generations:
    """The generations of one pipeline. Raises `StoreUnavailable` at once; every call may be repeated."""

    def __init__(self, store: Store, new_id: Callable[[], str], pipeline: str) -> None:
        self._store = store
        self._new_id = new_id
        self._rows = Operator(store, new_id, generations_of(pipeline))

    def register(self, mine: Generation, *, switch: bool) -> tuple[int, str]:
        """Add a node's generation, and make it current if it is the first, or if it is later and `switch` is set.

        Returns number and digest of the current one. Raises `Refused` if that number has another digest: the parsing
        was changed and its generation was not.
        """
        stored = self._added(_key(mine.number), asdict(replace(mine, created_at=self._store.now())))
        if stored["digest"] != mine.digest:
            raise Refused(
                f"generation {mine.number} was made by other processors, formats or code: its digest is "
                f"{stored['digest'][:12]}, not {mine.digest[:12]}. Raise `generation`, so that files can be "
                "distinguished"
            )
        candidate = {"number": mine.number, "digest": mine.digest}
        current = self._added(CURRENT, candidate)
        if switch and mine.number > current["number"]:
            current = self._switched(lambda present: candidate if mine.number > present["number"] else present)
        return current["number"], current["digest"]

    def remember(self, mine: Generation, current: tuple[int, str]) -> None:
        """Restore rows that the store has lost: a node's generation, and the current one as that node last read it."""
        number, digest = current
        self._added(_key(mine.number), asdict(replace(mine, created_at=self._store.now())))
        self._added(CURRENT, {"number": number, "digest": digest})

    def current(self) -> tuple[int, str]:
        """Number and digest of the current generation. Raises `PartitionNotFound` before the first is registered."""
        state = self._rows.show(CURRENT).progress.state
        return state["number"], state["digest"]

    def list(self) -> Iterator[Generation]:
        """All generations by number."""
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
                    f"generation {present['number']} is current, and a switch never goes back; use `generation back`"
                )
            return {"number": number, "digest": wanted.digest}

        self._switched(later)
        return wanted

    def back(self, created_by: str) -> Generation:
        """Return to the parsing before the current one, under the next number."""
        number, digest = self.current()
        everything = list(self.list())
        earlier = [each for each in everything if each.number < number and each.digest != digest]
        if not earlier:
            raise UsageError(f"there is no other parsing before generation {number}")
        restored = replace(
            earlier[-1], number=everything[-1].number + 1, created_by=created_by, created_at=self._store.now()
        )
        self._added(_key(restored.number), asdict(restored))
        return self.switch(restored.number)

    def _switched(self, later: Callable[[dict[str, Json]], dict[str, Json]]) -> dict[str, Json]:
        """Change the row of the current generation by version; returns its new state."""

        def change(row: Lease, _now: float) -> Lease:
            return replace(row, progress=replace(row.progress, state=later(row.progress.state)))

        try:
            state: dict[str, Json] = self._rows.change(CURRENT, change).progress.state
        except PartitionNotFound:
            raise _not_kept() from None
        return state

    def _added(self, key: str, state: dict[str, Json]) -> dict[str, Json]:
        """The state of the row, which is added if it was not there."""
        never_due = Ownership(Status.UNASSIGNED, due_at=None, write_id=self._new_id())
        self._store.add([Lease(self._rows.pipeline, key, ownership=never_due, progress=Progress(state=state))])
        try:
            stored: dict[str, Json] = self._rows.show(key).progress.state
        except PartitionNotFound:
            raise _not_kept() from None
        return stored


class NodeGeneration(Protocol):
    """The part of generations that a node's loop uses."""

    def current(self) -> int | None:
        """The number of the current generation; None if this node does not have its parsing. Does not raise."""

    def has_parsing_of(self, number: int) -> bool:
        """Whether this node has the parsing of that generation. Raises `StoreUnavailable`."""


@dataclass(frozen=True, slots=True)
class FixedGeneration:
    """A generation that is always current, for a run or for a node that runs alone."""

    number: int

    def current(self) -> int | None:
        return self.number

    def has_parsing_of(self, number: int) -> bool:
        return number == self.number


class FollowedGeneration:
    """The current generation in the store, as one node follows it; made by `follow`."""

    def __init__(
        self, generations: Generations, recent: Generations, mine: Generation, latest: tuple[int, str]
    ) -> None:
        self._generations = generations
        self._recent = recent
        self._mine = mine
        self._latest = latest

    def current(self) -> int | None:
        with suppress(StoreUnavailable):  # the last one read holds; a commit tests the generation of the row
            try:
                self._latest = self._recent.current()
            except PartitionNotFound:  # the store has lost writes; this node restores the last state that it read
                self._generations.remember(self._mine, self._latest)
        number, digest = self._latest
        return number if digest == self._mine.digest else None

    def has_parsing_of(self, number: int) -> bool:
        try:
            return self._generations.show(number).digest == self._mine.digest
        except UsageError:
            return number == self._mine.number


def follow(
    generations: Generations,
    recent: Generations,
    mine: Generation,
    world: World,
    *,
    switch: bool,
    patience: float | None,
) -> FollowedGeneration:
    """Register a node's generation and follow the current one. `recent` may be a little behind.

    Blocks while the store does not respond, for at most `patience` seconds.
    """
    latest = until_answered(world, "store", lambda: generations.register(mine, switch=switch), patience)
    return FollowedGeneration(generations, recent, mine, latest)


def _not_kept() -> StoreUnavailable:
    return StoreUnavailable("the store has lost a row that was just written; repeat the call")


def _key(number: int) -> str:
    return f"{number:010d}"
