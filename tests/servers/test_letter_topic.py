"""Copies of dead letters in a topic of a real broker: as they came, and once, whoever publishes them how often."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from holdfast.buckets.bucket import StagingAttempt
from holdfast.buckets.local import LocalBucket
from holdfast.deadletters.letter_topic import LETTER, Message
from holdfast.deadletters.staging import LetterFiles
from holdfast.deadletters.topic_client import KafkaAttempt, TopicClient
from holdfast.errors import Halt, Refused, SinkUnavailable
from holdfast.flow.batch import Name
from holdfast.flow.fault import Fault, record_fault
from holdfast.flow.kafka_columns import message_source
from holdfast.flow.letter import SourceRecord
from holdfast.flow.shards import StreamRecord
from holdfast.flow.sink import Publication
from holdfast.flow.staging import StagedBatch
from holdfast.functions.shard_calls import DeadRecord
from holdfast.leases.lease import Commit, Lease
from holdfast.registry import Registry
from holdfast.sinks.files import PLUGIN
from holdfast.sinks.function.config import FunctionSinkConfig
from holdfast.sinks.function.sink import FunctionSink
from tests.servers.kafka import KafkaServer
from tests.servers.opensearch import OpenSearchServer
from tests.servers.opensearch_desk import Desk

NAME = Name("orders", "0")
LARGE = b"x" * 400_000
HEADERS = [("trace", b"1"), ("trace", b"\xff"), ("none", None)]
MESSAGES: dict[int, dict[str, Any]] = {
    3: {"key": b"\xff\x00", "value": b"two\nlines", "headers": HEADERS},
    5: {"key": b"deleted", "value": None, "headers": []},
    8: {"key": None, "value": b"", "headers": []},
    9: {"key": b"large", "value": LARGE, "headers": []},
}
Sent = tuple[bytes | None, bytes | None, Any]


@dataclass(frozen=True)
class Records:
    """A `RecordReader` of `MESSAGES`."""

    def records(self, _batch: Any, faults: Sequence[tuple[int, Fault]]) -> Iterator[SourceRecord]:
        for offset, _ in faults:
            place = {"topic": "orders", "partition": 0, "offset": offset, "timestamp": 5, "timestamp_type": 0}
            yield SourceRecord(message_source({**place, **MESSAGES[offset]}), MESSAGES[offset]["value"])


class Letters:
    """Commits of one sink with a topic."""

    def __init__(self, kafka: KafkaServer, root: Path, topic: str) -> None:
        self.kafka, self.topic, self.bucket = kafka, topic, LocalBucket(root)
        self.settings: dict[str, Any] = {
            "root": root,
            "dead_letters": {"kafka": {"bootstrap_servers": kafka.bootstrap, "topic": topic}},
        }
        self.sink = self.sink_of_another_node()

    def sink_of_another_node(self) -> Any:
        return PLUGIN.build("files", PLUGIN.config.model_validate(self.settings), Registry.installed())

    def committed(self, offsets: Sequence[int] = tuple(MESSAGES), commit_id: str = "c1") -> Publication:
        batch = StagedBatch(commit_id, "p", "orders|0", NAME, token=1, generation=1, reader=Records())
        letters = LetterFiles(StagingAttempt(self.bucket), 1 << 20)
        letters.write(batch, [(offset, record_fault("is not JSON", b"")) for offset in offsets])
        receipt = {"from": 0, "to": 10, "token": 1, "files": letters.finish(batch)}
        sequence = 1 + offsets[0]
        lease = Lease("p", "orders|0", commit=Commit(sequence, 1, "", commit_id, {"files": receipt}))
        return Publication(lease, NAME, receipt)

    def read(self) -> list[Sent]:
        """All messages that a reader of committed messages gets, in the order of their letters."""
        messages = self.kafka.committed_messages(self.topic)
        found: list[Sent] = [(message.key(), message.value(), message.headers()) for message in messages]
        return sorted(found, key=lambda sent: dict(sent[2])[LETTER])


@pytest.fixture
def letters(kafka_server: KafkaServer, tmp_path: Path) -> Letters:
    topic = f"dead-{uuid.uuid4().hex[:8]}"
    kafka_server.create_topic(topic, 2)
    return Letters(kafka_server, tmp_path / "out", topic)


def test_letters_arrive_as_they_came_and_once_although_an_attempt_crashed_and_others_repeat_it(
    letters: Letters, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert letters.topic in letters.sink.open("p", durable=True)
    commit, send = letters.committed(), KafkaAttempt.send

    def crash_in_the_middle(attempt: KafkaAttempt, message: Message) -> None:
        send(attempt, message)
        attempt._producer.flush(30)
        if message.key == b"deleted":
            # Nothing is aborted, as when the process is killed.
            attempt._is_open = False
            raise KeyboardInterrupt

    monkeypatch.setattr(KafkaAttempt, "send", crash_in_the_middle)
    with pytest.raises(KeyboardInterrupt):
        letters.sink.publish([commit])
    monkeypatch.setattr(KafkaAttempt, "send", send)
    assert letters.sink_of_another_node().publish([commit, commit]) == [None, None]
    assert letters.sink.publish([commit]) == [None]
    found = letters.read()
    assert [(key, value) for key, value, _ in found] == [(sent["key"], sent["value"]) for sent in MESSAGES.values()]
    assert found[0][2][:3] == HEADERS
    assert {dict(headers)["holdfast.reason"] for _, _, headers in found} == {b"is not JSON"}
    assert [letter.reason for letter in letters.sink.letter_box("p").letters()] == ["is not JSON"] * 4, "also in files"


def test_a_former_owner_is_fenced(letters: Letters, monkeypatch: pytest.MonkeyPatch) -> None:
    commit, finish = letters.committed([3]), KafkaAttempt.commit

    def published_by_the_next_owner_first(attempt: KafkaAttempt) -> None:
        monkeypatch.setattr(KafkaAttempt, "commit", finish)
        assert letters.sink_of_another_node().publish([commit]) == [None]
        finish(attempt)

    monkeypatch.setattr(KafkaAttempt, "commit", published_by_the_next_owner_first)
    (result,) = letters.sink.publish([commit])
    assert isinstance(result, SinkUnavailable)
    assert len(letters.read()) == 1


def test_letters_behind_the_open_transaction_of_another_producer_are_waited_for_and_found(
    letters: Letters, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = letters.committed([3, 5])
    with ExitStack() as stack:
        client = TopicClient({"bootstrap.servers": letters.kafka.bootstrap}, letters.topic, 1 << 20)
        other = stack.enter_context(client.attempt("somebody-else"))
        for key in (b"\xff\x00", b"deleted"):
            other.send(Message(key, b"open", [(LETTER, b"~")]))
        other._producer.flush(30)
        assert letters.sink.publish([commit]) == [None]
        with monkeypatch.context() as impatient:
            impatient.setattr("holdfast.deadletters.topic_client.READ_PATIENCE", 1.0)
            (result,) = letters.sink.publish([commit])
        assert isinstance(result, SinkUnavailable), "it cannot know"
        assert "transaction" in str(result)
    assert letters.sink.publish([commit]) == [None]
    assert len(letters.read()) == 2


def test_a_topic_that_is_missing_or_compacted_is_refused(letters: Letters) -> None:
    compacted = f"compacted-{uuid.uuid4().hex[:8]}"
    letters.kafka.create_topic(compacted, cleanup_policy="compact")
    for topic, reason in ((compacted, "compacted"), ("no-such-topic", "does not exist")):
        with pytest.raises(Refused, match=reason):
            TopicClient({"bootstrap.servers": letters.kafka.bootstrap}, topic, 1 << 20).check()


def test_brokers_that_are_away_are_waited_for(letters: Letters, monkeypatch: pytest.MonkeyPatch) -> None:
    letters.settings["dead_letters"]["kafka"]["bootstrap_servers"] = "127.0.0.1:1"
    commit = letters.committed([3])
    with monkeypatch.context() as impatient:
        impatient.setattr("holdfast.deadletters.topic_client.PATIENCE", 0.5)
        (result,) = letters.sink_of_another_node().publish([commit])
    assert isinstance(result, SinkUnavailable)
    assert letters.sink.publish([commit]) == [None]
    assert len(letters.read()) == 1


def test_letters_of_an_index_arrive_once_although_a_response_was_lost_and_the_batch_was_staged_again(
    letters: Letters, opensearch_server: OpenSearchServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = {"bootstrap_servers": letters.kafka.bootstrap, "topic": letters.topic}
    long = {"properties": {"n": {"type": "long"}}}
    desk = Desk(opensearch_server, mappings=long, dead_letters={"kafka": topic})
    assert letters.topic in desk.verdict
    records = [{"n": 1}, {"n": "many"}, {"n": 3}, {"n": "all"}]
    lease = Lease(desk.pipeline, "in|a.jsonl", commit=Commit(1, 3, "", "c1", {}))

    def published(receipt: Any) -> list[Any]:
        assert not desk.sink.is_visible(receipt)
        return desk.sink.publish([Publication(lease, desk.batch.name, {**receipt, "token": 3})])

    receipt, commit = desk.sink.receipt([desk.write(records).part]), KafkaAttempt.commit

    def committed_without_a_response(attempt: KafkaAttempt) -> None:
        commit(attempt)
        raise SinkUnavailable("no response")

    with monkeypatch.context() as losing:
        losing.setattr(KafkaAttempt, "commit", committed_without_a_response)
        (result,) = published(receipt)
        assert isinstance(result, SinkUnavailable)
    assert published(receipt) == published(desk.sink.receipt([desk.write(records).part])) == [None]
    found = letters.read()
    assert [value for _, value, _ in found] == [b'{"n": "many"}', b'{"n": "all"}']
    assert all(b"failed to parse field" in dict(headers)["holdfast.reason"] for _, _, headers in found)
    assert [letter.item for letter in desk.sink.letter_box(desk.pipeline).letters()] == [1, 3]
    (lost,) = published({**receipt, "letters": ["gone"]})
    assert isinstance(lost, Halt)
    assert desk.sink.is_visible(desk.sink.receipt([desk.write([{"n": 5}], first=9).part])), "without letters"


def test_letters_of_a_function_arrive_once_though_a_worker_dies_before_it_has_reported_them(
    letters: Letters, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {"file": str(tmp_path / "letters"), **letters.settings["dead_letters"]}
    config = FunctionSinkConfig.model_validate({"handler": "orders:handler", "dead_letters": settings})
    sink = FunctionSink("function", config)
    assert letters.topic in sink.open("p", durable=True)
    origin = {"pipeline": "p", "stream": "orders", "label": "0", "generation": 1, "key": "orders|0"}
    dead = [
        DeadRecord(StreamRecord("orders|0", offset, 5, sent["key"], tuple(sent["headers"]), sent["value"]), "bad", 1)
        for offset, sent in MESSAGES.items()
    ]
    commit = KafkaAttempt.commit

    def die_behind_it(attempt: KafkaAttempt) -> None:
        commit(attempt)
        raise KeyboardInterrupt

    monkeypatch.setattr(KafkaAttempt, "commit", die_behind_it)
    with pytest.raises(KeyboardInterrupt):
        sink.stager_for(()).letters.keep(origin, dead[:2])
    monkeypatch.setattr(KafkaAttempt, "commit", commit)
    sink.stager_for(()).letters.keep(origin, dead)
    found = letters.read()
    assert sorted(value or b"" for _, value, _ in found) == sorted(sent["value"] or b"" for sent in MESSAGES.values())
    by_key = {key: headers for key, _, headers in found}
    assert by_key[b"\xff\x00"][:3] == HEADERS
    assert {dict(headers)["holdfast.reason"] for headers in by_key.values()} == {b"failed 1 times: bad"}
    sink.close()
