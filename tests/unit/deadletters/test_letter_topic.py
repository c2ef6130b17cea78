"""Copies of dead letters in a topic: once each, whatever crashes and whoever publishes at the same time.

The simulator has no Kafka transactions, so crashes and other publishers are put between any two requests here.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from holdfast.buckets.bucket import StagedFile, StagingAttempt
from holdfast.config.kafka_client import LetterTopicOptions
from holdfast.deadletters import letter_topic
from holdfast.deadletters.letter_files import FileLetters
from holdfast.deadletters.letter_topic import LetterTopic, Message
from holdfast.deadletters.staging import LetterFiles
from holdfast.errors import Halt, SinkUnavailable, Unavailable
from holdfast.flow.batch import Name
from holdfast.flow.fault import COLUMNS, Fault, damage_fault, record_fault
from holdfast.flow.kafka_columns import message_source
from holdfast.flow.letter import SourceRecord
from holdfast.flow.sink import Publication
from holdfast.flow.staging import StagedBatch
from holdfast.leases.lease import Commit, Lease
from holdfast.testing.flows import MemoryBucket

NAME = Name("orders", "0")


class Crash(Exception):
    """The process ended here."""


@dataclass
class Broker:
    """One partition with transactions. `at_call` is called before each request, with its number."""

    log: list[tuple[Message, str]] = field(default_factory=list)
    """Messages, each with the id of the attempt that sent it."""
    committed: set[str] = field(default_factory=set)
    owners: dict[str, str] = field(default_factory=dict)
    topic_id: str = "t1"
    calls: int = 0
    at_call: Callable[[int], None] = lambda _number: None
    scanned_from: list[int] = field(default_factory=list)

    def count(self) -> None:
        self.calls += 1
        self.at_call(self.calls)

    @contextmanager
    def attempt(self, transactional_id: str) -> Iterator[BrokerAttempt]:
        self.count()
        made = BrokerAttempt(self, transactional_id, f"attempt {len(self.owners)} {self.calls}")
        self.owners[transactional_id] = made.id
        yield made

    def visible(self) -> list[Message]:
        return [message for message, attempt in self.log if attempt in self.committed]


@dataclass
class BrokerAttempt:
    broker: Broker
    transactional_id: str
    id: str

    def _fenced(self) -> None:
        self.broker.count()
        if self.broker.owners[self.transactional_id] != self.id:
            raise SinkUnavailable("fenced")

    def ends(self) -> dict[str, Any]:
        self.broker.count()
        return {"topic_id": self.broker.topic_id, "offsets": {"0": len(self.broker.log)}}

    def letters_since(
        self, offsets: Mapping[str, int], ends: Mapping[str, int], commit: str, progress: Callable[[], None]
    ) -> set[str]:
        self.broker.count()
        progress()
        self.broker.scanned_from.append(offsets.get("0", 0))
        found = set()
        for message, attempt in self.broker.log[offsets.get("0", 0) : ends["0"]]:
            headers = dict(message.headers)
            if attempt in self.broker.committed and headers[letter_topic.COMMIT] == commit.encode():
                found.add((headers[letter_topic.LETTER] or b"").decode())
        return found

    def send(self, message: Message) -> None:
        self._fenced()
        self.broker.log.append((message, self.id))

    def commit(self) -> None:
        self._fenced()
        self.broker.committed.add(self.id)
        self.broker.count()  # the response is lost


@dataclass(frozen=True)
class Records:
    """A `RecordReader`."""

    records_by_item: Mapping[int, SourceRecord]

    def records(self, _batch: Any, faults: Sequence[tuple[int, Fault]]) -> Iterator[SourceRecord]:
        return (self.records_by_item[item] for item, _ in faults)


def committed(bucket: MemoryBucket, records: Mapping[int, SourceRecord], commit_id: str = "c1") -> Publication:
    """A commit whose letters are published as files."""
    batch = StagedBatch("b1", "p", "orders|0", NAME, token=1, generation=1, reader=Records(records))
    letters = LetterFiles(StagingAttempt(bucket), 1 << 20)
    letters.write(batch, [(item, record_fault("bad", b"as processors had it")) for item in records])
    files = letters.finish(batch)
    bucket.publish([StagedFile(file["staged"], file["key"], file["sha256"], file["size"]) for file in files])
    lease = Lease("p", "orders|0", commit=Commit(1, 1, "", commit_id, {}))
    return Publication(lease, NAME, {"files": [*files, {"key": "orders/1_0_0.parquet"}]})


def message(offset: int, value: bytes | None, key: bytes | None = None, headers: Any = ()) -> SourceRecord:
    columns = {"topic": "orders", "partition": 0, "offset": offset, "timestamp": 5, "timestamp_type": 0}
    return SourceRecord(message_source({**columns, "key": key, "headers": headers}), value)


RECORDS = {number: message(number, b"%d" % number) for number in range(3)}


def topic_of(broker: Broker, max_message_bytes: int = 1 << 20) -> LetterTopic:
    return LetterTopic("dead", max_message_bytes, ("root", "files"), broker.attempt, lambda: "fine")


def publish(bucket: MemoryBucket, topic: LetterTopic, publication: Publication) -> None:
    topic.publish(FileLetters(bucket), publication, lambda: None)


def values(broker: Broker) -> list[bytes | None]:
    return [message.value for message in broker.visible()]


def test_a_message_is_the_record_as_it_came_and_says_why_it_is_a_letter() -> None:
    bucket, broker = MemoryBucket(), Broker()
    own = [("trace", b"1"), ("trace", b"\xff"), ("none", None), ("holdfast.reason", b"of an earlier pipeline")]
    records = {7: message(7, b"a\nb", b"\xff\x00", own), 8: message(8, None, b"deleted"), 9: message(9, b"", None)}
    publish(bucket, topic_of(broker), committed(bucket, records))
    first, tombstone, empty = broker.visible()
    assert (first.key, first.value, list(first.headers[:4])) == (b"\xff\x00", b"a\nb", own)
    headers = dict(first.headers)
    assert headers["holdfast.reason"] == b"bad", "of headers with the same name the last one counts"
    assert (headers["holdfast.pipeline"], headers["holdfast.partition"]) == (b"p", b"orders|0")
    source = {"topic": "orders", "partition": 0, "offset": 7, "item": 7, "timestamp": 5, "timestamp_type": 0}
    assert json.loads(headers["holdfast.source"] or b"") == source
    assert (tombstone.key, tombstone.value) == (b"deleted", None)
    assert (empty.key, empty.value) == (None, b"")
    ids = [dict(message.headers)["holdfast.letter"] for message in (first, tombstone, empty)]
    assert ids == [b"_holdfast/deadletters/orders/1_0_%020d.jsonl:%d" % (7, line) for line in range(3)]


def test_objects_have_no_key_and_what_is_not_the_text_of_a_record_says_so() -> None:
    bucket, broker = MemoryBucket(), Broker()
    place = {"bucket": "in", "key": "a.parquet", "etag": "e", "arrow": "x" * 2000}
    records = {
        3: SourceRecord(place, b'{"a": 1}', COLUMNS),
        4: SourceRecord(place, None, missing="the object is gone"),
    }
    publish(bucket, topic_of(broker), committed(bucket, records))
    columns, gone = broker.visible()
    assert (columns.key, columns.value) == (None, b'{"a": 1}')
    assert json.loads(dict(columns.headers)["holdfast.source"] or b"") == {
        "bucket": "in",
        "key": "a.parquet",
        "etag": "e",
        "item": 3,
    }
    assert dict(columns.headers)["holdfast.form"] == b"columns"
    assert (gone.value, dict(gone.headers)["holdfast.missing"]) == (b"as processors had it", b"the object is gone")


def test_a_letter_without_a_record_is_not_taken_for_a_tombstone() -> None:
    bucket, broker = MemoryBucket(), Broker()
    batch = StagedBatch("b1", "p", "orders|0", NAME, token=1, generation=1)
    letters = LetterFiles(StagingAttempt(bucket), 1 << 20)
    letters.write(batch, [(0, damage_fault("torn"))])
    (file,) = letters.finish(batch)
    bucket.publish([StagedFile(file["staged"], file["key"], file["sha256"], file["size"])])
    publish(bucket, topic_of(broker), Publication(Lease("p", "orders|0"), NAME, {"files": [file]}))
    (sent,) = broker.visible()
    assert (sent.value, dict(sent.headers)["holdfast.missing"]) == (None, b"no record is kept in the letter")


def test_a_large_record_is_sent_whole_if_the_topic_takes_it_and_else_cut() -> None:
    bucket = MemoryBucket()
    large = {0: message(0, b"x" * 300_000, b"key"), 1: message(1, b"y", b"k" * 300_000)}
    publication = committed(bucket, large)
    whole, cut = Broker(), Broker()
    publish(bucket, topic_of(whole), publication)
    assert values(whole) == [b"x" * 300_000, b"y"]
    assert not any("holdfast.cut" in dict(message.headers) for message in whole.visible())
    other = LetterTopic("other", 256 << 10, ("root", "files"), cut.attempt, lambda: "fine")
    publish(bucket, other, publication)
    assert [len(message.value or b"") for message in cut.visible()] == [65536, 1]
    assert [message.key for message in cut.visible()] == [b"key", None], "a key that is too large is left out"
    assert [dict(message.headers)["holdfast.cut"] for message in cut.visible()] == [b"300000", b"1"]
    assert all(message.size <= 256 << 10 for message in cut.visible())


def test_a_commit_without_letters_does_not_call_the_brokers() -> None:
    bucket, broker = MemoryBucket(), Broker()
    publish(bucket, topic_of(broker), Publication(Lease("p", "orders|0"), NAME, {"files": [{"key": "a/1_0_0.txt"}]}))
    assert broker.calls == 0


def test_only_messages_since_the_first_attempt_are_read() -> None:
    bucket, broker = MemoryBucket(), Broker()
    topic = topic_of(broker)
    publish(bucket, topic, committed(bucket, {100: message(100, b"before")}, "c0"))
    publication = committed(bucket, RECORDS)
    publish(bucket, topic, publication)
    assert broker.scanned_from == [], "nobody can have sent letters of a new commit"
    publish(bucket, topic, publication)
    assert (broker.scanned_from, len(values(broker))) == ([1], 4)


@pytest.mark.parametrize("number", range(1, 8))
def test_letters_are_there_once_after_a_crash_at_any_request(number: int) -> None:
    bucket, broker = MemoryBucket(), Broker()
    publication = committed(bucket, RECORDS)

    def crash(call: int) -> None:
        if call == number:
            raise Crash

    broker.at_call = crash
    with pytest.raises(Crash):
        publish(bucket, topic_of(broker), publication)
    publish(bucket, topic_of(broker), publication)
    assert values(broker) == [b"0", b"1", b"2"]


@pytest.mark.parametrize(("first", "second"), list(itertools.product(range(1, 9), repeat=2)))
def test_letters_are_there_once_if_others_publish_them_between_any_two_requests(first: int, second: int) -> None:
    bucket, broker = MemoryBucket(), Broker()
    publication = committed(bucket, RECORDS)

    def meanwhile(call: int) -> None:
        # The second one publishes during the first one, or after it.
        if call in {first, first + second}:
            _tried(bucket, topic_of(broker), publication)

    broker.at_call = meanwhile
    _tried(bucket, topic_of(broker), publication)
    broker.at_call = lambda _call: None
    publish(bucket, topic_of(broker), publication)
    assert values(broker) == [b"0", b"1", b"2"]


def _tried(bucket: MemoryBucket, topic: LetterTopic, publication: Publication) -> None:
    with suppress(Unavailable):
        publish(bucket, topic, publication)


def test_a_topic_that_was_created_anew_is_read_from_its_start() -> None:
    bucket, broker, anew = MemoryBucket(), Broker(), Broker(topic_id="t2")
    publish(bucket, topic_of(broker), committed(bucket, {100: message(100, b"before")}, "c0"))
    publication = committed(bucket, RECORDS)
    publish(bucket, topic_of(broker), publication)
    publish(bucket, topic_of(anew), publication)
    publish(bucket, topic_of(anew), publication)
    assert (values(anew), anew.scanned_from) == ([b"0", b"1", b"2"], [0, 0])


def test_brokers_that_do_not_respond_are_called_once_for_all_commits_of_a_step() -> None:
    bucket, calls = MemoryBucket(), []

    def away(transactional_id: str) -> Any:
        calls.append(transactional_id)
        raise SinkUnavailable("no broker")

    topic = LetterTopic("dead", 1 << 20, (), away, lambda: "fine")
    publication = committed(bucket, RECORDS)
    for _ in range(3):
        with pytest.raises(Unavailable, match="no broker"):
            publish(bucket, topic, publication)
    assert len(calls) == 1


def test_each_partition_of_each_run_and_root_has_a_transactional_id_of_its_own() -> None:
    bucket, broker = MemoryBucket(), Broker()
    publication = committed(bucket, RECORDS)
    publish(bucket, topic_of(broker), publication)
    leases = [Lease("p", "orders|1"), Lease("p", "orders|0", run="redrive-1"), Lease("q", "orders|0")]
    for lease in leases:
        row = replace(lease, commit=Commit(1, 1, "", f"of {lease.pipeline} {lease.run} {lease.key}", {}))
        publish(bucket, topic_of(broker), Publication(row, NAME, publication.receipt))
    elsewhere = LetterTopic("dead", 1 << 20, ("other root", "files"), broker.attempt, lambda: "fine")
    publish(bucket, elsewhere, publication)
    assert len(broker.owners) == 5
    assert all(owner.startswith(("holdfast-p-", "holdfast-q-")) for owner in broker.owners)
    assert dict(broker.visible()[6].headers)["holdfast.run"] == b"redrive-1"


def test_letters_that_are_gone_halt() -> None:
    bucket, broker = MemoryBucket(), Broker()
    publication = committed(bucket, RECORDS)
    bucket.visible.clear()
    with pytest.raises(Halt, match="is gone"):
        publish(bucket, topic_of(broker), publication)
    assert values(broker) == []


@pytest.mark.parametrize("topic", ["", "a b", "ä"])
def test_names_that_no_topic_can_have_are_refused(topic: str) -> None:
    with pytest.raises(ValueError, match="topic"):
        LetterTopicOptions.model_validate({"bootstrap_servers": "b:9092", "topic": topic})
