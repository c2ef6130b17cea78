"""Partitions of Kafka as shards that tasks read, on a real broker."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from holdfast.errors import Halt, SourceUnavailable
from holdfast.flow.batch import Cut, Plan
from holdfast.flow.shards import ReaderFactory, ShardFailed, ShardReader, ShardReport, StreamRecord
from holdfast.leases.lease import Lease, Progress, new_lease
from holdfast.sources.kafka.config import KafkaConfig
from holdfast.sources.kafka.shard_reader import KEPT, KafkaReaderFactory
from holdfast.sources.kafka.source import KafkaSource
from holdfast.testing.stream_setting import SampleRecord, bodies, opened
from holdfast.testing.streams import StreamBehaviour
from tests.servers.kafka import KafkaServer
from tests.servers.processes import free_port, running

PATIENCE = 60.0


def source_of(bootstrap: str, topic: str, **settings: Any) -> KafkaSource:
    return KafkaSource(KafkaConfig.model_validate({"bootstrap_servers": bootstrap, "topics": [topic], **settings}))


def until(reader: ShardReader, done: Callable[[list[StreamRecord]], bool]) -> list[StreamRecord]:
    records: list[StreamRecord] = []
    deadline = time.monotonic() + PATIENCE
    while not done(records):
        assert time.monotonic() < deadline, records
        try:
            records += reader.fetch(1000, 0.1)
        except SourceUnavailable:
            time.sleep(0.05)
    return records


def reported(reader: ShardReader) -> tuple[list[StreamRecord], ShardReport]:
    """What the reader reports next, and the records that come before."""
    reports: list[ShardReport] = []

    def is_reported(_records: list[StreamRecord]) -> bool:
        reports.extend(reader.reports())
        return bool(reports)

    records = until(reader, is_reported)
    (report,) = reports
    return records, report


class TestKafkaStream(StreamBehaviour):
    """A topic with two partitions."""

    made = 0
    patience = PATIENCE
    max_body = 500_000

    @pytest.fixture(autouse=True)
    def _on(self, kafka_server: KafkaServer) -> None:
        self.kafka = kafka_server

    def make_stream(self) -> KafkaSource:
        type(self).made += 1
        self.topic = f"suite-{self.made}"
        self.kafka.create_topic(self.topic, partitions=2)
        return source_of(self.kafka.bootstrap, self.topic)

    def append(self, shard: str, records: Sequence[SampleRecord]) -> None:
        topic, _, partition = shard.rpartition("|")
        sent = [{"value": body, "key": key, "headers": list(headers)} for body, key, headers in records]
        self.kafka.produce(topic, sent, partition=int(partition))

    def make_continuing_factory(self) -> ReaderFactory:
        return source_of(self.kafka.bootstrap, self.topic, on_loss="record").reader_factory()

    def delete_records(self, shard: str) -> bool:
        partition = int(shard.rpartition("|")[2])
        self.kafka.delete_records(self.topic, partition, before=self.kafka.offsets(self.topic, partition)[1] - 1)
        return True

    def make_unreachable_factory(self) -> ReaderFactory:
        return source_of(f"127.0.0.1:{free_port()}", "elsewhere").reader_factory()


# --- what only Kafka does --------------------------------------------------------------------------------------------


def begin(source: KafkaSource, position: Any = None) -> tuple[Lease, Plan]:
    (partition,) = source.discover({})
    lease = new_lease("hello", partition, "w", now=0.0)
    lease = lease if position is None else replace(lease, progress=Progress(position))
    (plan,) = source.begin([lease])
    return lease, plan


def test_a_batch_begins_at_the_stored_position_and_names_the_topic(kafka_server: KafkaServer) -> None:
    kafka_server.create_topic("begun")
    kafka_server.produce("begun", [b"0", b"1", b"2"])
    source = source_of(kafka_server.bootstrap, "begun")
    lease, plan = begin(source)
    topic_id = lease.commit.incarnation
    assert plan == Cut({"offset": 0, "topic_id": topic_id}, None)
    assert begin(source, {"offset": 2})[1] == Cut({"offset": 2, "topic_id": topic_id}, None)
    # Positions of functions are those of files, and the other way round.
    assert begin(source, {"offset": 2, "topic_id": topic_id})[1] == Cut({"offset": 2, "topic_id": topic_id}, None)
    assert isinstance(begin(source, {"offset": 9})[1], Halt)


@pytest.mark.parametrize("on_loss", ["halt", "record"])
def test_a_batch_does_not_begin_before_the_first_record_in_silence(kafka_server: KafkaServer, on_loss: str) -> None:
    topic = f"lost-{on_loss}"
    kafka_server.create_topic(topic)
    kafka_server.produce(topic, [b"0", b"1", b"2"])
    kafka_server.delete_records(topic, 0, before=2)
    source = source_of(kafka_server.bootstrap, topic, on_loss=on_loss)
    _, plan = begin(source, {"offset": 1})
    if on_loss == "halt":
        assert isinstance(plan, Halt)
        assert plan.lost == (1, 2)
    else:
        assert isinstance(plan, Cut)
        assert plan.start["offset"] == 2
    assert "RecordsLost" in [type(event).__name__ for event in source.noticed()]


def test_a_topic_that_is_created_again_halts_a_reader(kafka_server: KafkaServer) -> None:
    kafka_server.create_topic("again")
    kafka_server.produce("again", [b"old"])
    source = source_of(kafka_server.bootstrap, "again")
    _, plan = begin(source)
    assert isinstance(plan, Cut)
    with opened(source.reader_factory()) as reader:
        reader.add("again|0", plan.start)
        assert bodies(until(reader, bool)) == [b"old"]
        kafka_server.delete_topic("again")
        kafka_server.create_topic("again")
        _, report = reported(reader)
        assert isinstance(report, ShardFailed)
        assert report.halt
        # A task that is given the position of the old topic does not begin at all.
        kafka_server.produce("again", [b"new"] * 3)
        reader.add("again|0", plan.start)
        records, report = reported(reader)
        assert records == []
        assert isinstance(report, ShardFailed)
        assert report.halt


def test_records_of_open_and_aborted_transactions_are_left_out(kafka_server: KafkaServer) -> None:
    kafka_server.create_topic("transactions")
    producer = kafka_server.producer(**{"transactional.id": "t"})
    producer.init_transactions()
    for body, commit in ((b"aborted", False), (b"committed", True)):
        producer.begin_transaction()
        producer.produce("transactions", body, partition=0)
        (producer.commit_transaction if commit else producer.abort_transaction)()
    producer.begin_transaction()
    producer.produce("transactions", b"open", partition=0)
    producer.flush()
    with opened(source_of(kafka_server.bootstrap, "transactions").reader_factory()) as reader:
        reader.add("transactions|0", {"offset": 0})
        assert bodies(until(reader, bool)) == [b"committed"]
        assert list(reader.fetch(10, 0.5)) == []
        producer.commit_transaction()
        assert bodies(until(reader, bool)) == [b"open"]


def test_a_paused_partition_keeps_what_was_fetched_and_loses_nothing(kafka_server: KafkaServer) -> None:
    kafka_server.create_topic("paused", partitions=2)
    kafka_server.produce("paused", [b"%d" % number for number in range(3 * KEPT)])
    with opened(source_of(kafka_server.bootstrap, "paused").reader_factory()) as reader:
        reader.add("paused|0", {"offset": 0})
        reader.add("paused|1", {"offset": 0})
        records = until(reader, bool)
        for _ in range(3):
            reader.pause("paused|0")
            kafka_server.produce("paused", [b"other"], partition=1)
            assert bodies(until(reader, bool)) == [b"other"]
            reader.resume("paused|0")
            records += reader.fetch(10, PATIENCE)
        records += until(reader, lambda found: len(records) + len(found) >= 3 * KEPT)
    assert bodies(records) == [b"%d" % number for number in range(3 * KEPT)]


def never(reader: ShardReader) -> None:
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        assert list(reader.fetch(10, 0.2)) == []


def test_a_reader_goes_on_when_the_broker_is_back() -> None:
    with running(KafkaServer) as kafka:
        kafka.create_topic("outage")
        kafka.produce("outage", [b"before"])
        factory = source_of(kafka.bootstrap, "outage").reader_factory()
        assert isinstance(factory, KafkaReaderFactory)
        with opened(factory) as reader:
            reader.add("outage|0", {"offset": 0})
            assert bodies(until(reader, bool)) == [b"before"]
            kafka.crash()
            with pytest.raises(SourceUnavailable):
                never(reader)
            kafka.start()
            kafka.produce("outage", [b"after"])
            assert bodies(until(reader, bool)) == [b"after"]
            assert reader.reports() == []
