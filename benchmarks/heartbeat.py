"""What it costs to keep leases: store writes per second of 20 nodes that hold 1,000 leases and do nothing else.

The real keepers run in virtual time. The bound is three heartbeats per session timeout and node, however many leases a
node holds; a store that renews each lease by itself would need fifty times as many.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Sequence

from benchmarks.harness import Comparison, compare
from holdfast.errors import Interrupted
from holdfast.leases.coordinator import ClaimPolicy, Coordinator
from holdfast.leases.keeper import Keeper
from holdfast.leases.lease import Partition
from holdfast.leases.session import NodeInfo, Session, SessionTiming
from holdfast.leases.store import Outcome, Swap
from holdfast.leases.world import Task, World
from holdfast.stores.memory import MemoryStore

NODES = 20
LEASES = 1_000
SECONDS = 3_600.0
TIMING = SessionTiming()


class CountingStore(MemoryStore):
    """Counts the rows that are written, and keeps the time of whoever calls it."""

    def __init__(self) -> None:
        self.time = 0.0
        self.writes = 0
        super().__init__(lambda: self.time)

    def swap(self, swaps: Sequence[Swap]) -> list[Outcome]:
        self.writes += len(swaps)
        return super().swap(swaps)


class NodeClock:
    """Virtual time of one node, which ends after an hour."""

    def __init__(self, store: CountingStore) -> None:
        self._store = store
        self._time = 0.0

    def monotonic(self) -> float:
        return self._time

    def wait(self, seconds: float) -> None:
        self._time += seconds
        self._store.time = self._time
        if self._time > SECONDS:
            raise Interrupted("the hour is over")


class Done:
    def join(self, timeout: float) -> None:
        return


def _at_once(work: Callable[[], None]) -> Task:
    work()
    return Done()


def _writes_of_a_node(store: CountingStore, number: int) -> int:
    ids = map(f"{number}-{{}}".format, itertools.count())
    world = World(NodeClock(store), lambda: next(ids), random.Random(number), _at_once, lambda _: None)
    store.time = 0.0
    session = Session(store, world, "$nodes", NodeInfo("node", f"n{number}"), TIMING)
    session.join()
    coordinator = Coordinator(store, world, session, "topics", policy=ClaimPolicy())
    coordinator.create(Partition(f"p{i}") for i in range(LEASES))
    held = coordinator.claim(LEASES // NODES)
    store.writes = 0
    keeper = Keeper(session, world)
    keeper.step("idle", 2 * SECONDS)
    keeper.start()
    if len(coordinator.owned()) != len(held):
        raise RuntimeError("a node lost its leases while it kept them")
    return store.writes


def run() -> list[Comparison]:
    store = CountingStore()
    writes = sum(_writes_of_a_node(store, number) for number in range(NODES))
    bound = NODES * 3 / TIMING.timeout
    return [compare("heartbeat", f"{LEASES} leases on {NODES} nodes", writes / SECONDS, bound, "writes/s", "<= 1")]
