"""A world in which the parsing is rolled out: nodes of two versions, and a person who switches between them and back.

What must hold: a record is in the files of exactly one generation, made by the parsing that the generation names; the
generation of a partition changes only between two commits, never down, and only to one that was current.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from holdfast.errors import PartitionError, Refused, StoreUnavailable, UsageError
from holdfast.flow import commit
from holdfast.flow.generations import CURRENT, FollowedGeneration, Generation, Generations, follow, generations_of
from holdfast.leases.lease import Key, Lease
from tests.simulation.bucket import DataFile
from tests.simulation.files_oracle import FilesOracle
from tests.simulation.fleet import Fleet
from tests.simulation.host import Host
from tests.simulation.oracle import PIPELINE, Oracle
from tests.simulation.site import NoBatches, Program, Running
from tests.simulation.store import StoreClient

VERSIONS = (Generation(1, "old"), Generation(2, "newer"))
EDITED = (Generation(1, "old"), Generation(1, "edited"))
"""A file that was changed, and its generation was not."""
ROWS = generations_of(PIPELINE)
UPGRADES = 0.6
"""How likely a node that is started again during the roll-out has the later version."""

NO_PARSER = commit._NO_PARSER.partition("{")[0]


class SwitchOracle(Oracle):
    """Judges when a partition changes its generation, and to which."""

    def row_written(self, row: Lease, sender: Host) -> None:
        before = self.rows.get(row.id)
        super().row_written(row, sender)
        if row.pipeline == PIPELINE and before is not None and not self.rollbacks:
            self._require_switched_at_rest(before, row)

    def _require_switched_at_rest(self, before: Lease, row: Lease) -> None:
        was, now = before.commit, row.commit
        if now.generation == was.generation:
            return
        if now.generation < was.generation:
            self.fail(f"{row.key}: went back from generation {was.generation} to {now.generation}")
        if was.receipts is not None or now.sequence != was.sequence:
            self.fail(f"{row.key}: became generation {now.generation} in the middle of a commit")
        if now.generation > self.current[0]:
            self.fail(f"{row.key}: became generation {now.generation}, and {self.current[0]} is current")

    def digest_of(self, generation: int) -> str | None:
        """The parsing of that generation; None if it was never made known."""
        row = self.rows.get(row_of(generation))
        return None if row is None else row.progress.state["digest"]

    @property
    def current(self) -> tuple[int, str]:
        return current_generation(self)


class GenerationsOracle(SwitchOracle, FilesOracle):
    """Judges which parsing made what, beside all that holds for files."""

    def file_decided(self, row: Lease, file: DataFile) -> None:
        if self.rollbacks:
            return
        if self.digest_of(row.commit.generation) != file.parser:
            self.fail(f"{row.key}: a file of generation {row.commit.generation} was made by the parsing {file.parser}")

    def judge_halt(self, row: Lease) -> None:
        if not str(row.history.halt_reason).startswith(NO_PARSER):
            super().judge_halt(row)
        elif not self._staged_data_expired(row):
            self.fail(f"{row.key}: halted though its staged data is there: {row.history.halt_reason}")

    def _staged_data_expired(self, row: Lease) -> bool:
        named = [(sink, file) for sink, receipt in (row.commit.receipts or {}).items() for file in receipt["files"]]
        return any(file["staged"] in self.buckets[sink].expired for sink, file in named)


def current_generation(oracle: Oracle) -> tuple[int, str]:
    """Number and digest of the current generation, as the store has it."""
    rows = [row for key, row in sorted(oracle.rows.items()) if key.pipeline == ROWS]
    if not rows:
        return 0, ""
    # A store that has lost writes may have a generation and not say that it is current.
    row = oracle.rows.get(Key(ROWS, "", CURRENT), rows[-1])
    number = row.progress.state["number"]
    parsing = oracle.rows.get(row_of(number), row)
    return number, parsing.progress.state["digest"]


def row_of(number: int) -> Key:
    return Key(ROWS, "", f"{number:010d}")


class RollOut(Fleet):
    """Nodes that have the earlier or the later version each time they start."""

    oracle: SwitchOracle
    releases = VERSIONS

    def draw_versions(self) -> None:
        dice = self.kernel.dice
        self.automatic = dice.random() < 0.5
        self.versions = {name: self.releases[dice.random() < 0.2] for name in self.names}
        self.names.append("person")

    def files_oracle(self) -> FilesOracle:
        self.draw_versions()
        return GenerationsOracle(self.kernel, self.data, self.knobs.max_retries)

    @property
    def endless(self) -> bool:
        return True  # A node that cannot run the current generation waits for its turn.

    def assemble(self, name: str, host: Host) -> Running:
        store = self.connect(host)
        if name == "person":
            return Running(host, self.person(host, store), NoBatches())
        node = self.versioned(host, store, self._version(name))
        running = self.assemble_with(name, host, store, node)
        node.program, running.node = running.node, node
        return running

    def versioned(self, host: Host, store: StoreClient, version: Generation) -> Versioned:
        return Versioned(self, host, store, version)

    def person(self, host: Host, store: StoreClient) -> Program:
        return Switching(self, host, store)

    def _version(self, name: str) -> Generation:
        """What is started now: while things go wrong as it comes, afterwards what can run the current generation."""
        wanted = [version for version in self.releases if version.digest == self.oracle.current[1]]
        if not self.faults.active and wanted:
            self.versions[name] = wanted[0]
        elif self.kernel.random() < UPGRADES:
            self.versions[name] = self.releases[1]
        return self.versions[name]

    def parser_of(self, name: str) -> str:
        return self.versions[name].digest

    def look_after(self) -> None:
        """Nodes that cannot run the current generation are replaced."""
        for name, running in list(self.nodes.items()):
            stale = name != "person" and self.versions[name].digest != self.oracle.current[1]
            if stale and running.host.running:
                self.stop(running.host)


@dataclass(eq=False)
class Versioned:
    """A node that makes its version known before it begins, as a process does when it is started."""

    site: RollOut
    host: Host
    store: StoreClient
    version: Generation
    program: Program | None = None

    def run(self) -> None:
        try:
            self._followed = self.follow()
        except Refused:
            self.host.kernel.note(self.host.name, "refused")
            self.site.stop(self.host)  # a supervisor starts the process anew
            return
        assert self.program is not None
        self.program.run()

    def follow(self) -> FollowedGeneration:
        world = self.host.world
        generations = Generations(self.store, world.new_id, PIPELINE)
        return follow(generations, generations, self.version, world, switch=self.site.automatic, patience=None)

    def stop(self) -> None:
        assert self.program is not None
        self.program.stop()

    def current(self) -> int | None:
        return self._followed.current()

    def has_parsing_of(self, number: int) -> bool:
        return self._followed.has_parsing_of(number)

    def seal(self, number: int) -> bool:
        return self._followed.seal(number)


class Person(ABC):
    """Acts while there are faults; whatever the store prevents is tried again later."""

    def __init__(self, site: RollOut, host: Host, store: StoreClient) -> None:
        self.site = site
        self.host = host
        self.generations = Generations(store, host.world.new_id, PIPELINE)
        self._stopping = False

    def stop(self) -> None:
        self._stopping = True

    def run(self) -> None:
        site, host = self.site, self.host
        while site.faults.active and not self._stopping:
            host.wait(site.knobs.ttl * 3 * host.kernel.random())
            try:
                self.act()
            except (StoreUnavailable, PartitionError):
                host.kernel.note(host.name, "tries again later")

    @abstractmethod
    def act(self) -> None: ...


class Switching(Person):
    """Switches to the later version, or goes back to the parsing before."""

    def act(self) -> None:
        try:
            if self.host.kernel.random() < 0.5:
                self.generations.switch(VERSIONS[1].number)
            else:
                self.generations.back("somebody")
        except UsageError:
            self.host.kernel.note(self.host.name, "cannot switch now")
