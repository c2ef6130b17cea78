"""A topic on a real broker, a Spark session, and a whole node that archives the topic until it has caught up."""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks._node import node_of
from holdfast.events import BatchCommitted, BatchPublished, Event
from holdfast.flow.node import Node
from holdfast.flow.pipeline import Pipeline
from holdfast.flow.processor import Processor
from holdfast.leases.lease import Key, Lease
from holdfast.leases.query import Query
from holdfast.leases.store import ClaimRequest, Outcome, Snapshot, Swap
from holdfast.registry import Registry
from holdfast.sinks.files import PLUGIN as FILES
from holdfast.sources.kafka import PLUGIN as KAFKA
from holdfast.spark.connector import connector_jars
from holdfast.spark.session import start_session, stop_session
from holdfast.stores.sqlite import SqliteStore
from tests.servers.kafka import KafkaServer
from tests.servers.processes import running

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TOPIC = "events"
PARTITIONS = 8
FIRST_SECOND = 1_767_225_600
"""2026-01-01, in UTC."""
DAYS = 3
PIPELINE = "archive"


@dataclass(frozen=True)
class Site:
    """What the cases of a benchmark share."""

    spark: SparkSession
    kafka: KafkaServer
    messages: int
    folder: Path


@contextmanager
def site(messages: int, master: str = "local[2]") -> Iterator[Site]:
    """A broker with a topic of that many messages of about 150 bytes, and a session with the connector."""
    with tempfile.TemporaryDirectory() as folder, running(KafkaServer) as kafka:
        fill(kafka, messages)
        spark = start_session("bench", {"spark.driver.memory": "2g"}, master, connector_jars())
        try:
            yield Site(spark, kafka, messages, Path(folder))
        finally:
            stop_session(spark)


def fill(kafka: KafkaServer, messages: int) -> None:
    """Messages with a time in milliseconds each, in order, over three days."""
    kafka.create_topic(TOPIC, partitions=PARTITIONS)
    each = messages // PARTITIONS
    for partition in range(PARTITIONS):
        kafka.produce(TOPIC, (message(partition, number, each) for number in range(each)), partition=partition)


def message(partition: int, number: int, each: int) -> bytes:
    """One JSON message of about 150 bytes."""
    made_at = FIRST_SECOND * 1000 + number * DAYS * 86_400_000 // each
    return (
        b'{"id":%d,"ts":%d,"user":"user-%06d","action":"view","path":"/products/%05d/details","status":200,'
        b'"ms":%d,"agent":"Mozilla/5.0 (X11)","ref":"%08x"}'
    ) % (
        partition * each + number,
        made_at,
        number % 777_777,
        number % 9973,
        number % 1500,
        number * 2654435761 % 2**32,
    )


class CountedStore(SqliteStore):
    """Counts requests, as a store behind a network would see them."""

    requests = 0

    def add(self, leases: Sequence[Lease]) -> list[Outcome]:
        self.requests += 1
        return super().add(leases)

    def get(self, keys: Sequence[Key]) -> list[Lease | None]:
        self.requests += 1
        return super().get(keys)

    def find(self, query: Query) -> list[Lease]:
        self.requests += 1
        return super().find(query)

    def snapshot(self, pipeline: str, sessions: str, run: str = "") -> Snapshot:
        self.requests += 1
        return super().snapshot(pipeline, sessions, run)

    def swap(self, swaps: Sequence[Swap]) -> list[Outcome]:
        self.requests += 1
        return super().swap(swaps)

    def claim(self, request: ClaimRequest) -> list[Lease]:
        self.requests += 1
        return super().claim(request)


def through_a_node(
    where: Site, output: Path, file_format: Mapping[str, Any], processors: Sequence[Processor] = (), **more: Any
) -> tuple[float, int]:
    """Seconds of one node from its start, with an empty store, until the whole topic is visible; requests to the store.

    `more` are settings of the source.
    """
    upload = more.pop("upload", {"max_bytes": "64MiB", "max_age": "1s"})
    source = KAFKA.build(
        KAFKA.config.model_validate(
            {"bootstrap_servers": where.kafka.bootstrap, "topics": (TOPIC,), "upload": upload, **more}
        )
    )
    sink = FILES.build(
        "files", FILES.config.model_validate({"root": str(output), "format": file_format}), Registry.installed()
    )
    pipeline = Pipeline(source, processors, {sink.name: sink})
    with tempfile.TemporaryDirectory() as leases:
        store = CountedStore(Path(leases, "leases.db"))
        store.open()
        sink.open(PIPELINE, durable=True)
        seconds = _run(where, store, pipeline)
        source.close()
        sink.close()
        store.close()
    return seconds, store.requests


def _run(where: Site, store: SqliteStore, pipeline: Pipeline) -> float:
    progress = _Progress(where.messages)
    node = node_of(where.spark, store, PIPELINE, pipeline, progress)
    threading.Thread(target=_stop_when, args=(progress.done, node), daemon=True).start()
    began = time.perf_counter()
    node.run()
    return progress.finished_at - began


def _stop_when(done: threading.Event, node: Node) -> None:
    done.wait()
    node.stop()


class _Progress:
    """Knows when as many records are published as there are."""

    def __init__(self, messages: int) -> None:
        self.done = threading.Event()
        self.finished_at = 0.0
        self._left = messages
        self._committed: dict[tuple[str, int], int] = {}

    def __call__(self, event: Event) -> None:
        if isinstance(event, BatchCommitted):
            self._committed[event.key, event.sequence] = event.records
        elif isinstance(event, BatchPublished):
            self._left -= self._committed.pop((event.key, event.sequence))
            if self._left <= 0:
                self.finished_at = time.perf_counter()
                self.done.set()


def timed(work: Callable[[], Any]) -> float:
    """Seconds that it takes."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began
