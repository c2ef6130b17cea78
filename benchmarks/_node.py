"""A whole node in this process, and lines of JSON for it to read: what several benchmarks share."""

from __future__ import annotations

import json
import random
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.events import Event, PartitionCompleted
from holdfast.flow.loop import LoopSettings, PipelineLoop
from holdfast.flow.node import Node
from holdfast.flow.pipeline import Pipeline
from holdfast.leases.coordinator import ClaimPolicy, Coordinator
from holdfast.leases.session import NodeInfo, Session, SessionTiming
from holdfast.leases.store import Store
from holdfast.leases.world import host_world
from holdfast.spark.engine import SparkEngine
from holdfast.stores.sqlite import SqliteStore

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SCHEMA = (
    "id BIGINT, time TIMESTAMP, level STRING, host STRING, user BIGINT, bytes BIGINT, latency DOUBLE, message STRING"
)


def node_of(
    spark: SparkSession,
    store: Store,
    name: str,
    pipeline: Pipeline,
    note: Callable[[Event], None],
    heartbeat: float = 1.0,
) -> Node:
    """A node that runs one pipeline until it is done or stopped; `note` hears of its events."""
    world = host_world(note)
    session = Session(
        store, world, "$nodes", NodeInfo("bench", "bench", pipelines=(name,)), SessionTiming(heartbeat=heartbeat)
    )
    engine = SparkEngine(spark, {name: pipeline})
    coordinator = Coordinator(store, world, session, name, policy=ClaimPolicy())
    loop = PipelineLoop(coordinator, pipeline, engine, settings=LoopSettings())
    return Node(session, [loop], engine, world)


def completed_in(spark: SparkSession, name: str, pipeline: Pipeline, partitions: int, heartbeat: float = 1.0) -> float:
    """Seconds of one node from its start, with an empty store, until the last partition is published and COMPLETED.

    What comes after, looking for more and leaving, depends on the heartbeat and not on the data.
    """
    completed: list[float] = []

    def note(event: Event) -> None:
        if isinstance(event, PartitionCompleted):
            completed.append(time.perf_counter())

    with tempfile.TemporaryDirectory() as leases:
        store = SqliteStore(Path(leases, "leases.db"))
        store.open()
        pipeline.source.open()
        for sink in pipeline.sinks.values():
            sink.open(name, durable=True)
        node = node_of(spark, store, name, pipeline, note, heartbeat)
        began = time.perf_counter()
        node.run()
        for sink in pipeline.sinks.values():
            sink.close()
        pipeline.source.close()
        store.close()
    if len(completed) != partitions:
        raise RuntimeError(f"{len(completed)} of {partitions} partitions are completed")
    return completed[-1] - began


def log_line(row: int, dice: random.Random) -> bytes:
    """A JSON object of about 170 bytes, as `SCHEMA` says."""
    record = {
        "id": row,
        "time": f"2024-05-{row % 28 + 1:02d}T{row % 24:02d}:{row % 60:02d}:{row * 7 % 60:02d}Z",
        "level": ("INFO", "WARN", "ERROR", "DEBUG")[row % 4],
        "host": f"host-{row % 200}",
        "user": dice.randrange(10**9),
        "bytes": dice.randrange(10**6),
        "latency": round(dice.random() * 1000, 3),
        "message": f"request {dice.randrange(10**6)} served",
    }
    return json.dumps(record, separators=(",", ":")).encode() + b"\n"
