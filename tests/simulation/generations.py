"""A world in which the parsing is rolled out: nodes of two versions, and a person who switches between them and back.

What must hold: a record is in the files of exactly one generation, made by the parsing that the generation names; the
generation of a partition changes only between two commits, never down, and only to one that was current.
"""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.errors import PartitionError, StoreUnavailable, UsageError
from holdfast.flow import commit
from holdfast.flow.generations import CURRENT, Generation, Generations, follow, generations_of
from holdfast.leases.lease import Key, Lease
from tests.simulation.bucket import DataFile
from tests.simulation.files_oracle import FilesOracle
from tests.simulation.fleet import Fleet
from tests.simulation.host import Host
from tests.simulation.oracle import PIPELINE
from tests.simulation.site import NoBatches, Program, Running
from tests.simulation.store import StoreClient

VERSIONS = (Generation(1, "old"), Generation(2, "newer"))
ROWS = generations_of(PIPELINE)
UPGRADES = 0.6
"""How likely a node that is started again during the roll-out has the later version."""

NO_PARSER = commit._NO_PARSER.partition("{")[0]


class GenerationsOracle(FilesOracle):
    """Judges which parsing made what, beside all that holds for files."""

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

    def file_decided(self, row: Lease, file: DataFile) -> None:
        made_by = self.rows.get(Key(ROWS, "", f"{row.commit.generation:010d}"))
        if self.rollbacks:
            return
        if made_by is None or made_by.progress.state["digest"] != file.parser:
            self.fail(f"{row.key}: a file of generation {row.commit.generation} was made by the parsing {file.parser}")

    def judge_halt(self, row: Lease) -> None:
        if not str(row.history.halt_reason).startswith(NO_PARSER):
            super().judge_halt(row)
        elif not self._staged_data_expired(row):
            self.fail(f"{row.key}: halted though its staged data is there: {row.history.halt_reason}")

    def _staged_data_expired(self, row: Lease) -> bool:
        named = [(sink, file) for sink, receipt in (row.commit.receipts or {}).items() for file in receipt["files"]]
        return any(file["staged"] in self.buckets[sink].expired for sink, file in named)

    @property
    def current(self) -> tuple[int, str]:
        """Number and digest of the current generation, as the store has it."""
        row = self.rows.get(Key(ROWS, "", CURRENT))
        return (0, "") if row is None else (row.progress.state["number"], row.progress.state["digest"])


class RollOut(Fleet):
    """Nodes that have the earlier or the later version each time they start."""

    oracle: GenerationsOracle

    def files_oracle(self) -> FilesOracle:
        dice = self.kernel.dice
        self.automatic = dice.random() < 0.5
        self.versions = {name: VERSIONS[dice.random() < 0.2] for name in self.names}
        self.names.append("person")
        return GenerationsOracle(self.kernel, self.data, self.knobs.max_retries)

    @property
    def endless(self) -> bool:
        return True  # A node that cannot run the current generation waits for its turn.

    def assemble(self, name: str, host: Host) -> Running:
        store = self.connect(host)
        if name == "person":
            return Running(host, Person(self, host, store), NoBatches())
        node = Versioned(self, host, store, self._version(name))
        running = self.assemble_with(name, host, store, node)
        node.program, running.node = running.node, node
        return running

    def _version(self, name: str) -> Generation:
        """What is started now: while things go wrong as it comes, afterwards what can run the current generation."""
        wanted = [version for version in VERSIONS if version.digest == self.oracle.current[1]]
        if not self.faults.active and wanted:
            self.versions[name] = wanted[0]
        elif self.kernel.random() < UPGRADES:
            self.versions[name] = VERSIONS[1]
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
        generations = Generations(self.store, self.host.world.new_id, PIPELINE)
        self._followed = follow(
            generations, generations, self.version, self.host.world, switch=self.site.automatic, patience=None
        )
        assert self.program is not None
        self.program.run()

    def stop(self) -> None:
        assert self.program is not None
        self.program.stop()

    def current(self) -> int | None:
        return self._followed.current()

    def has_parsing_of(self, number: int) -> bool:
        return self._followed.has_parsing_of(number)


class Person:
    """Switches to the later version, or goes back to the parsing before, while there are faults."""

    def __init__(self, site: RollOut, host: Host, store: StoreClient) -> None:
        self._site = site
        self._host = host
        self._generations = Generations(store, host.world.new_id, PIPELINE)
        self._stopping = False

    def stop(self) -> None:
        self._stopping = True

    def run(self) -> None:
        site, host = self._site, self._host
        while site.faults.active and not self._stopping:
            host.wait(site.knobs.ttl * 3 * host.kernel.random())
            try:
                self._act()
            except (StoreUnavailable, UsageError, PartitionError):
                host.kernel.note(host.name, "tries again later")

    def _act(self) -> None:
        if self._host.kernel.random() < 0.5:
            self._generations.switch(VERSIONS[1].number)
        else:
            self._generations.back("somebody")
