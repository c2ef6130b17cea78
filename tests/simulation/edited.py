"""A world in which a file is changed and its generation is not: nodes with either file race for the first commit.

Until something is committed in the generation, the last node that starts decides which parsing it has; afterwards the
other file is refused. What must hold: all commits in a generation were made by one parsing, that of its row, whatever
nodes with the other file, or a redrive that a person begins, do at the same time.
"""

from __future__ import annotations

from typing import Any

from holdfast.flow.generations import CURRENT, Generation
from holdfast.leases.lease import Lease
from tests.simulation.files_oracle import FilesOracle
from tests.simulation.generations import EDITED, ROWS, GenerationsOracle, Person, RollOut, current_generation, row_of
from tests.simulation.host import Host
from tests.simulation.oracle import PIPELINE, Oracle
from tests.simulation.site import Program, Running
from tests.simulation.store import StoreClient
from tests.simulation.streams_oracle import StreamsOracle


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

    def assemble(self, name: str, host: Host) -> Running:
        running = super().assemble(name, host)
        if name in self.versions:
            self.oracle.started[host.name] = self.versions[name].digest
        return running

    def person(self, host: Host, store: StoreClient) -> Program:
        return Redriving(self, host, store)

    def _version(self, name: str) -> Generation:
        if not self.faults.active:
            return super()._version(name)
        self.versions[name] = self.kernel.dice.choice(EDITED)
        return self.versions[name]


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
