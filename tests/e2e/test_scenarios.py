"""What happens to an archive in production, on real Kafka, S3 and PostgreSQL: each page of the runbooks is a test.

All share the servers and two nodes, which are started when they are first needed: a node that starts costs ten seconds.
The tests go from one node to two, and each has topics of its own.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from functools import partial

import pytest
from confluent_kafka import Consumer, TopicPartition

from tests.e2e.archive import HALTING, TOLERANT, WITHIN, Archive, archive
from tests.e2e.fleet import eventually
from tests.servers.kafka import KafkaServer

pytestmark = [pytest.mark.spark, pytest.mark.slow]
COMPACTED = "plain-compacted"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Archive]:
    with archive(tmp_path_factory.mktemp("archive"), compact) as made:
        yield made


def compact(kafka: KafkaServer) -> None:
    """A topic of which the broker has kept the last record of each key, except in the segment that is written to."""
    kafka.create_topic(COMPACTED, cleanup_policy="compact", segment_ms="100", min_cleanable_dirty_ratio="0.01")
    kafka.produce(COMPACTED, [{"key": b"k%d" % (n % 3), "value": b"%d" % n} for n in range(30)])
    eventually(lambda: _rolls(kafka), WITHIN, "compaction")


def _rolls(kafka: KafkaServer) -> bool:
    time.sleep(0.2)  # older than segment.ms: with the next record a new segment begins, and the old one can be cleaned
    kafka.produce(COMPACTED, [{"key": b"k0", "value": b"later"}])
    return len(kept(kafka)) < kafka.offsets(COMPACTED)[1] // 2


def kept(kafka: KafkaServer) -> list[int]:
    """Offsets that the log of the compacted topic still has."""
    end = kafka.offsets(COMPACTED)[1]
    consumer = Consumer({"bootstrap.servers": kafka.bootstrap, "group.id": "tests", "enable.auto.commit": False})
    found = [-1]
    consumer.assign([TopicPartition(COMPACTED, 0, 0)])
    while found[-1] < end - 1:
        found += [message.offset() or 0 for message in consumer.consume(1000, timeout=1) if message.error() is None]
    consumer.close()
    return found[1:]


# --- one node --------------------------------------------------------------------------------------------------


def test_topics_and_partitions_that_are_new_are_found_while_the_node_runs(site: Archive) -> None:
    site.ensure("a")
    site.kafka.create_topic("plain-new")
    site.kafka.produce("plain-new", [b"x"] * 10)
    site.has("plain-new", 10)
    site.kafka.add_partitions("plain-new", 2)
    site.kafka.produce("plain-new", [b"y"] * 5, partition=1)
    site.has("plain-new", 10, 5)


def test_a_record_is_kept_with_all_that_kafka_knows_of_it_and_gaps_are_no_loss(site: Archive) -> None:
    site.ensure("a")
    site.kafka.create_topic("plain-odd")
    site.kafka.produce("plain-odd", [{"key": b"gone", "value": None}, {"value": b""}])
    headers = [("h", b"1"), ("h", None)]
    site.kafka.produce("plain-odd", [{"key": b"", "value": b"v", "headers": headers, "timestamp": 1_700_000_000_123}])
    producer = site.kafka.producer(transactional_id="odd")
    producer.init_transactions(30)
    for value, end in ((b"aborted", producer.abort_transaction), (b"committed", producer.commit_transaction)):
        producer.begin_transaction()
        producer.produce("plain-odd", value, partition=0)
        producer.flush(30)
        end(30)
    eventually(lambda: len(site.rows("plain-odd")) == 4, WITHIN, "what was committed")
    tombstone, empty, full, committed = site.rows("plain-odd")
    assert (tombstone["key"], tombstone["value"]) == (b"gone", None)
    assert (empty["key"], empty["value"]) == (None, b"")
    assert [(header["key"], header["value"]) for header in full["headers"]] == [("h", b"1"), ("h", None)]
    assert (full["key"], full["value"], full["timestamp_type"]) == (b"", b"v", 0)
    assert full["timestamp"].timestamp() == 1_700_000_000.123
    assert (committed["offset"], committed["value"]) == (5, b"committed")  # 3 was aborted, 4 is the mark of that
    eventually(lambda: site.offsets(COMPACTED)[-1:] == [(0, kept(site.kafka)[-1])], WITHIN, "the compacted topic")
    assert len(site.rows(COMPACTED)) < kept(site.kafka)[-1]


def test_records_that_retention_took_halt_the_partition_or_are_recorded_and_are_always_reported(site: Archive) -> None:
    site.ensure("a")
    topics = {HALTING: f"patient-{HALTING}", TOLERANT: f"patient-{TOLERANT}"}
    for topic in topics.values():
        site.kafka.create_topic(topic)
        site.kafka.produce(topic, [b"x"] * 10)
        site.has(topic, 10)
    for topic in topics.values():
        site.kafka.produce(topic, [b"y"] * 5)
        site.kafka.delete_records(topic, 0, 13)
    for pipeline, topic in topics.items():
        site.hears("a", "RecordsLost", pipeline=pipeline, key=f"{topic}|0", start=10, end=13)
        site.hears("a", "AlertRaised", kind="records_lost", pipeline=pipeline)
    site.hears("a", "PartitionHalted", pipeline=HALTING, key=f"{topics[HALTING]}|0")
    read = [(0, offset) for offset in range(10)]
    eventually(lambda: site.offsets(topics[TOLERANT]) == [*read, (0, 13), (0, 14)], WITHIN, "what is left is read")
    assert site.offsets(topics[HALTING]) == read
    assert not site.said("a", "PartitionHalted", pipeline=TOLERANT)
    code, proofs = site.verify(TOLERANT)
    assert (code, [proof["doubts"] for proof in proofs]) == (0, [[]] * len(proofs))


def test_a_topic_that_was_created_anew_halts_and_what_was_read_stays(site: Archive) -> None:
    site.ensure("a")
    site.kafka.create_topic("plain-reborn")
    site.kafka.produce("plain-reborn", [b"old"] * 3)
    site.has("plain-reborn", 3)
    site.kafka.delete_topic("plain-reborn")
    site.kafka.create_topic("plain-reborn")
    site.kafka.produce("plain-reborn", [b"new"] * 9)
    site.hears("a", "PartitionHalted", key="plain-reborn|0")
    (halted,) = site.said("a", "PartitionHalted", key="plain-reborn|0")
    assert "created again" in halted["reason"]
    assert [row["value"] for row in site.rows("plain-reborn")] == [b"old"] * 3
    site.kafka.produce("plain-new", [b"z"])
    eventually(lambda: (0, 10) in site.offsets("plain-new"), WITHIN, "other topics go on")


# --- two nodes -------------------------------------------------------------------------------------------------


def test_a_node_that_cannot_keep_up_raises_an_alert_and_a_second_one_shares_its_work(site: Archive) -> None:
    site.ensure("a")
    site.kafka.create_topic("plain-busy", partitions=4)
    for partition in range(4):
        site.kafka.produce("plain-busy", [b"%d" % n for n in range(3000)], partition=partition)
    site.lines["a"].delay = 0.5
    try:
        site.hears("a", "AlertRaised", kind="partition_lagging")
        assert site.metric("a", "holdfast_lag_records") > 1000
        site.ensure("b")
        eventually(lambda: site.held_by("b", "plain-busy") >= 1, WITHIN, "b has a share")
    finally:
        site.lines["a"].delay = 0.0
    # What is there by now may all be in files already: only what comes later must be published by its owner.
    produced(site, "plain-busy", 10)
    site.has("plain-busy", *[3010] * 4)
    publishes(site, "b", "plain-busy")
    eventually(lambda: site.metric("a", "holdfast_lag_records") == 0, WITHIN, "no lag")
    site.hears("a", "AlertCleared", kind="partition_lagging")


def test_while_the_store_is_down_nodes_wait_and_say_so_and_then_go_on(site: Archive) -> None:
    site.ensure("a", "b")
    site.kafka.create_topic("plain-store", partitions=4)
    produced(site, "plain-store", 10)
    site.has("plain-store", *[10] * 4)
    before = {name: len(site.said(name, "Unreachable", what="store")) for name in ("a", "b")}
    site.postgresql.stop()
    produced(site, "plain-store", 10)
    for name, times in before.items():
        site.hears(name, "Unreachable", times, what="store")
    assert len(site.rows("plain-store")) == 40
    site.postgresql.start()
    site.has("plain-store", *[20] * 4)


def test_while_the_bucket_is_down_nodes_wait_and_say_so_and_then_go_on(site: Archive) -> None:
    site.ensure("a", "b")
    site.kafka.create_topic("plain-bucket", partitions=4)
    produced(site, "plain-bucket", 10)
    site.has("plain-bucket", *[10] * 4)
    site.s3.stop()
    produced(site, "plain-bucket", 10)
    numbers = [len(site.said(name, "Unreachable", what="sink")) for name in ("a", "b")]
    eventually(
        lambda: sum(len(site.said(name, "Unreachable", what="sink")) for name in ("a", "b")) > sum(numbers),
        WITHIN,
        "somebody misses the bucket",
    )
    site.s3.start()
    site.has("plain-bucket", *[20] * 4)
    assert not site.said("a", "PartitionFailed") + site.said("b", "PartitionFailed")


def test_a_node_crashes_and_the_other_takes_over_where_it_was(site: Archive) -> None:
    site.ensure("a", "b")
    site.kafka.create_topic("plain-crash", partitions=4)
    eventually(lambda: min(site.held_by(name, "plain-crash") for name in ("a", "b")) > 0, WITHIN, "both have a share")
    produced(site, "plain-crash", 10)
    site.has("plain-crash", *[10] * 4)
    site.nodes["a"].kill()
    produced(site, "plain-crash", 10)
    site.hears("b", "NodeExpired")
    site.has("plain-crash", *[20] * 4)
    eventually(lambda: site.held_by("b", "plain-crash") == 4, WITHIN, "b has all of it")


def test_a_node_that_starts_while_the_broker_is_down_waits_says_so_and_gets_its_share_back(site: Archive) -> None:
    site.ensure("b")
    if "a" in site.nodes:
        site.nodes["a"].kill()
    site.kafka.create_topic("plain-broker", partitions=4)
    produced(site, "plain-broker", 10)
    site.has("plain-broker", *[10] * 4)
    times = len(site.said("b", "Unreachable", what="source"))
    site.kafka.stop()
    site.hears("b", "Unreachable", times, what="source")
    site.start("a")
    site.hears("a", "Unreachable", what="source")
    assert not site.said("a", "NodeJoined")
    site.kafka.start()
    site.ensure("a")
    eventually(lambda: site.held_by("a", "plain-broker") >= 1, WITHIN, "the recovered node has its share")
    produced(site, "plain-broker", 10)
    site.has("plain-broker", *[20] * 4)
    publishes(site, "a", "plain-broker")


def test_after_all_that_nodes_leave_in_order_and_everything_is_proven(site: Archive) -> None:
    site.ensure("a", "b")
    for node in site.nodes.values():
        node.send(signal.SIGTERM)
    assert [node.exit_code() for node in site.nodes.values()] == [0, 0]
    code, proofs = site.verify(TOLERANT)
    assert (code, [proof["doubts"] for proof in proofs]) == (0, [[]] * len(proofs))
    code, proofs = site.verify(HALTING)
    doubted = {proof.get("key"): proof["doubts"] for proof in proofs if proof["doubts"]}
    # What retention took is doubted for as long as nobody has looked at it, and nothing else is.
    assert (code, doubted.keys() <= {f"patient-{HALTING}|0"}) == (int(bool(doubted)), True)
    assert all("were deleted by the brokers" in sentence for doubts in doubted.values() for sentence in doubts)


def produced(site: Archive, topic: str, count: int) -> None:
    """So many more records in each of four partitions."""
    for partition in range(4):
        site.kafka.produce(topic, [b"x"] * count, partition=partition)


def publishes(site: Archive, name: str, topic: str) -> None:
    """Wait until the node says that it has published something of the topic: a file is there a little earlier."""
    said = partial(site.said, name, "BatchPublished")
    eventually(lambda: any(event["key"].startswith(topic) for event in said()), WITHIN, f"{name} publishes {topic}")
