"""A world in which dead letters are sent again while somebody replaces the range that they came from.

What must hold: where a partition begins again, nothing that a redrive has written of that range is left, and nothing of
it appears later, because the live pipeline writes it again. What must come about: every letter was sent, or its record
is written again.
"""

from __future__ import annotations

from dataclasses import replace

from holdfast.errors import Halt, PartitionError, Refused, Unavailable, UsageError
from holdfast.flow.batch import Name
from holdfast.flow.generations import Generations
from holdfast.flow.manifest import Manifest
from holdfast.flow.names import dead_letter_key, manifest_key
from holdfast.flow.runs import Runs
from holdfast.leases.coordinator import ClaimPolicy, Coordinator
from holdfast.leases.lease import Commit, Json, Lease, Ownership, Partition, Progress, Status, new_lease
from holdfast.leases.operator import Operator
from holdfast.leases.transitions import set_aside_for
from holdfast.runs import replace_plan
from holdfast.runs.replace import Replacement
from holdfast.sinks.files.sink import FilesSink
from tests.simulation.bucket import BucketClient, BucketServer, DataFile
from tests.simulation.engine import FailureBudget
from tests.simulation.host import Host
from tests.simulation.oracle import PIPELINE
from tests.simulation.redriving import SINK, LettersOracle, RedrivingSite
from tests.simulation.replacing import MINE, SimulatedPipeline, SimulatedRewind
from tests.simulation.site import NoBatches, Running
from tests.simulation.source import offset_of
from tests.simulation.store import StoreClient
from tests.simulation.worker import session_of

COMMITS = ((0, 10), (10, 20))
END = 20


class RedrivenOracle(LettersOracle):
    """Judges what is left of redrives where a partition begins again, and what appears after that."""

    begun: dict[str, int]
    """By partition the lowest offset at which it has begun again."""

    def _lease_written(self, before: Lease, row: Lease, sender: Host) -> None:
        if not row.run and (set_aside_for(row) is None) != (set_aside_for(before) is None):
            if set_aside_for(row) is None:
                self._begins_again(row)
            return
        super()._lease_written(before, row, sender)

    def _begins_again(self, row: Lease) -> None:
        start = offset_of(row.progress.position)
        left = sorted(item for key, item in self.seen if key == row.key and item >= start)
        if left:
            self.fail(f"{row.key}: begins again at {start} while redriven records of {left} are visible")
        self.begun[row.key] = min(start, self.begun.get(row.key, END))

    def became_visible(self, sink: str, key: str, file: DataFile) -> None:
        repeated = [item for item in file.items if item >= self.begun.get(file.partition, END)]
        if repeated:
            self.fail(f"{sink}: {key} shows {repeated} of {file.partition}, which are written again")
        super().became_visible(sink, key, file)

    def moved(self, sink: str, key: str, file: DataFile) -> None:
        for item in file.items:
            del self.seen[file.partition, item]

    @property
    def waiting(self) -> list[tuple[str, int]]:
        """Partition and item of letters that are neither sent nor written again."""
        missing = set(self.letters.values()) - self.seen.keys()
        return sorted((key, item) for key, item in missing if item < self.begun.get(key, END))

    @property
    def all_sent(self) -> bool:
        return not self.waiting

    def judge_end(self) -> None:
        if self.waiting:
            self.fail(f"{self.waiting} were neither sent nor written again")


class RedrivenSite(RedrivingSite):
    """People who send letters again, and one who replaces."""

    oracle: RedrivenOracle

    def make_oracle(self) -> RedrivenOracle:
        oracle = RedrivenOracle(self.kernel)
        oracle.begun = {}
        self.bucket = BucketServer(self.kernel, self.faults, SINK, oracle, ttl=self.knobs.ttl, copies=self.knobs.copies)
        self.budget = FailureBudget(self.faults, self.knobs.max_retries)
        self.names.append("person")
        return oracle

    def prepare(self) -> None:
        host = Host(self.kernel, self.faults, "before", self.knobs.ttl, self.new_id)
        for n in range(self.scenario.partitions):
            row = new_lease(PIPELINE, Partition(f"p{n}"), self.new_id(), now=self.store.now(), index=n)
            never = Ownership(Status.UNASSIGNED, version=1, due_at=None)
            commit = Commit(len(COMMITS), MINE.number, "", "c2")
            self.store.add([replace(row, ownership=never, progress=Progress({"offset": END}), commit=commit)], host)
            for sequence, (start, end) in enumerate(COMMITS, 1):
                number = 1 + self.kernel.below(self.scenario.items)
                self._bury(row.key, start, number)
                self._write_manifest(row.key, sequence, start, end, number)

    def _write_manifest(self, key: str, sequence: int, start: int, end: int, letters: int) -> None:
        name = Name("stream", key)
        file: dict[str, Json] = {
            "key": dead_letter_key(name, 1, start),
            "rows": letters,
            "size": 1,
            "sha256": "letters",
        }
        manifest = Manifest(
            commit_id=f"c{sequence}",
            pipeline=PIPELINE,
            key=key,
            stream=name.stream,
            label=name.label,
            sequence=sequence,
            generation=1,
            incarnation="",
            token=1,
            start={"offset": start},
            end={"offset": end},
            files=({**file, "first": start, "last": start + letters - 1},),
        )
        self.bucket.objects[manifest_key(name, sequence)] = manifest.encode()

    def assemble(self, name: str, host: Host) -> Running:
        if name == "person":
            return Running(host, RangeReplacer(self, name, host, self.connect(host)), NoBatches())
        return super().assemble(name, host)

    @property
    def set_aside(self) -> list[Lease]:
        rows = self.oracle.rows.values()
        return [row for row in rows if row.pipeline == PIPELINE and not row.run and set_aside_for(row) is not None]

    @property
    def work_is_done(self) -> bool:
        return super().work_is_done and not self.set_aside

    def look_after(self) -> None:
        super().look_after()
        if self.set_aside:
            self.start("person")


class PipelineOfRedrives(SimulatedPipeline):
    """A version of the parsing, in a pipeline whose letters are sent again."""

    runs: Runs
    sink: FilesSink
    host: Host
    store: StoreClient

    def fence_redrives(self) -> None:
        replace_plan.fence_redrives(self.runs, self._rows_of, self._key, {SINK: self.sink})

    def _rows_of(self, run: str) -> Operator:
        return Operator(self.store, self.host.world.new_id, PIPELINE, run)


class RangeReplacer:
    """Replaces a part of each partition once, and finishes what was begun."""

    def __init__(self, site: RedrivenSite, name: str, host: Host, store: StoreClient) -> None:
        self._site = site
        self._name = name
        self._host = host
        self._store = store
        self._stopping = False

    def stop(self) -> None:
        self._stopping = True

    def run(self) -> None:
        site, host = self._site, self._host
        trouble = (Unavailable, PartitionError, UsageError, Refused, Halt)
        while not self._stopping and (site.set_aside or self._left()):
            host.wait(site.knobs.ttl * 2 * host.kernel.random())
            try:
                self._act()
            except trouble as error:
                host.kernel.note(host.name, "tries again later", repr(error))

    def _left(self) -> list[str]:
        site = self._site
        keys = [f"p{n}" for n in range(site.scenario.partitions)]
        return [key for key in keys if key not in site.oracle.begun] if site.faults.active else []

    def _act(self) -> None:
        site, host, knobs = self._site, self._host, self._site.knobs
        begun = site.set_aside
        left = [begun[0].key] if begun else self._left()
        if not left:
            return
        key = left[host.kernel.below(len(left))]
        operator = Operator(self._store, host.world.new_id, PIPELINE)
        generations = Generations(self._store, host.world.new_id, PIPELINE)
        generations.register(MINE, switch=True)
        bucket = BucketClient(site.bucket, host, knobs.latency, knobs.ttl)
        pipeline = PipelineOfRedrives(operator, generations, key)
        session = session_of(self._name, host, self._store, knobs)
        pipeline.runs = Runs(Coordinator(self._store, host.world, session, PIPELINE, policy=ClaimPolicy()))
        pipeline.sink, pipeline.host, pipeline.store = FilesSink(SINK, bucket), host, self._store
        request = SimulatedRewind("stream", int(key[1:]), str(host.kernel.below(END)))
        Replacement(
            request,
            pipeline,
            operator=operator,
            generations=generations,
            roots={SINK: bucket},
            emit=host.world.emit,
            clock=host,
        ).carry_out()
        host.faults.strike("Replaced")
