"""Generations: which version of the parsing is current, and which node may run it.

A generation is a number with the digest of everything that decides what files look like: processors, formats, code. A
node runs the current generation only if the digest is that of its own code. So new code can be started beside old code,
and takes over when the generation is switched; the way back is another generation, with the digest of an earlier one.
The owner of a partition switches its generation between two commits: every record is in exactly one generation.

Until something is committed in a generation, its parsing may be replaced by that of a changed file: a first attempt
that failed costs no number. The row of the generation is then not sealed. A node seals it before its first commit in
that generation, under its own digest, and from then on the digest never changes. Sealing and replacing are writes of
one row by version, so that nothing is committed in a generation by a parsing that is not the one in its row. Nodes of
the version before do not seal: what they have committed is looked for before a parsing is replaced. A batch that such a
node has begun before it sees the replacement may still be committed, so a parsing is best changed after an upgrade.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from types import MappingProxyType
from typing import Protocol

from holdfast.errors import PartitionNotFound, PartitionUpdateFailed, Refused, StoreUnavailable, UsageError
from holdfast.leases.lease import Json, Key, Lease, Ownership, Progress, Status
from holdfast.leases.operator import PAGE, Operator
from holdfast.leases.store import Store
from holdfast.leases.world import World
from holdfast.leases.writes import until_answered

CURRENT = "$current"
UNSEALED: Json = {"sealed": False}
"""Position of the row of a generation in which nothing was committed; rows of earlier versions have none."""

REPLACED = (
    "pipeline {0}: a node with a changed file has replaced the parsing of generation {1}; nothing was committed in it. "
    "This node has the former file and commits nothing; start it with the changed one, or raise `generation`"
)


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
        self._pipeline = pipeline
        self._rows = Operator(store, new_id, generations_of(pipeline))

    def register(self, mine: Generation, *, switch: bool) -> tuple[int, str]:
        """Add a node's generation, and make it current if it is the first, or if it is later and `switch` is set.

        Returns number and digest of the current one. A parsing in which nothing was committed is replaced; raises
        `Refused` if something was: the parsing was changed, but its number was not.
        """
        wanted = asdict(replace(mine, created_at=self._store.now()))
        if self._added(_key(mine.number), wanted, UNSEALED)["digest"] != mine.digest:
            self._replace(mine, wanted)
        candidate = {"number": mine.number, "digest": mine.digest}
        current = self._added(CURRENT, candidate)
        if current["number"] == mine.number and current["digest"] != mine.digest and self._is_sealed(mine):
            self._name_current(mine.number, mine.digest)  # a node that wanted to replace it has died
        if switch and mine.number > current["number"]:
            current = self._switched(lambda present: candidate if mine.number > present["number"] else present)
        return current["number"], mine.digest if current["number"] == mine.number else current["digest"]

    def _replace(self, mine: Generation, wanted: dict[str, Json]) -> None:
        """Give the number another parsing. Raises `Refused` if something was committed in it.

        Nodes of the version before do not seal. They follow the row of the current generation, so that is changed
        first; then their commits are looked for, and the parsing is replaced unless its row has changed since. If this
        node dies in between, nodes that seal follow the row of the generation, and the next node begins again.
        """

        def change(row: Lease, _now: float) -> Lease:
            if row.progress.state["digest"] == mine.digest or row.progress.position != UNSEALED:
                return row
            passed = self._name_current(mine.number, mine.digest) > mine.number
            if passed or self._has_commits(mine.number):
                # Sealed before the digest is restored: a node that has seen no commit cannot replace it any more.
                return replace(row, progress=replace(row.progress, position=None))
            return replace(row, progress=replace(row.progress, state=wanted))

        stored = self._changed(_key(mine.number), change).progress.state["digest"]
        if stored != mine.digest:
            self._name_current(mine.number, stored)
            raise Refused(
                f"generation {mine.number} was made by other processors, formats or code: its digest is "
                f"{stored[:12]}, not {mine.digest[:12]}, and records were committed in it or in a later one. Raise "
                "`generation`, so that new files can be distinguished from old ones"
            )

    def _is_sealed(self, mine: Generation) -> bool:
        progress = self._rows.show(_key(mine.number)).progress
        return bool(progress.state["digest"] == mine.digest and progress.position != UNSEALED)

    def is_free(self, number: int) -> bool:
        """Whether nothing was committed in that generation, which exists. May read all rows of the pipeline."""
        return self._rows.show(_key(number)).progress.position == UNSEALED and not self._has_commits(number)

    def _name_current(self, number: int, digest: str) -> int:
        """Write the digest to the row of the current generation if it has that number. Returns the current number."""
        wanted = {"number": number, "digest": digest}
        current = self._added(CURRENT, wanted)
        if current["number"] == number and current["digest"] != digest:
            current = self._switched(lambda present: wanted if present["number"] == number else present)
        return int(current["number"])

    def _has_commits(self, number: int) -> bool:
        """Whether a row of the pipeline or of its runs has a commit in that generation. Reads all of them."""
        keys = [Key(self._pipeline, row.run, row.key) for row in self._store.outline(self._pipeline, None)]
        pages = (self._store.get(keys[first : first + PAGE]) for first in range(0, len(keys), PAGE))
        commits = (row.commit for page in pages for row in page if row is not None)
        return any(made.generation == number and made.sequence > made.switched_at for made in commits)

    def seal(self, mine: Generation) -> bool:
        """Fix the parsing of a generation before anything is committed in it. Writes only the first time.

        Returns whether the generation now has the digest of `mine`; if so, that never changes.
        """

        def change(row: Lease, _now: float) -> Lease:
            # Another node may have sealed it meanwhile: if each wrote it again, a large fleet would be busy for long.
            open_to_mine = row.progress.state["digest"] == mine.digest and row.progress.position == UNSEALED
            return replace(row, progress=replace(row.progress, position=None)) if open_to_mine else row

        try:
            row = self._rows.show(_key(mine.number))
        except PartitionNotFound:  # the store has lost writes
            return bool(self._added(_key(mine.number), asdict(mine))["digest"] == mine.digest)
        if row.progress.state["digest"] == mine.digest and row.progress.position == UNSEALED:
            row = self._changed(_key(mine.number), change)
        return bool(row.progress.state["digest"] == mine.digest)

    def remember(self, mine: Generation, current: tuple[int, str]) -> None:
        """Restore rows that the store has lost: a node's generation, and the current one as that node last read it."""
        number, digest = current
        self._added(_key(mine.number), asdict(replace(mine, created_at=self._store.now())))
        self._added(CURRENT, {"number": number, "digest": digest})

    def current(self, sealed: Mapping[int, str] = MappingProxyType({})) -> tuple[int, str]:
        """Number and digest of the current generation. Raises `PartitionNotFound` before the first is registered.

        `sealed` are digests by number that cannot change any more, and are not read. The row of a generation decides
        its digest; the digest in the row of the current generation may be that of a replaced parsing.
        """
        state = self._rows.show(CURRENT).progress.state
        number = state["number"]
        if number in sealed:
            return number, sealed[number]
        try:
            return number, self._rows.show(_key(number)).progress.state["digest"]
        except PartitionNotFound:  # the store has lost writes
            return number, state["digest"]

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

        state: dict[str, Json] = self._changed(CURRENT, change).progress.state
        return state

    def _changed(self, key: str, change: Callable[[Lease, float], Lease]) -> Lease:
        try:
            return self._rows.change(key, change)
        except PartitionNotFound:
            raise _not_kept() from None
        except PartitionUpdateFailed as busy:  # whoever waits for the store tries again after a pause
            raise StoreUnavailable(str(busy)) from None

    def _added(self, key: str, state: dict[str, Json], position: Json = None) -> dict[str, Json]:
        """The state of the row, which is added if it was not there."""
        never_due = Ownership(Status.UNASSIGNED, due_at=None, write_id=self._new_id())
        progress = Progress(position=position, state=state)
        self._store.add([Lease(self._rows.pipeline, key, ownership=never_due, progress=progress)])
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

    def seal(self, number: int) -> bool:
        """Whether this node may commit in that generation; called before every commit. Raises `StoreUnavailable`."""


@dataclass(frozen=True, slots=True)
class FixedGeneration:
    """A generation that is always current, for a run, which has sealed it, or for a node that runs alone."""

    number: int

    def current(self) -> int | None:
        return self.number

    def has_parsing_of(self, number: int) -> bool:
        return number == self.number

    def seal(self, number: int) -> bool:  # noqa: ARG002
        return True


class FollowedGeneration:
    """The current generation in the store, as one node follows it; made by `follow`."""

    def __init__(
        self, generations: Generations, recent: Generations, mine: Generation, latest: tuple[int, str]
    ) -> None:
        self._generations = generations
        self._recent = recent
        self._mine = mine
        self._latest = latest
        self._sealed: dict[int, str] = {}

    def current(self) -> int | None:
        with suppress(StoreUnavailable):  # the last one read holds; a commit tests the generation of the row
            try:
                self._latest = self._recent.current(self._sealed)
            except PartitionNotFound:  # the store has lost writes; this node restores the last state that it read
                self._generations.remember(self._mine, self._latest)
        number, digest = self._latest
        return number if digest == self._mine.digest else None

    def has_parsing_of(self, number: int) -> bool:
        try:
            return self._generations.show(number).digest == self._mine.digest
        except UsageError:
            return number == self._mine.number

    def seal(self, number: int) -> bool:
        if number not in self._sealed and self._generations.seal(replace(self._mine, number=number)):
            self._sealed[number] = self._mine.digest
        return number in self._sealed


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
