"""A light node: the real node, loops, coordinators, files sink and store plugin, without Spark."""

from __future__ import annotations

import importlib
import os
import random
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import TextIO

from holdfast.events import (
    BatchCommitted,
    BatchPublished,
    Event,
    Heartbeat,
    NothingAcquired,
    PartitionAcquired,
    PartitionChanged,
    RoundSubmitted,
)
from holdfast.flow.batch import Limits
from holdfast.flow.engine import Engine
from holdfast.flow.loop import LoopSettings, PipelineLoop
from holdfast.flow.node import Node
from holdfast.flow.pipeline import Pipeline
from holdfast.leases.coordinator import ClaimPolicy, Coordinator
from holdfast.leases.session import NodeInfo, Session, SessionTiming, nodes_of
from holdfast.leases.store import ClaimingStore, Store
from holdfast.leases.transitions import RetryLimits
from holdfast.leases.world import HostClock, World, host_world
from holdfast.leases.writes import until_answered
from holdfast.sinks.files.sink import FilesSink
from tests.soak.broken import break_guard, break_table
from tests.soak.hazards import AimedHazards, Hazards, RiskyBucket, RiskyStore, RiskyTable
from tests.soak.orders import PULL, SHARE, SINK, Orders
from tests.soak.versions import TalkativeStore, upgrade_tables
from tests.soak.work import GrowingSource, LineEngine, PulledSource, SharedSource

STOP_WITHIN = 9.0
START_PATIENCE = 120.0
POLICY = ClaimPolicy(limits=RetryLimits(max_retries=1 << 20, max_takeovers=1 << 20, backoff=0.1, max_backoff=0.5))
"""A soak kills far more owners of a partition than any poison would."""
SETTINGS = {
    PULL: LoopSettings(Limits(max_records=5, timeout=10.0), max_batches=4, step_limit=10.0),
    SHARE: LoopSettings(Limits(max_records=20, timeout=10.0), step_limit=10.0),
}
_CHATTER = (
    BatchCommitted,
    BatchPublished,
    Heartbeat,
    NothingAcquired,
    PartitionAcquired,
    PartitionChanged,
    RoundSubmitted,
)


def run_node(orders: Orders, name: str, life: int) -> None:
    """Be that node until somebody ends it: 0 in order, 1 by an error. `life` tells one process of it from the next."""
    clock = HostClock()
    stop = _Stop(clock)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    dice = random.Random(f"{orders.seed} {name} {life}")
    with (Path(orders.folder) / f"{name}.log").open("a", buffering=1) as log:
        try:
            world = host_world(_teller(log), clock)
            store = _store(orders, dice)
            until_answered(world, "store", store.open, START_PATIENCE)
            stop.node = _node(orders, store, world, dice, name)
            stop.node.run()
            store.close()
        except Exception:
            traceback.print_exc(file=log)
            raise


class _Stop:
    """What SIGTERM does: as `holdfast run` does it."""

    def __init__(self, clock: HostClock) -> None:
        self._clock = clock
        self.node: Node | None = None

    def __call__(self, _signal: int, _frame: FrameType | None) -> None:
        if self.node is None:
            sys.exit(0)
        self._clock.ask_to_stop(STOP_WITHIN)
        self.node.stop()


def _store(orders: Orders, dice: random.Random) -> Store:
    if orders.next_version:
        upgrade_tables(orders.store)
    if "spill" in orders.settings:
        # Commits are small here, and all of them shall go that way.
        importlib.import_module(f"holdfast.stores.{orders.store}.receipts").SPILL_FROM = 0  # type: ignore[attr-defined]
    plugin = importlib.import_module(f"holdfast.stores.{orders.store}").PLUGIN
    store: Store = plugin.build(plugin.config.model_validate(dict(orders.settings)))
    if not isinstance(store, ClaimingStore):
        table = break_table(store, orders.broken)
        return break_guard(RiskyTable(table, _hazards(orders, dice)), orders.broken)
    if orders.next_version:
        store = TalkativeStore(store)
    return break_guard(RiskyStore(store, _hazards(orders, dice)), orders.broken)


def _hazards(orders: Orders, dice: random.Random) -> Hazards:
    if orders.aimed:
        return AimedHazards(Path(orders.aimed))
    return Hazards(dice, orders.hazard, orders.load.began + orders.load.seconds)


def _node(orders: Orders, store: Store, world: World, dice: random.Random, name: str) -> Node:
    info = NodeInfo(name, f"{name}:{os.getpid()}", (PULL, SHARE), generations=(1,))
    timing = SessionTiming(orders.timeout, orders.heartbeat, margin=orders.timeout / 10)
    session = Session(store, world, nodes_of(""), info, timing)
    buckets = {name: RiskyBucket(f"{orders.folder}/{name}", _hazards(orders, dice)) for name in (PULL, SHARE)}
    engine = LineEngine(buckets, dice, orders.hiccup)
    loops = [
        _loop(store, world, session, source, FilesSink(SINK, buckets[source.stream]), engine)
        for source in (PulledSource(orders.load), SharedSource(orders.load))
    ]
    return Node(session, loops, engine, world, grace=2.0)


def _loop(
    store: Store, world: World, session: Session, source: GrowingSource, sink: FilesSink, engine: Engine
) -> PipelineLoop:
    coordinator = Coordinator(store, world, session, source.stream, policy=POLICY)
    sink.open(source.stream, durable=True)
    return PipelineLoop(coordinator, Pipeline(source, (), {SINK: sink}), engine, settings=SETTINGS[source.stream])


def _teller(log: TextIO) -> Callable[[Event], None]:
    def emit(event: Event) -> None:
        if not isinstance(event, _CHATTER):
            log.write(f"{time.time():.3f} {os.getpid()} {event!r}\n")

    return emit
