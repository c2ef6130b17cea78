"""A world of pipelines: nodes that run the whole loop over one source and their buckets."""

from __future__ import annotations

from collections.abc import Callable

from holdfast.finalize.finalizer import finalizers
from holdfast.flow.batch import Limits, Tolerance
from holdfast.flow.generations import NodeGeneration
from holdfast.flow.loop import LoopSettings, PipelineLoop
from holdfast.flow.node import Node
from holdfast.flow.pipeline import Pipeline
from holdfast.flow.sink import Sink
from holdfast.leases.coordinator import ClaimPolicy, Coordinator
from holdfast.leases.discovery import discovery_of
from holdfast.leases.lease import FINISHED, Lease, Ownership, Partition, Status, new_lease
from holdfast.leases.session import NodeInfo, Session, SessionTiming
from holdfast.leases.transitions import RetryLimits
from holdfast.sinks.files.sink import FilesSink
from tests.simulation.bucket import BucketClient, BucketServer
from tests.simulation.engine import SHELVES, FailureBudget, SimulatedEngine
from tests.simulation.files_oracle import FilesOracle
from tests.simulation.host import Host
from tests.simulation.kernel import Trace
from tests.simulation.oracle import PIPELINE, Oracle
from tests.simulation.scenario import Scenario, draw_data
from tests.simulation.session_rules import NODES
from tests.simulation.site import Running, Site
from tests.simulation.source import Data, SimulatedSource
from tests.simulation.store import StoreClient
from tests.simulation.streams import StreamEngine, StreamSource
from tests.simulation.streams_oracle import StreamsOracle


class Fleet(Site):
    """Nodes of one pipeline, into files or as a stream of acknowledged records."""

    engine_type: type[SimulatedEngine] = SimulatedEngine
    tolerance: Tolerance | None = None

    def __init__(self, scenario: Scenario, seed: int, trace: Trace | None = None) -> None:
        self._buckets: dict[str, BucketServer] = {}
        super().__init__(scenario, seed, trace)
        self._budget = FailureBudget(self.faults, self.knobs.max_retries)

    def make_oracle(self) -> Oracle:
        self.data = self.draw_data()
        if self.scenario.streams:
            return StreamsOracle(self.kernel, self.data, self.knobs.window)
        files = self.files_oracle()
        self._buckets = {f"sink{n}": self._bucket(f"sink{n}", files) for n in range(self.number_of_buckets)}
        return files

    @property
    def number_of_buckets(self) -> int:
        return self.scenario.sinks

    def draw_data(self) -> Data:
        return draw_data(self.kernel, self.scenario, self.faults, self.knobs)

    def files_oracle(self) -> FilesOracle:
        return FilesOracle(self.kernel, self.data, self.knobs.max_retries)

    def _rows(self) -> list[Lease]:
        return [row for key, row in self.oracle.rows.items() if key.pipeline == PIPELINE]

    @property
    def shown(self) -> object:
        return self.data

    @property
    def unfinished(self) -> object:
        return [(row.key, str(row.status)) for row in self._rows() if row.status not in FINISHED]

    @property
    def work_is_done(self) -> bool:
        rows = self._rows()
        # A rollback may take rows away that discovery had just added, and leave it in the belief that they are there.
        exhausted = self.oracle.rows.get(discovery_of(PIPELINE))
        lost = self.oracle.rollbacks > 0 and exhausted is not None and exhausted.status is Status.COMPLETED
        return (lost or len(rows) == len(self.data.items)) and all(row.status in FINISHED for row in rows)

    @property
    def endless(self) -> bool:
        return self.data.rediscover_after is not None

    def prepare(self) -> None:
        """Discovery may have been here before: its row is complete, and every partition has one."""
        if not self.data.discovered:
            return
        now, host = self.store.now(), Host(self.kernel, self.faults, "before", self.knobs.ttl, self.new_id)
        rows = [
            new_lease(PIPELINE, Partition(key), self.new_id(), now=now, index=index)
            for index, key in enumerate(self.data.items)
        ]
        row_key = discovery_of(PIPELINE)
        done = Ownership(Status.COMPLETED, version=1, due_at=None)
        self.store.add([*rows, Lease(row_key.pipeline, row_key.key, ownership=done)], host)

    def look_after(self) -> None:
        """Start what does not run, where replicas are fixed: the shares of those that are missing stay free."""
        for name in self.names if self.scenario.replicas else ():
            self.start(name)

    # --- nodes ----------------------------------------------------------------------------------------------------

    @property
    def buckets(self) -> list[BucketServer]:
        return list(self._buckets.values())

    def assemble(self, name: str, host: Host) -> Running:
        return self.assemble_with(name, host, self.connect(host))

    def assemble_with(
        self,
        name: str,
        host: Host,
        store: StoreClient,
        generation: NodeGeneration | None = None,
        may_claim: Callable[[], bool] = lambda: True,
    ) -> Running:
        """A node on that connection; `generation` and `may_claim` as the loop is given them."""
        knobs = self.knobs
        timing = SessionTiming(knobs.ttl, knobs.heartbeat, knobs.ttl / 10)
        session = Session(store, host.world, NODES, NodeInfo(name, host.name, (PIPELINE,)), timing)
        coordinator = Coordinator(store, host.world, session, PIPELINE, policy=ClaimPolicy(limits=self.limits))
        engine = self.engine(name, host)
        settings = LoopSettings(
            Limits(timeout=knobs.batch_timeout),
            max_batches=knobs.max_batches,
            replicas=self.scenario.replicas,
            step_limit=knobs.step_limit,
            tolerance=self.tolerance,
        )
        source, sinks = self.make_source(host), self.sinks(host)
        loop = PipelineLoop(
            coordinator,
            Pipeline(source, (), sinks),
            engine,
            settings=settings,
            may_claim=may_claim,
            generation=generation,
            duties=finalizers(coordinator, source, sinks),
        )
        return Running(host, Node(session, [loop], engine, host.world, grace=knobs.grace), engine)

    @property
    def limits(self) -> RetryLimits:
        knobs = self.knobs
        return RetryLimits(knobs.max_retries, 1 << 30, knobs.backoff, knobs.ttl * 4)

    def make_source(self, host: Host) -> SimulatedSource:
        made = StreamSource if isinstance(self.oracle, StreamsOracle) else SimulatedSource
        return made(self.data, host, self.knobs.ttl, self.knobs.largest_cut)

    def sinks(self, host: Host) -> dict[str, Sink]:
        return {name: FilesSink(name, self._reached(bucket, host)) for name, bucket in self._buckets.items()}

    def parser_of(self, name: str) -> str:
        """Digest of the parsing that a node has, which is started now."""
        return ""

    def engine(self, name: str, host: Host) -> SimulatedEngine | StreamEngine:
        knobs, oracle = self.knobs, self.oracle
        if isinstance(oracle, StreamsOracle):
            return StreamEngine(host, self.data, self._budget, oracle, ttl=knobs.ttl, window=knobs.window)
        return self.files_engine(name, host)

    def files_engine(self, name: str, host: Host) -> SimulatedEngine:
        knobs = self.knobs
        return self.engine_type(
            host,
            self._buckets,
            self.data.poison,
            self._budget,
            ttl=knobs.ttl,
            rounds=knobs.rounds,
            parser=self.parser_of(name),
            losing=self.data if self.scenario.losing else None,
            fail=self.oracle.fail,
            shelves=self.scenario.items if self.scenario.wide else SHELVES,
        )

    def _reached(self, bucket: BucketServer, host: Host) -> BucketClient:
        client = BucketClient(bucket, host, self.knobs.latency, self.knobs.ttl)
        if self.scenario.wide:
            client.portion, client.seconds_per_file = 3, 0.1 * self.knobs.ttl
        return client

    def _bucket(self, sink: str, oracle: FilesOracle) -> BucketServer:
        bucket = BucketServer(self.kernel, self.faults, sink, oracle, ttl=self.knobs.ttl, copies=self.knobs.copies)
        oracle.add_bucket(bucket)
        return bucket
