"""A world in which people send dead letters again: each command is a run, driven by the product's own driver.

What must hold: no letter is committed by two runs, none becomes visible twice, nothing is visible that no commit has
decided. What must come about: in the end every letter was sent, whichever commands have died on the way.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from holdfast.assemble import StoredPipeline
from holdfast.deadletters.letter_files import FileLetters
from holdfast.deadletters.source import LettersSource, letter_ids, sent_ids
from holdfast.errors import Halt, LeaseLost, PartitionError, Refused, Unavailable, UsageError
from holdfast.flow.batch import Batch, Limits, Name
from holdfast.flow.fault import dead_letter, record_fault
from holdfast.flow.letter import LetterId
from holdfast.flow.loop import LoopSettings
from holdfast.flow.names import dead_letter_key, file_key, staging_key
from holdfast.flow.node import Node
from holdfast.flow.partition_list import LIMITS
from holdfast.flow.pipeline import Pipeline
from holdfast.flow.run import ENDED, Run, run_of, runs_of
from holdfast.flow.run_driver import RunDriver
from holdfast.flow.runs import Runs
from holdfast.leases.coordinator import ClaimPolicy, Coordinator
from holdfast.leases.lease import Json, Key, Lease, Ownership, Partition, Status, new_lease
from holdfast.leases.operator import Operator
from holdfast.leases.transitions import RetryLimits
from holdfast.runs.execution import NewRun, RunCommand
from holdfast.runs.letter_selection import KIND, Choice, Waiting, of_sink
from holdfast.runs.lock import LockTiming
from holdfast.sinks.files.sink import FilesSink
from tests.simulation.bucket import BucketClient, BucketServer, DataFile
from tests.simulation.engine import FailureBudget, SimulatedEngine
from tests.simulation.host import Host
from tests.simulation.kernel import Kernel
from tests.simulation.oracle import PIPELINE, Oracle
from tests.simulation.site import NoBatches, Running, Site
from tests.simulation.source import offset_of
from tests.simulation.store import StoreClient
from tests.simulation.worker import session_of

SINK = "sink0"
LOCK_TTLS = 2.0
JOINS = 0.5
"""How likely somebody joins a run that goes on, instead of beginning another one."""
TROUBLE = (Unavailable, PartitionError, UsageError, Refused, Halt, LeaseLost)


class LettersOracle(Oracle):
    """Judges which letters were sent, and what readers see of them."""

    def __init__(self, kernel: Kernel) -> None:
        super().__init__(kernel)
        self.letters: dict[LetterId, tuple[str, int]] = {}
        """Partition and item of every letter."""
        self.sent: dict[LetterId, str] = {}
        """The run that has committed it."""
        self.seen: dict[tuple[str, int], str] = {}
        self._decided: set[tuple[str, str]] = set()
        self._manifests: set[str] = set()

    # --- the store's side -----------------------------------------------------------------------------------------

    def committed(self, before: Lease, row: Lease) -> None:
        start, end = offset_of(before.progress.position), offset_of(row.progress.position)
        for letter in letter_ids(row)[start:end]:
            if letter in self.sent:
                self.fail(f"{letter} was sent by {self.sent[letter]} and is sent again by {row.run}")
            self.sent[letter] = row.run
        self._decided |= {(file["key"], file["sha256"]) for file in (row.commit.receipts or {})[SINK]["files"]}

    def receipts_changed(self, before: Lease, row: Lease) -> None:
        for file in (before.commit.receipts or {})[SINK]["files"]:
            if row.commit.receipts is None and file["key"] not in self.seen.values():
                self.fail(f"{row.run} {row.key}: receipts cleared before {file['key']} is visible")

    # --- the bucket's side ----------------------------------------------------------------------------------------

    def created(self, sink: str, key: str, data: bytes) -> None:
        self._manifests.add(key)

    def became_visible(self, sink: str, key: str, file: DataFile) -> None:
        if (key, file.digest) not in self._decided:
            self.fail(f"{sink}: {key} is visible and no commit decided it")
        for item in file.items:
            if (file.partition, item) in self.seen:
                self.fail(f"item {item} of {file.partition} is in {self.seen[file.partition, item]} and in {key}")
            self.seen[file.partition, item] = key

    def discarded(self, sink: str, staged_key: str) -> None:
        """Leftovers; that nothing is lost shows in the end."""

    def moved(self, sink: str, key: str, file: DataFile) -> None:
        self.fail(f"{sink}: {key} with {file.items} was taken away")

    @property
    def all_sent(self) -> bool:
        return set(self.letters.values()) == self.seen.keys()

    def judge_end(self) -> None:
        missing = sorted(set(self.letters.values()) - self.seen.keys())
        if missing:
            self.fail(f"{missing} were never sent")


class LettersEngine(SimulatedEngine):
    """Executors that stage the records of letters under the items that they had."""

    letters: dict[LetterId, tuple[str, int]]

    def files(self, batch: Batch, bucket: BucketServer, end: int) -> list[dict[str, Json]]:
        ids = letter_ids(batch.lease)[offset_of(batch.cut.start) : end]
        items = [self.letters[letter][1] for letter in ids]
        lease, digest = batch.lease, f"{batch.lease.key}{items}"
        key = file_key(batch.name, lease.commit.generation, items[0], "jsonl")
        staged_key = staging_key(batch.name, lease.token, batch.id, "0")
        bucket.stage(staged_key, key, DataFile(lease.key, tuple(items), digest))
        figures = {"rows": len(items), "size": len(items), "first": items[0], "last": items[-1]}
        return [{"key": key, "sha256": digest, "staged": staged_key, **figures}]


class LettersAtRest(LettersSource):
    """Cuts as it comes, so that a run has several commits."""

    def __init__(self, box: FileLetters, host: Host) -> None:
        super().__init__(box, _ANY)
        self._host = host

    def plan(self, leases: Any, limits: Limits) -> Any:
        most = 1 + self._host.kernel.below(3)
        return super().plan(leases, Limits(max_records=most, timeout=limits.timeout))


_ANY: Any = SimpleNamespace(refusal=lambda _letter: None, keeps=None)
_SETTINGS: Any = SimpleNamespace(identifier=lambda _pipeline: PIPELINE)
_LIVE: Any = SimpleNamespace(name=lambda row: Name("stream", row.key))


@dataclass(frozen=True)
class SimulatedWaiting(Waiting):
    """The letters that wait, in a store that a host is connected to."""

    host: Host | None = None
    runs: Runs | None = None

    def _former(self) -> list[Run]:
        assert self.runs is not None
        return [run for run in self.runs.list() if of_sink(run, self.choice.sink)]

    def _rows(self, run: Run) -> Operator:
        assert self.host is not None
        return Operator(self.pipeline.store, self.host.world.new_id, PIPELINE, run.id)


class RedrivingSite(Site):
    """People who send letters again, beside and after each other."""

    oracle: LettersOracle

    def make_oracle(self) -> LettersOracle:
        oracle = self.judge()
        self.bucket = BucketServer(self.kernel, self.faults, SINK, oracle, ttl=self.knobs.ttl, copies=self.knobs.copies)
        self.budget = FailureBudget(self.faults, self.knobs.max_retries)
        return oracle

    def judge(self) -> LettersOracle:
        return LettersOracle(self.kernel)

    @property
    def buckets(self) -> list[BucketServer]:
        return [self.bucket]

    def prepare(self) -> None:
        """Partitions that are done, each with files of letters."""
        host = Host(self.kernel, self.faults, "before", self.knobs.ttl, self.new_id)
        for n in range(self.scenario.partitions):
            row = new_lease(PIPELINE, Partition(f"p{n}"), self.new_id(), now=self.store.now(), index=n)
            self.store.add([_completed(row)], host)
            for file in range(1 + self.kernel.below(2)):
                self._bury(row.key, 10 * file, 1 + self.kernel.below(self.scenario.items))

    def _bury(self, key: str, first: int, number: int) -> None:
        name = dead_letter_key(Name("stream", key), 1, first)
        fault = record_fault("bad", b"x")
        lines = [dead_letter(PIPELINE, key, first + n, fault) for n in range(number)]
        self.bucket.objects[name] = b"".join(lines)
        self.oracle.letters |= {LetterId(name, n): (key, first + n) for n in range(number)}

    def assemble(self, name: str, host: Host) -> Running:
        return Running(host, Sender(self, name, host, self.connect(host)), NoBatches())

    def look_after(self) -> None:
        """Interrupt commands whose run waits for the lock of another one: maybe nobody works on that one any more."""
        for running in self.nodes.values():
            if isinstance(running.node, Sender):
                running.node.give_up_waiting()

    def keeps_locks(self, run_id: str) -> bool:
        """Whether the run was driven by anybody; then its next driver is not kept waiting."""
        row = self.oracle.rows.get(Key(runs_of(PIPELINE), "", run_id))
        return row is not None and run_of(row).locked

    @property
    def unfinished(self) -> object:
        return sorted(set(self.oracle.letters.values()) - self.oracle.seen.keys())

    @property
    def work_is_done(self) -> bool:
        return self.oracle.all_sent and not self.somebody_sleeps


def _completed(row: Lease) -> Lease:
    return Lease(PIPELINE, row.key, ownership=Ownership(Status.COMPLETED, version=1, due_at=None), history=row.history)


class Sender:
    """Begins runs, or joins one, until nothing waits any more."""

    def __init__(self, site: RedrivingSite, name: str, host: Host, store: StoreClient) -> None:
        self._site = site
        self._name = name
        self._host = host
        self._store = store
        self._driver: Command | None = None
        self._stopping = False

    def stop(self) -> None:
        self._stopping = True
        if self._driver is not None:
            self._driver.stop()

    def give_up_waiting(self) -> None:
        """End a command whose run is not driven by any node, as a person would who sees no progress."""
        if self._driver is not None and not self._site.keeps_locks(self._driver.run_id):
            self._driver.stop()

    def run(self) -> None:
        kernel = self._host.kernel
        while not self._stopping and not self._site.oracle.all_sent:
            try:
                self._driver = Command(self._site, self._name, self._host, self._store)
                self._driver.carry_out(joins=kernel.random() < JOINS)
            except TROUBLE as trouble:
                kernel.note(self._host.name, "tries again later", repr(trouble))
            self._host.wait(self._site.knobs.ttl * kernel.random())


class SimulatedDriver(RunDriver):
    """Takes the letters that wait when the run is created."""

    def __init__(self, waiting: Waiting) -> None:
        self._waiting = waiting

    def partitions(self, run: Run) -> Waiting:
        return self._waiting


class Command:
    """One call of `holdfast deadletters redrive`, or one that joins its run, in a simulated process."""

    def __init__(self, site: RedrivingSite, name: str, host: Host, store: StoreClient) -> None:
        knobs = site.knobs
        self._site, self._host, self._store = site, host, store
        self._session = session_of(name, host, store, knobs)
        limits = RetryLimits(knobs.max_retries, 1 << 30, knobs.backoff, knobs.ttl)
        self._live = Coordinator(store, host.world, self._session, PIPELINE, policy=ClaimPolicy(limits=limits))
        self._runs = Runs(self._live)
        self._client = BucketClient(site.bucket, host, knobs.latency, knobs.ttl)
        self._node: Node | None = None
        self.run_id = f"{KIND}-{host.world.new_id()}"

    def stop(self) -> None:
        if self._node is not None:
            self._node.stop()

    def carry_out(self, *, joins: bool) -> None:
        going_on = [run for run in self._runs.list() if run.status not in ENDED and of_sink(run, SINK)]
        new = NewRun({"kind": KIND, "sink": SINK, "generation": 1}, "somebody")
        if joins and going_on:
            self.work_on(going_on[0].id)
        else:
            self.work_on(self.run_id, new)

    def work_on(self, run_id: str, new: NewRun | None = None) -> None:
        """Work on a run until it has ended; it is begun if it is a new one."""
        self.run_id = run_id
        box, sink = FileLetters(self._client), FilesSink(SINK, self._client)
        stored = StoredPipeline(_SETTINGS, self._store, PIPELINE)
        waiting = SimulatedWaiting(
            stored, Choice(SINK), box, _ANY, _LIVE, {SINK: sink}, host=self._host, runs=self._runs
        )
        work = self._work(Pipeline(LettersAtRest(box, self._host), (), {SINK: sink}), SimulatedDriver(waiting))
        work.new = new
        grace = self._site.knobs.grace
        self._node = Node(self._session, (), work.engine, self._host.world, grace=grace, companions=[work])
        self._node.run()
        rows = Operator(self._store, self._host.world.new_id, PIPELINE, self.run_id).rows()
        box.mark([letter for row in rows for letter in sent_ids(row)], self.run_id)

    def _work(self, built: Pipeline, driver: RunDriver) -> SimulatedCommand:
        site, knobs = self._site, self._site.knobs
        engine = LettersEngine(
            self._host, {SINK: site.bucket}, {}, site.budget, ttl=knobs.ttl, rounds=1, fail=site.oracle.fail
        )
        engine.letters = site.oracle.letters
        settings = LoopSettings(Limits(timeout=knobs.batch_timeout), step_limit=knobs.step_limit)
        pipeline: Any = SimpleNamespace(
            built=built,
            driver=driver,
            loop_settings=lambda: settings,
            lock_timing=LockTiming(LOCK_TTLS * knobs.ttl, knobs.ttl / 2),
            limits=LIMITS,
            one_node=False,
        )
        return SimulatedCommand(self._live, self.run_id, pipeline, engine)


class SimulatedCommand(RunCommand):
    def __init__(self, live: Coordinator, run_id: str, pipeline: Any, engine: LettersEngine) -> None:
        super().__init__(live, run_id, pipeline, engine)
        self.engine = engine
