"""A store whose clock and answers a test controls, and nodes on it."""

from __future__ import annotations

from typing import Any

from holdfast.leases.coordinator import ClaimPolicy, Coordinator
from holdfast.leases.lease import Key, Lease, Partition
from holdfast.leases.session import NodeInfo, Session, SessionTiming, nodes_of
from holdfast.leases.source_coordinator import SourceCoordinator
from holdfast.stores.memory import MemoryStore
from holdfast.testing.faults import LossyStore
from holdfast.testing.rows import PIPELINE
from holdfast.testing.worlds import FakeWorld, TurnableClock, make_world


class Node:
    """A node with a joined session; its clock is the rig's own."""

    def __init__(self, rig: Rig, name: str, policy: ClaimPolicy) -> None:
        self.world: FakeWorld = make_world(name, clock=rig.node_clock)
        self.session = Session(rig.store, self.world, nodes_of(""), NodeInfo(name, name), rig.timing)
        self.session.join()
        self.leases = Coordinator(rig.store, self.world, self.session, PIPELINE, policy=policy)

    def source(self, **settings: Any) -> SourceCoordinator:
        return SourceCoordinator(self.leases.store, self.world, self.session, PIPELINE, **settings)


class Rig:
    def __init__(self) -> None:
        self.clock = TurnableClock()
        self.node_clock = TurnableClock(50.0)
        self.table = MemoryStore(now=self.clock.monotonic)
        self.store = LossyStore(self.table)
        self.timing = SessionTiming(timeout=30.0, heartbeat=10.0, margin=2.0)

    def node(self, name: str = "a", policy: ClaimPolicy | None = None) -> Node:
        return Node(self, name, policy or ClaimPolicy())

    def pass_time(self, seconds: float, *alive: Node) -> None:
        """Both clocks go on while these nodes renew their sessions."""
        for _ in range(10):
            self.clock.turn(seconds / 10)
            self.node_clock.turn(seconds / 10)
            for node in alive:
                node.session.heartbeat()

    def row(self, key: str, pipeline: str = PIPELINE) -> Lease:
        (row,) = self.table.get([Key(pipeline, "", key)])
        assert row is not None
        return row

    def held(self, node: Node, key: str = "k", **fields: Any) -> Lease:
        """A new partition in the hands of that node."""
        node.leases.create([Partition(key, **fields)])
        (lease,) = node.leases.claim(1)
        return lease
