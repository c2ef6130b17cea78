"""A world of one seed: nodes over one store, one source and their buckets, and a nemesis that troubles them."""

from __future__ import annotations

import itertools

from holdfast.errors import Interrupted
from holdfast.flow.batch import Limits
from holdfast.flow.loop import LoopSettings, PipelineLoop
from holdfast.flow.node import Node
from holdfast.leases.coordinator import ClaimPolicy, Coordinator
from holdfast.leases.discovery import discovery_of
from holdfast.leases.lease import FINISHED, Lease, Ownership, Partition, Status, new_lease
from holdfast.leases.session import NodeInfo, Session, SessionTiming
from holdfast.leases.transitions import RetryLimits
from holdfast.sinks.files.sink import FilesSink
from tests.simulation.bucket import BucketClient, BucketServer
from tests.simulation.engine import FailureBudget, SimulatedEngine
from tests.simulation.faults import Faults
from tests.simulation.files_oracle import FilesOracle
from tests.simulation.host import Host
from tests.simulation.kernel import Crash, Kernel, Trace
from tests.simulation.nemesis import Nemesis
from tests.simulation.oracle import NODES, PIPELINE, nobody_works
from tests.simulation.scenario import Scenario, draw_data, draw_knobs
from tests.simulation.source import SimulatedSource
from tests.simulation.store import ClaimingStoreClient, StoreClient
from tests.simulation.store_server import StoreServer
from tests.simulation.streams import StreamEngine, StreamSource
from tests.simulation.streams_oracle import StreamsOracle

PATIENCE_TTLS = 60.0
PATIENCE = 400.0
"""After the last fault all work must be done within that many TTLs and seconds."""


class Running:
    """A node's process and what the nemesis needs of it."""

    def __init__(self, host: Host, node: Node, engine: SimulatedEngine | StreamEngine) -> None:
        self.host = host
        self.node = node
        self.engine = engine
        self.stopped = False


class Fleet:
    """Builds the world and runs it to its end."""

    def __init__(self, scenario: Scenario, seed: int, trace: Trace | None = None) -> None:
        self.kernel = Kernel(f"{scenario.name}-{seed}", trace)
        self.faults = Faults(self.kernel.dice, scenario.kinds)
        self.knobs = draw_knobs(self.kernel, scenario)
        self.data = draw_data(self.kernel, scenario, self.faults, self.knobs)
        self.oracle: FilesOracle | StreamsOracle
        self._buckets: dict[str, BucketServer] = {}
        if scenario.streams:
            self.oracle = StreamsOracle(self.kernel, self.data, self.knobs.window)
        else:
            self.oracle = files = FilesOracle(self.kernel, self.data, self.knobs.max_retries)
            self._buckets = {f"sink{n}": self._bucket(f"sink{n}", files) for n in range(scenario.sinks)}
        self.store = StoreServer(self.kernel, self.faults, self.oracle, self.knobs.ttl)
        self.nodes: dict[str, Running] = {}
        self._all: list[Running] = []
        self.names = [f"n{n}" for n in range(scenario.nodes)]
        self.endless = self.data.rediscover_after is not None
        self._budget = FailureBudget(self.faults, self.knobs.max_retries)
        self._ids = itertools.count(1)
        self._runs = itertools.count(1)
        self._nemesis = Nemesis(self)
        self.oracle.owner_works = self._works_on

    def run(self) -> str | None:
        """Everything from the first node to the last event; answers the violation, if there was one."""
        try:
            if self.data.known:
                self._make_partitions()
            for name in self.names:
                self.kernel.after(self.knobs.starts_within * self.kernel.random(), self.start, name)
            self._nemesis.begin()
            self.kernel.run(self.knobs.quiet_at + PATIENCE_TTLS * self.knobs.ttl + PATIENCE)
            self._judge_end()
        except Crash:
            pass
        finally:
            self._dismantle()
        return self.oracle.violation

    def _dismantle(self) -> None:
        """End what still runs, and cut the circles of references: collecting them would take a tenth of the time."""
        self.kernel.halt()
        self.kernel.lives.clear()
        processes = [process for running in self._all for process in running.host.processes]
        for process in processes:
            process.kill()
        for ended in (*processes, *(running.host for running in self._all)):
            vars(ended).clear()
        self._all.clear()
        self.nodes.clear()
        vars(self._nemesis).clear()
        vars(self.store).clear()
        self.oracle.owner_works = nobody_works

    def _judge_end(self) -> None:
        for running in self._all:
            self._require_no_failure(running)
        if self.hosts:
            unfinished = [(row.key, str(row.status)) for row in self._rows() if row.status not in FINISHED]
            self.oracle.fail(f"{[host.name for host in self.hosts]} find no end; unfinished: {unfinished}")
        self.oracle.judge_end()

    def _require_no_failure(self, running: Running) -> None:
        for process in running.host.processes:
            if process.failure is not None:
                self.oracle.fail(f"{running.host.name} ended by {process.failure!r}")

    def _rows(self) -> list[Lease]:
        return [row for key, row in self.oracle.rows.items() if key.pipeline == PIPELINE]

    @property
    def work_is_done(self) -> bool:
        rows = self._rows()
        # A rollback may take rows away that discovery had just added, and leave it in the belief that they are there.
        exhausted = self.oracle.rows.get(discovery_of(PIPELINE))
        lost = self.oracle.rollbacks > 0 and exhausted is not None and exhausted.status is Status.COMPLETED
        return (lost or len(rows) == len(self.data.items)) and all(row.status in FINISHED for row in rows)

    def _make_partitions(self) -> None:
        """Discovery has been here before: its row is complete, and every partition has one."""
        now, host = self.store.now(), Host(self.kernel, self.faults, "before", self.knobs.ttl, self._new_id)
        rows = [
            new_lease(PIPELINE, Partition(key), self._new_id(), now=now, index=index)
            for index, key in enumerate(self.data.items)
        ]
        place = discovery_of(PIPELINE)
        done = Ownership(Status.COMPLETED, version=1, due_at=None)
        self.store.add([*rows, Lease(place.pipeline, place.key, ownership=done)], host)

    # --- nodes ----------------------------------------------------------------------------------------------------

    @property
    def hosts(self) -> list[Host]:
        return [running.host for running in self.nodes.values() if running.host.running]

    @property
    def buckets(self) -> list[BucketServer]:
        return list(self._buckets.values())

    def start(self, name: str) -> None:
        """Start the node's process, unless one runs or there is nothing left to do."""
        before = self.nodes.get(name)
        if (before is not None and before.host.running) or (not self.faults.active and self.work_is_done):
            return
        host = Host(self.kernel, self.faults, f"{name}.{next(self._runs)}", self.knobs.ttl, self._new_id)
        host.on_crash = lambda: self._nemesis.restart_later(name)
        running = self._assemble(name, host)
        self.nodes[name] = running
        self._all.append(running)
        host.spawn(lambda: self._live(name, running))
        self.kernel.note(host.name, "start")

    def stop(self, host: Host) -> None:
        """Ask the process to stop, as a signal would."""
        for running in self.nodes.values():
            if running.host is host and not running.stopped:
                running.stopped = True
                running.node.stop()
                host.ask_to_stop(within=self.knobs.ttl * 3)
                self.kernel.note(host.name, "asked to stop")

    def _live(self, name: str, running: Running) -> None:
        try:
            running.node.run()
        except Interrupted:
            self.kernel.note(running.host.name, "interrupted")
        running.host.end()
        if running.stopped:
            self._nemesis.restart_later(name)

    def _new_id(self) -> str:
        return f"i{next(self._ids)}"

    def _assemble(self, name: str, host: Host) -> Running:
        knobs = self.knobs
        client = ClaimingStoreClient if knobs.claims_in_one else StoreClient
        store = client(self.store, host, knobs.latency, knobs.ttl)
        timing = SessionTiming(knobs.ttl, knobs.heartbeat, knobs.ttl / 10)
        session = Session(store, host.world, NODES, NodeInfo(name, host.name, (PIPELINE,)), timing)
        limits = RetryLimits(knobs.max_retries, 1 << 30, knobs.backoff, knobs.ttl * 4)
        coordinator = Coordinator(store, host.world, session, PIPELINE, policy=ClaimPolicy(limits=limits))
        engine = self._engine(host)
        sources = StreamSource if isinstance(self.oracle, StreamsOracle) else SimulatedSource
        source = sources(self.data, host, knobs.ttl, knobs.largest_cut)
        sinks = {
            name: FilesSink(name, BucketClient(bucket, host, knobs.latency, knobs.ttl))
            for name, bucket in self._buckets.items()
        }
        settings = LoopSettings(
            Limits(timeout=knobs.batch_timeout), max_batches=knobs.max_batches, step_limit=knobs.step_limit
        )
        loop = PipelineLoop(coordinator, source, sinks, engine, settings)
        return Running(host, Node(session, [loop], engine, host.world, grace=knobs.grace), engine)

    def _engine(self, host: Host) -> SimulatedEngine | StreamEngine:
        knobs, oracle = self.knobs, self.oracle
        if isinstance(oracle, StreamsOracle):
            return StreamEngine(host, self.data, self._budget, oracle, ttl=knobs.ttl, window=knobs.window)
        return SimulatedEngine(host, self._buckets, self.data.poison, self._budget, ttl=knobs.ttl, rounds=knobs.rounds)

    def _bucket(self, sink: str, oracle: FilesOracle) -> BucketServer:
        bucket = BucketServer(self.kernel, self.faults, sink, oracle, ttl=self.knobs.ttl, copies=self.knobs.copies)
        oracle.add_bucket(bucket)
        return bucket

    def _works_on(self, host: Host, lease: Lease) -> bool:
        return any(running.host is host and running.engine.works_on(lease) for running in self.nodes.values())
