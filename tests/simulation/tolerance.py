"""A world in which records cannot be parsed, and a person who mends the parsing, or only reopens what has halted.

What must hold: no commit brings a partition beyond its tolerance of dead letters, whoever made the commits before it
and however small they were; a partition halts for letters only if a batch from its position can go beyond. What must
come about: all that halted is read again, and every record is visible once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from holdfast.errors import PartitionError, Unavailable
from holdfast.flow.batch import Batch, Tolerance
from holdfast.flow.engine import Staged
from holdfast.leases.lease import Counts, Lease, Status
from holdfast.leases.operator import Operator
from tests.simulation.engine import SimulatedEngine
from tests.simulation.files_oracle import FilesOracle
from tests.simulation.fleet import Fleet
from tests.simulation.host import Host
from tests.simulation.kernel import Trace
from tests.simulation.oracle import PIPELINE
from tests.simulation.scenario import Scenario
from tests.simulation.site import NoBatches, Running
from tests.simulation.source import offset_of
from tests.simulation.store import StoreClient

SHARE, RECORDS = 0.5, 4
UNREADABLE = 0.45
"""How likely a record cannot be parsed."""
PERSON = "person"


class ToleranceOracle(FilesOracle):
    """Counts letters itself: by the sums of the rows, and by the records that cannot be parsed."""

    unreadable: Mapping[str, set[int]]
    windows: dict[str, tuple[int, int]]
    """By partition, records and letters since its window began."""

    def _lease_written(self, before: Lease, row: Lease, sender: Host) -> None:
        if before.status is Status.FAILED and row.status is Status.UNASSIGNED and sender.name.startswith(PERSON):
            self.windows[row.key] = (0, 0)
            if row.progress.position != before.progress.position or row.token != before.token:
                self.fail(f"{row.key}: was reopened at {row.progress.position} under token {row.token}")
            return
        super()._lease_written(before, row, sender)
        if row.status is Status.FAILED and before.status is not Status.FAILED and row.history.halt_reason is not None:
            self._require_reason(row)

    def committed(self, before: Lease, row: Lease) -> None:
        super().committed(before, row)
        was, now = before.progress.counts, row.progress.counts
        records, letters = self.windows.get(row.key, (0, 0))
        records, letters = records + now.processed - was.processed, letters + now.dead - was.dead
        if _goes_beyond(records, letters):
            self.fail(f"{row.key}: commit {row.commit.sequence} makes {letters} of {records} records dead letters")
        self.windows[row.key] = (0, 0) if records >= RECORDS else (records, letters)

    def _require_reason(self, row: Lease) -> None:
        records, letters = self.windows.get(row.key, (0, 0))
        for item in range(offset_of(row.progress.position), self.numbers[row.key]):
            records, letters = records + 1, letters + (item in self.unreadable[row.key])
            if _goes_beyond(records, letters):
                return
        self.fail(f"{row.key}: halted without cause: {row.history.halt_reason}")


def _goes_beyond(records: int, letters: int) -> bool:
    return letters > SHARE * max(records, RECORDS)


class ParsingEngine(SimulatedEngine):
    """Executors that cannot parse some records. Their parsing is mended when a person says so."""

    unreadable: Mapping[str, set[int]]

    def _stage(self, batch: Batch) -> Staged:
        staged = super()._stage(batch)
        bad = self.unreadable[batch.lease.key]
        dead = len(bad.intersection(range(offset_of(batch.cut.start), offset_of(staged.end))))
        number = staged.counts.processed
        return replace(staged, counts=Counts(number, number - dead, 0, dead))


class ToleranceSite(Fleet):
    """Nodes whose parsing fails now and then, and the person who looks after what has halted."""

    oracle: ToleranceOracle
    engine_type = ParsingEngine
    tolerance = Tolerance(SHARE, RECORDS)

    def __init__(self, scenario: Scenario, seed: int, trace: Trace | None = None) -> None:
        super().__init__(scenario, seed, trace)
        self.names.append(PERSON)

    def files_oracle(self) -> FilesOracle:
        oracle = ToleranceOracle(self.kernel, self.data, self.knobs.max_retries)
        oracle.windows = {}
        oracle.unreadable = self.unreadable = {
            key: {item for item in range(number) if self.kernel.random() < UNREADABLE}
            for key, number in self.data.items.items()
        }
        return oracle

    def files_engine(self, name: str, host: Host) -> SimulatedEngine:
        engine = super().files_engine(name, host)
        assert isinstance(engine, ParsingEngine)
        engine.unreadable = self.unreadable
        return engine

    def assemble(self, name: str, host: Host) -> Running:
        if name == PERSON:
            return Running(host, Mender(self, host, self.connect(host)), NoBatches())
        return super().assemble(name, host)

    @property
    def halted(self) -> list[Lease]:
        return [row for row in self._rows() if row.status is Status.FAILED]

    @property
    def work_is_done(self) -> bool:
        return super().work_is_done and not self.halted

    def look_after(self) -> None:
        if self.halted:
            self.start(PERSON)


class Mender:
    """Reopens what has halted, with the parsing mended or not; when the faults are over, always mended."""

    def __init__(self, site: ToleranceSite, host: Host, store: StoreClient) -> None:
        self._site = site
        self._host = host
        self._operator = Operator(store, host.world.new_id, PIPELINE)
        self._stopping = False

    def stop(self) -> None:
        self._stopping = True

    def run(self) -> None:
        site, host = self._site, self._host
        while not self._stopping and (site.faults.active or site.halted):
            host.wait(site.knobs.ttl * host.kernel.random())
            for row in site.halted:
                self._reopen(row.key)

    def _reopen(self, key: str) -> None:
        site, host = self._site, self._host
        if not site.faults.active or host.kernel.random() < 0.5:
            site.unreadable[key].clear()
        try:
            self._operator.reopen(key)
        except (Unavailable, PartitionError) as trouble:
            host.kernel.note(host.name, "tries again later", trouble)
            return
        site.faults.strike("Reopened")
