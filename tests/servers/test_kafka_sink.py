"""Messages of the sink `kafka` on a real broker: what they hold, and how often they are there."""

from __future__ import annotations

import itertools
import time
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from holdfast.errors import Halt, Refused, SinkUnavailable
from holdfast.flow.batch import Name
from holdfast.flow.loop import LoopSettings
from holdfast.flow.sink import Publication, Witness
from holdfast.flow.staging import StagedBatch
from holdfast.leases.lease import Commit, Lease
from holdfast.registry import Registry
from holdfast.sinks.kafka import PLUGIN, producers
from holdfast.sinks.kafka.messages import Message
from holdfast.sinks.kafka.producers import CommitProducer, SentCommit
from holdfast.sinks.kafka.sink import KafkaSink
from tests.servers.kafka import KafkaServer
from tests.servers.mock_kafka import (
    COORDINATOR_LOAD_IN_PROGRESS,
    COORDINATOR_NOT_AVAILABLE,
    NOT_COORDINATOR,
    OFFSET_FETCH,
    mock_broker,
)

NAME = Name("orders", "0")
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
_numbers = itertools.count(1)


class Desk:
    """A topic of its own, and sinks on it."""

    def __init__(self, kafka: KafkaServer, root: Path) -> None:
        self.kafka, self.topic, self._root = kafka, f"desk{next(_numbers)}", root
        kafka.create_topic(self.topic, 3)

    def sink(self, **settings: Any) -> KafkaSink:
        given = {"bootstrap_servers": self.kafka.bootstrap, "topic": self.topic, "root": str(self._root), **settings}
        made: KafkaSink = PLUGIN.build("totals", PLUGIN.config(**given), Registry.installed())
        made.open("p", durable=True)
        return made

    def staged(self, sink: KafkaSink, rows: list[Any], schema: pa.Schema, batch_id: str = "b") -> tuple[Any, int]:
        """The part of a task for these rows, and how many were refused."""
        staging, batch = sink.stager().begin(), StagedBatch(batch_id, "p", "orders|0", NAME, 1, 1)
        items = pa.array(range(len(rows)), pa.int64())
        columns = list(sink.stager().columns_of.needed(schema.names))
        refused = staging.write(batch, items, pa.RecordBatch.from_pylist(rows, schema).select(columns))
        part = staging.finish(batch)
        staging.close()
        return part, refused

    def publish(self, sink: KafkaSink, part: Any, sequence: int = 1, commit_id: str = "c1") -> Any:
        receipt = {**sink.receipt([part]), "from": 0, "to": 1, "token": 1}
        lease = Lease("p", "orders|0", commit=Commit(sequence=sequence, commit_id=commit_id))
        (result,) = sink.publish([Publication(lease, NAME, receipt)])
        return result

    def messages(self) -> list[tuple[int, bytes | None, bytes | None, Any]]:
        found = self.kafka.committed_messages(self.topic)
        return [(message.partition(), message.key(), message.value(), message.headers()) for message in found]


@pytest.fixture
def desk(kafka_server: KafkaServer, tmp_path: Path) -> Desk:
    return Desk(kafka_server, tmp_path / "root")


def test_columns_become_key_value_headers_and_partition(desk: Desk) -> None:
    schema = pa.schema([("value", pa.string()), ("key", pa.binary()), ("headers", HEADERS), ("to", pa.int32())])
    rows = [
        {
            "value": "one",
            "key": b"\xff",
            "headers": [{"key": "a", "value": b"1"}, {"key": "a", "value": None}],
            "to": 2,
        },
        {"value": None, "key": None, "headers": None, "to": 0},
    ]
    sink = desk.sink(partition="to")
    part, refused = desk.staged(sink, rows, schema)
    assert desk.messages() == []
    assert (refused, desk.publish(sink, part)) == (0, None)
    assert desk.messages() == [(0, None, None, None), (2, b"\xff", b"one", [("a", b"1"), ("a", None)])]
    sink.close()


def test_rows_without_a_value_are_json_objects_and_too_large_ones_are_dead_letters(desk: Desk) -> None:
    schema = pa.schema([("customer", pa.string()), ("total", pa.float64())])
    sink = desk.sink(key="customer", max_message_bytes="2kB")
    rows = [{"customer": "ann", "total": 1.5}, {"customer": "x" * 3000, "total": 2.0}]
    part, refused = desk.staged(sink, rows, schema)
    assert (refused, desk.publish(sink, part)) == (1, None)
    assert [message[1:3] for message in desk.messages()] == [(b"ann", b'{"customer":"ann","total":1.5}')]
    (letter,) = sink.letter_box("p").letters()
    assert "max_message_bytes is 2000" in letter.reason
    sink.close()


def test_a_commit_that_a_later_one_has_followed_is_not_sent_again_by_a_node_that_wakes_up(desk: Desk) -> None:
    schema = pa.schema([("value", pa.string())])
    sleeper, other = desk.sink(), desk.sink()
    first, _ = desk.staged(sleeper, [{"value": "first"}], schema, "b1")
    second, _ = desk.staged(other, [{"value": "second"}], schema, "b2")
    assert desk.publish(other, first, 1, "c1") is None
    assert desk.publish(other, second, 2, "c2") is None
    assert desk.publish(sleeper, first, 1, "c1") is None
    assert sorted(message[2] or b"" for message in desk.messages()) == [b"first", b"second"]
    assert isinstance(desk.publish(sleeper, first, 2, "another"), Halt)
    sleeper.close()
    other.close()


def test_a_commit_whose_node_died_in_its_transaction_is_sent_by_the_next_node_at_once(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Died(BaseException):
        pass

    def die(producer: Any, offset: Any, group: Any, *_: Any) -> None:
        producer.send_offsets_to_transaction([offset], group, 60)
        raise Died

    dead, heir = desk.sink(), desk.sink()
    part, _ = desk.staged(dead, [{"value": "one"}], pa.schema([("value", pa.string())]))
    with monkeypatch.context() as death:
        death.setattr(producers, "_committed", die)
        death.setattr(CommitProducer, "_abort", lambda *_: None)
        with pytest.raises(Died):
            desk.publish(dead, part)
    assert isinstance(heir, Witness)
    assert heir.witness([(Lease("p", "orders|0"), NAME)]) == [None]
    assert desk.publish(heir, part) is None
    assert [message[2] for message in desk.messages()] == [b"one"]
    heir.close()
    dead.close()


def test_a_coordinator_that_starts_or_moves_is_waited_for() -> None:
    errors = [COORDINATOR_LOAD_IN_PROGRESS, COORDINATOR_NOT_AVAILABLE, NOT_COORDINATOR]
    with mock_broker("totals", OFFSET_FETCH, errors) as address:
        assert CommitProducer({"bootstrap.servers": address}, "totals", "test").last_commits([NAME]) == [None]


def test_at_least_once_sends_rows_as_they_are_staged(desk: Desk) -> None:
    schema = pa.schema([("value", pa.string())])
    sink = desk.sink(delivery="at_least_once")
    part, _ = desk.staged(sink, [{"value": "one"}], schema)
    assert part["files"] == []
    assert [message[2] for message in desk.messages()] == [b"one"]
    assert desk.publish(sink, part) is None
    assert len(desk.messages()) == 1
    sink.close()


def test_a_row_for_a_partition_that_does_not_exist_is_a_dead_letter(desk: Desk) -> None:
    schema = pa.schema([("value", pa.string()), ("to", pa.int32())])
    sink = desk.sink(partition="to")
    part, refused = desk.staged(sink, [{"value": "one", "to": 2}, {"value": "two", "to": 3}], schema)
    assert (refused, desk.publish(sink, part)) == (1, None)
    assert [message[2] for message in desk.messages()] == [b"one"]
    (letter,) = sink.letter_box("p").letters()
    assert letter.reason == f"topic {desk.topic} has no partition 3; it has 3"
    desk.kafka.add_partitions(desk.topic, 4)
    assert desk.staged(sink, [{"value": "two", "to": 3}], schema, "b2")[1] == 0
    sink.close()


def test_producers_are_kept_for_more_partitions_than_a_few(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []

    def counting(settings: dict[str, Any]) -> Any:
        made.append(settings["transactional.id"])
        return Producer(settings)

    monkeypatch.setattr(producers, "Producer", counting)
    monkeypatch.setattr(producers, "PRODUCERS", 3)
    producer = CommitProducer({"bootstrap.servers": desk.kafka.bootstrap}, desk.topic, "test")
    names = [Name("orders", str(number)) for number in range(5)]
    for sequence in (1, 2, 3):
        for name in names:
            producer.send(name, SentCommit(sequence, f"c{sequence}"), [[Message(b"v", None, [], -1)]])
    assert [made.count(group) for group in dict.fromkeys(made)] == [1, 1, 1, 3, 3]
    assert len(desk.messages()) == 15
    producer.close()


def test_a_commit_is_not_sent_again_when_the_brokers_may_have_forgotten_that_it_was(desk: Desk) -> None:
    sink, before = desk.sink(), time.time() - 8 * 86_400
    part, _ = desk.staged(sink, [{"value": "one"}], pa.schema([("value", pa.string())]))
    old = {**part, "staged_at": before}
    assert desk.publish(sink, part) is None
    sink.close()
    group = sink._producer._group(NAME)
    desk.kafka.forget_group(group)
    heir = desk.sink()
    halted = desk.publish(heir, old)
    assert isinstance(halted, Halt)
    assert f"the offset of group {group}" in str(halted)
    # As the runbook says: a person has looked, and it is there.
    with closing(Consumer({"bootstrap.servers": desk.kafka.bootstrap, "group.id": group})) as consumer:
        consumer.commit(offsets=[TopicPartition(desk.topic, 0, 1, metadata="c1")], asynchronous=False)
    assert desk.publish(heir, old) is None
    assert [message[2] for message in desk.messages()] == [b"one"]
    heir.close()


def test_the_first_commit_of_a_partition_may_be_old_as_long_as_brokers_would_remember_it(desk: Desk) -> None:
    sink = desk.sink()
    part, _ = desk.staged(sink, [{"value": "one"}], pa.schema([("value", pa.string())]))
    assert desk.publish(sink, {**part, "staged_at": time.time() - 2 * 86_400}) is None
    assert [message[2] for message in desk.messages()] == [b"one"]
    sink.close()


class Settings:
    """An admin client of brokers with these settings, or with this error."""

    def __init__(self, found: dict[str, Any] | int) -> None:
        self._found = found

    def list_topics(self, **_: Any) -> Any:
        return SimpleNamespace(brokers={1: "broker"})

    def describe_configs(self, resources: list[Any], **_: Any) -> dict[Any, Any]:
        return dict.fromkeys(resources, self)

    def result(self) -> dict[str, Any]:
        if isinstance(self._found, int):
            raise KafkaException(KafkaError(self._found))
        return self._found


@pytest.mark.parametrize(
    ("found", "hours"),
    [
        ({"offsets.retention.minutes": SimpleNamespace(value="120")}, 2),
        ({"offsets.retention.minutes": SimpleNamespace(value=None)}, 24),
        ({}, 24),
        (KafkaError.CLUSTER_AUTHORIZATION_FAILED, 24),
        (KafkaError.UNSUPPORTED_VERSION, 24),
    ],
)
def test_offsets_are_kept_as_long_as_brokers_show_or_else_as_long_as_is_usual(
    monkeypatch: pytest.MonkeyPatch, found: Any, hours: int
) -> None:
    monkeypatch.setattr(producers, "AdminClient", lambda _: Settings(found))
    assert CommitProducer({}, "totals", "test")._remembered() == hours * 3600


@pytest.mark.parametrize("error", [KafkaError._TIMED_OUT, KafkaError._TRANSPORT, KafkaError.REQUEST_TIMED_OUT])
def test_brokers_that_do_not_respond_are_waited_for_before_an_old_commit_is_judged(
    monkeypatch: pytest.MonkeyPatch, error: int
) -> None:
    monkeypatch.setattr(producers, "AdminClient", lambda _: Settings(error))
    with pytest.raises(SinkUnavailable, match="how long offsets are kept"):
        CommitProducer({}, "totals", "test")._remembered()


def test_brokers_that_are_away_are_waited_for_before_an_old_commit_is_judged() -> None:
    producer = CommitProducer({"bootstrap.servers": "127.0.0.1:9"}, "totals", "test")
    producer.patience = 0.2
    with pytest.raises(SinkUnavailable, match="how long offsets are kept"):
        producer._remembered()


def test_brokers_that_hang_are_waited_for_within_one_step(monkeypatch: pytest.MonkeyPatch) -> None:
    now, signs = [0.0], [0.0]

    class Hanging:
        """Takes as long as it may for everything."""

        def __getattr__(self, name: str) -> Any:
            def request(*arguments: Any) -> None:
                now[0] += arguments[-1] if name != "init_transactions" and arguments else 0.0
                if name == "commit_transaction":
                    raise KafkaException(KafkaError(KafkaError._TIMED_OUT))

            return request

    monkeypatch.setattr(producers, "time", SimpleNamespace(monotonic=lambda: now[0], time=time.time))
    monkeypatch.setattr(producers, "_produce", lambda *_: None)
    producer = CommitProducer({"bootstrap.servers": "nowhere:1"}, "totals", "test")
    producer._producers[producer._group(NAME)] = producers._PartitionProducer(Hanging(), None, None)
    with pytest.raises(SinkUnavailable):
        producer.send(NAME, SentCommit(1, "c1"), [[], []], lambda: signs.append(now[0]))
    assert max(later - earlier for earlier, later in pairwise([*signs, now[0]])) < LoopSettings().step_limit


def test_a_topic_that_does_not_exist_is_refused(desk: Desk) -> None:
    with pytest.raises(Refused, match="does not exist"):
        desk.sink(topic="nobody-made-it")
