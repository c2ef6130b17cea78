"""Topics that go away while Spark reads them: others are not held up, and a gap is committed without a broker."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from holdfast.flow.batch import Batch, Cut, Name
from holdfast.flow.engine import Failed, Report, Staged
from holdfast.flow.pipeline import Pipeline
from holdfast.leases.lease import Lease, Ownership, Status, new_lease
from holdfast.registry import Registry
from holdfast.sinks.files import PLUGIN as FILES
from holdfast.sources.kafka import reading
from holdfast.sources.kafka.config import KafkaConfig
from holdfast.sources.kafka.reading import frame
from holdfast.sources.kafka.source import KafkaSource
from holdfast.spark import engine as engines
from holdfast.spark.engine import SparkEngine
from tests.servers.kafka import KafkaServer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

PATIENCE = 300.0


@pytest.fixture
def source(kafka_server: KafkaServer) -> Iterator[KafkaSource]:
    settings = {"bootstrap_servers": kafka_server.bootstrap, "topics_pattern": "gone-.*", "commit_offsets": False}
    made = KafkaSource(KafkaConfig.model_validate(settings))
    yield made
    made.close()


def batches_of(source: KafkaSource, **ends: int) -> list[Batch]:
    """One of each topic, from its first record up to the offset."""
    found = source.discover({})
    leases = {partition.spec["topic"]: new_lease("archive", partition, "w", now=0.0) for partition in found}
    held = {name: replace(lease, ownership=Ownership(Status.ASSIGNED, "me", 1, 1)) for name, lease in leases.items()}
    return [_batch(held[f"gone-{name}"], name, end) for name, end in ends.items()]


def _batch(lease: Lease, name: str, end: int) -> Batch:
    return Batch(name, lease, Name(lease.spec["topic"], "0"), Cut({"offset": 0}, {"offset": end}))


def test_a_topic_that_goes_away_while_it_is_read_does_not_hold_up_others(
    spark: SparkSession,
    kafka_server: KafkaServer,
    source: KafkaSource,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(engines, "WATCH_EVERY", 0.5)
    # Left to itself, the connector would wait for the records longer than this test does.
    monkeypatch.setattr(reading, "POLL_TIMEOUT_MS", int(2000 * PATIENCE))
    for name in ("gone-left", "gone-stays"):
        kafka_server.create_topic(name)
        kafka_server.produce(name, [b"x"] * 5)
    sink: Any = FILES.build(
        "files", FILES.config.model_validate({"root": str(tmp_path), "format": "raw"}), Registry.installed()
    )
    sink.open("archive", durable=True)
    engine = SparkEngine(spark, {"archive": Pipeline(source, [], {"files": sink})})
    try:
        # More than there is: its task waits for it when the topic goes away.
        engine.submit("archive", batches_of(source, left=9, stays=5))
        began = time.monotonic()
        leaving = threading.Timer(1.0, kafka_server.delete_topic, ["gone-left"])
        leaving.start()
        reports: dict[str, Report] = {}
        while len(reports) < 2 and time.monotonic() < began + PATIENCE:
            reports |= {report.batch_id: report for report in engine.poll(1.0)}
        leaving.join()
    finally:
        engine.close()
    assert isinstance(reports["stays"], Staged)
    assert isinstance(reports["left"], Failed)


def test_a_batch_that_is_nothing_but_a_gap_is_read_without_its_topic(
    spark: SparkSession, kafka_server: KafkaServer, source: KafkaSource
) -> None:
    for name in ("gone-first", "gone-second"):
        kafka_server.create_topic(name)
        kafka_server.produce(name, [b"x"] * 3)
    lost, whole = batches_of(source, first=3, second=3)
    lost = replace(lost, cut=replace(lost.cut, gaps=((0, 3),)))
    kafka_server.delete_topic("gone-first")
    rows = frame(spark, source._config, [lost, whole]).collect()
    assert [(row._batch, row.offset) for row in rows] == [(1, 0), (1, 1), (1, 2)]
    assert source.doubts([lost, whole]) == {}
    empty = frame(spark, source._config, [lost])
    assert (empty.columns, empty.collect()) == (frame(spark, source._config, [whole]).columns, [])
