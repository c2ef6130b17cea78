"""A world in which a file is changed and its generation is not: nodes with either file race for the first commit.

Until something is committed in the generation, the last node that starts decides which parsing it has; afterwards the
other file is refused. What must hold: all commits in a generation were made by one parsing, that of its row, whatever
nodes with the other file, or a redrive that a person begins, do at the same time.

Some nodes are of the version before: they do not seal, and follow the row of the current generation. What they commit
after that row has changed nobody can prevent; here the store refuses it, as if they had looked just before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from holdfast.errors import Refused
from holdfast.flow.generations import CURRENT, FollowedGeneration, Generation, Generations
from holdfast.leases.lease import Key, Lease
from holdfast.leases.store import Outcome, Swap
from holdfast.leases.writes import until_answered
from tests.simulation.files_oracle import FilesOracle
from tests.simulation.generations import (
    EDITED,
    ROWS,
    GenerationsOracle,
    Person,
    RollOut,
    Versioned,
    current_generation,
    row_of,
)
from tests.simulation.host import Host
from tests.simulation.oracle import PIPELINE, Oracle
from tests.simulation.site import Program, Running
from tests.simulation.store import StoreClient
from tests.simulation.streams_oracle import StreamsOracle

FORMER = 0.3
"""How likely a node that is started while things go wrong is of the version before."""


class OneParsing(Oracle):
    """Judges by which parsing commits were made."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.started: dict[str, str] = {}
        """Digests by the name of the process."""
        self.made: dict[int, str] = {}
        """Digests of what was committed, by generation."""

    def row_written(self, row: Lease, sender: Host) -> None:
        before = self.rows.get(row.id)
        super().row_written(row, sender)
        if before is None or self.rollbacks:
            return
        if row.pipeline == PIPELINE and row.commit.sequence > before.commit.sequence:
            self.require_parsing(row.commit.generation, self.started[sender.name])
        if row.pipeline == ROWS and row.key != CURRENT:
            self._require_kept(row.progress.state["number"], row.progress.state["digest"])

    def _require_kept(self, number: int, digest: str) -> None:
        if self.made.get(number, digest) != digest:
            self.fail(f"generation {number} has commits, and its parsing was replaced")

    def require_parsing(self, number: int, digest: str) -> None:
        """Something is committed in that generation by that parsing."""
        row = self.rows.get(row_of(number))
        if self.rollbacks or row is None:
            return
        if self.made.setdefault(number, digest) != digest:
            self.fail(f"generation {number} has commits of two parsings, {self.made[number]} and {digest}")
        if row.progress.state["digest"] != digest:
            self.fail(f"a commit of the parsing {digest} in generation {number}, whose row has another one")


class EditedFilesOracle(OneParsing, GenerationsOracle):
    """For files: their contents are judged, too."""


class EditedStreamsOracle(OneParsing, StreamsOracle):
    """For functions, whose batches go on after a commit."""

    @property
    def current(self) -> tuple[int, str]:
        return current_generation(self)


class Edited(RollOut):
    """Nodes that have one file or the other each time they start."""

    releases = EDITED
    oracle: EditedFilesOracle | EditedStreamsOracle  # type: ignore[assignment]

    def make_oracle(self) -> Oracle:
        if not self.scenario.streams:
            return super().make_oracle()
        self.data = self.draw_data()
        self.draw_versions()
        return EditedStreamsOracle(self.kernel, self.data, self.knobs.window)

    def files_oracle(self) -> FilesOracle:
        self.draw_versions()
        return EditedFilesOracle(self.kernel, self.data, self.knobs.max_retries)

    def connect(self, host: Host) -> StoreClient:
        """Nodes of the version before have a connection of their own."""
        if not host.name.startswith("person") and self.faults.active and self.kernel.random() < FORMER:
            return FormerStoreClient(self.store, host, self.knobs.latency, self.knobs.ttl)
        return super().connect(host)

    def versioned(self, host: Host, store: StoreClient, version: Generation) -> Versioned:
        if not isinstance(store, FormerStoreClient):
            return super().versioned(host, store, version)
        store.digest = version.digest
        return FormerNode(self, host, store, version)

    def assemble(self, name: str, host: Host) -> Running:
        running = super().assemble(name, host)
        if name in self.versions:
            self.oracle.started[host.name] = self.versions[name].digest
        return running

    def look_after(self) -> None:
        """In the end all nodes are upgraded: those of the version before wait while a replacement is cut short."""
        super().look_after()
        for running in list(self.nodes.values()):
            if isinstance(running.node, FormerNode) and running.host.running:
                self.stop(running.host)

    def person(self, host: Host, store: StoreClient) -> Program:
        return Redriving(self, host, store)

    def _version(self, name: str) -> Generation:
        if not self.faults.active:
            return super()._version(name)
        self.versions[name] = self.kernel.dice.choice(EDITED)
        return self.versions[name]


class FormerStoreClient(StoreClient):
    """The connection of a node of the version before: once its parsing is not current, it commits nothing."""

    digest = ""

    def swap(self, swaps: Sequence[Swap]) -> list[Outcome]:
        unknown = [Outcome.UNKNOWN] * len(swaps)
        return self._write("swap", lambda: self._applied(swaps), lambda: unknown)

    def _applied(self, swaps: Sequence[Swap]) -> list[Outcome]:
        (current,) = self._server.memory.get([Key(ROWS, "", CURRENT)])
        if current is None or current.progress.state["digest"] == self.digest:
            return self._server.swap(swaps, self._host)
        return [
            Outcome.CONFLICT if self._is_commit(swap.lease) else self._server.swap([swap], self._host)[0]
            for swap in swaps
        ]

    def _is_commit(self, lease: Lease) -> bool:
        (row,) = self._server.memory.get([lease.id])
        return row is not None and lease.commit.sequence > row.commit.sequence


class FormerGenerations(Generations):
    """Generations as the version before has them."""

    def register(self, mine: Generation, *, switch: bool) -> tuple[int, str]:
        if self._added(row_of(mine.number).key, asdict(mine))["digest"] != mine.digest:
            raise Refused("the parsing was changed and its generation was not")
        current = self._added(CURRENT, {"number": mine.number, "digest": mine.digest})
        return current["number"], current["digest"]

    def seal(self, mine: Generation) -> bool:
        return True

    def current(self, sealed: Mapping[int, str] | None = None) -> tuple[int, str]:
        state = self._rows.show(CURRENT).progress.state
        return state["number"], state["digest"]


class FormerNode(Versioned):
    """A node of the version before."""

    def follow(self) -> FollowedGeneration:
        world, mine = self.host.world, self.version
        generations = FormerGenerations(self.store, world.new_id, PIPELINE)
        latest = until_answered(world, "store", lambda: generations.register(mine, switch=True), None)
        return FollowedGeneration(generations, generations, mine, latest)


class Redriving(Person):
    """Begins redrives with one file or the other: each seals the generation, and commits later."""

    def __init__(self, site: Edited, host: Host, store: StoreClient) -> None:
        super().__init__(site, host, store)
        self._oracle = site.oracle

    def act(self) -> None:
        mine: Generation = self.host.kernel.dice.choice(EDITED)
        number, digest = self.generations.current()
        if digest != mine.digest or not self.generations.seal(Generation(number, digest)):
            return
        self.host.wait(self.site.knobs.ttl * self.host.kernel.random())
        self._oracle.require_parsing(number, mine.digest)
