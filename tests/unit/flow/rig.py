"""A node's loop over a store in memory, moved turn by turn."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Mapping
from typing import Any

from holdfast.buckets.bucket import Bucket
from holdfast.errors import Interrupted
from holdfast.events import Event
from holdfast.finalize.finalizer import finalizers
from holdfast.flow.batch import Limits, Tolerance
from holdfast.flow.engine import Report
from holdfast.flow.generations import NodeGeneration
from holdfast.flow.loop import LoopSettings, PipelineLoop
from holdfast.flow.node import Node
from holdfast.flow.pipeline import Pipeline
from holdfast.flow.sink import Sink
from holdfast.leases.coordinator import ClaimPolicy, Coordinator
from holdfast.leases.lease import Key, Lease
from holdfast.leases.session import NodeInfo, Session, SessionTiming
from holdfast.leases.store import Store
from holdfast.leases.transitions import RetryLimits
from holdfast.leases.world import World
from holdfast.sinks.files.sink import FilesSink
from holdfast.stores.memory import MemoryStore
from holdfast.testing.flows import HandEngine, MemoryBucket, NumbersSource

PIPELINE = "numbers"


class TestClock:
    """Time that passes only when the test, or a wait, says so."""

    __test__ = False

    def __init__(self) -> None:
        self.time = 1000.0
        self.interrupted = False

    def monotonic(self) -> float:
        return self.time

    def wait(self, seconds: float) -> None:
        if self.interrupted:
            raise Interrupted("the time for stopping is over")
        self.time += seconds


class NoThread:
    def join(self, timeout: float) -> None:
        return


class Fleet:
    """What nodes share: clock, store, buckets."""

    def __init__(self, sizes: Mapping[str, int], sinks: tuple[str, ...] = ("files",)) -> None:
        self.clock = TestClock()
        self.store: Store = MemoryStore(self.clock.monotonic)
        self.source = NumbersSource(sizes)
        self.buckets = {name: MemoryBucket() for name in sinks}
        self.events: list[Event] = []
        self.ids = map("{:032x}".format, itertools.count(1))

    def row(self, key: str) -> Lease:
        (row,) = self.store.get([Key(PIPELINE, "", key)])
        assert row is not None
        return row

    def emitted(self, kind: type[Event]) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]

    def visible(self, sink: str = "files") -> list[int]:
        """Every number that a reader of that sink sees, in order of file name."""
        data = self.buckets[sink].data()
        return [int(line) for key in sorted(data) for line in data[key].split()]

    def visible_of(self, partition: str) -> list[int]:
        """The same for one partition alone."""
        data = self.buckets["files"].data()
        return [int(line) for key in sorted(data) if f"_{partition}_" in key for line in data[key].split()]


class WakingEngine(HandEngine):
    """An engine whose `poll` lets time pass, does what runs in the background, and then follows the test's script."""

    def __init__(self, node: TestNode) -> None:
        super().__init__()
        self.script: Callable[[], None] = lambda: None
        self._node = node

    def poll(self, timeout: float) -> list[Report]:
        if timeout:
            self._node.fleet.clock.wait(timeout)
            self._node.run_background()
            self.script()
        return super().poll(timeout)


class TestNode:
    """One node with its own session, engine and sinks."""

    __test__ = False

    def __init__(
        self,
        fleet: Fleet,
        name: str = "a",
        *,
        limits: Limits = Limits(),
        retries: RetryLimits = RetryLimits(),
        generation: int = 1,
        replicas: int = 0,
        max_batches: int = 100,
        sinks: Callable[[str, Bucket], Sink] = FilesSink,
        followed: NodeGeneration | None = None,
        tolerance: Tolerance | None = Tolerance(),
    ) -> None:
        self.fleet = fleet
        self.engine = WakingEngine(self)
        self.background: list[Callable[[], None]] = []
        self.world = World(fleet.clock, lambda: next(fleet.ids), random.Random(1), self._later, fleet.events.append)
        self.session = Session(fleet.store, self.world, "$nodes", NodeInfo(name, name, (PIPELINE,)), SessionTiming())
        self.coordinator = Coordinator(
            fleet.store, self.world, self.session, PIPELINE, policy=ClaimPolicy(limits=retries)
        )
        built = {sink: sinks(sink, bucket) for sink, bucket in fleet.buckets.items()}
        self.loop = PipelineLoop(
            self.coordinator,
            Pipeline(fleet.source, (), built),
            self.engine,
            settings=LoopSettings(limits, max_batches, generation, replicas, tolerance=tolerance),
            generation=followed,
            duties=finalizers(self.coordinator, fleet.source, built),
        )
        self.node = Node(self.session, [self.loop], self.engine, self.world)

    def _later(self, work: Callable[[], None]) -> NoThread:
        self.background.append(work)
        return NoThread()

    def join(self) -> TestNode:
        self.session.join()
        return self

    def turn(self, times: int = 1) -> None:
        """One turn of the loop, after what runs beside it (discovery) is done."""
        for _ in range(times):
            self.loop.turn(self.engine.poll(0), lambda _name, _limit: None)
            self.run_background()

    def run_background(self) -> None:
        """What runs beside the loop: discovery. The keeper never ends and is left out."""
        while self.background:
            work = self.background.pop()
            if "Keeper" not in work.__qualname__:
                work()

    def start(self) -> TestNode:
        """Join, find the partitions and have their first batches out."""
        self.join().turn()
        self.turn()
        return self

    def stage(self, key: str, letters: int = 0) -> None:
        self.engine.stage(key, self.fleet.buckets, letters)
