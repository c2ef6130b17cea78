"""Nodes on a store in DynamoDB, without a loop."""

from __future__ import annotations

import time

from holdfast.leases.coordinator import ClaimPolicy, Coordinator
from holdfast.leases.session import NodeInfo, Session, SessionTiming
from holdfast.stores.dynamodb.store import DynamodbStore
from holdfast.testing.rows import PIPELINE
from holdfast.testing.worlds import TurnableClock, make_world


def node_on(store: DynamodbStore, name: str = "a") -> Coordinator:
    """Leases in the hands of a node that has joined; its waits take a hundredth of a second each."""
    clock = TurnableClock()
    clock.on_wait = lambda: time.sleep(0.01)
    world = make_world(name, clock=clock)
    session = Session(store, world, "$nodes", NodeInfo(name, name, (PIPELINE,)), SessionTiming())
    session.join()
    return Coordinator(store, world, session, PIPELINE, policy=ClaimPolicy())
