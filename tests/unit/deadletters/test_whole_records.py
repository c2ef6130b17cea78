"""Dead letters that hold the whole record as the source has it, and give back exactly that."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pytest

from holdfast.buckets.bucket import StagedFile, StagingAttempt
from holdfast.deadletters import source as redriving
from holdfast.deadletters.letter_files import FileLetters
from holdfast.deadletters.source import LetterReader, LettersSource, PartitionLetters
from holdfast.deadletters.staging import LetterFiles
from holdfast.errors import BatchError
from holdfast.flow.batch import Batch, Cut, Limits, Name
from holdfast.flow.fault import MAX_RAW_BYTES, ROW, Fault, damage_fault, record_fault
from holdfast.flow.letter import Letter, LetterId, SourceRecord
from holdfast.flow.staging import StagedBatch
from holdfast.leases.lease import Commit, Lease, new_lease
from holdfast.sources.kafka.reading import MessageRebuilder
from holdfast.testing.flows import MemoryBucket

LARGE = bytes(range(256)) * 12_000
HEADERS = [
    {"name": "trace", "value": "a"},
    {"name": "trace", "value": None},
    {"name": "", "value": "/w==", "encoding": "base64"},
]
PLACE = {"topic": "orders", "partition": 3, "timestamp": 1_700_000_000_123, "timestamp_type": 1}


@dataclass(frozen=True)
class Reader:
    """A topic in memory."""

    messages: dict[int, SourceRecord]

    def records(self, batch: StagedBatch, faults: Sequence[tuple[int, Fault]]) -> Iterator[SourceRecord]:
        return (self.messages[item] for item, _ in faults)


def message(offset: int, value: bytes | None, **more: Any) -> SourceRecord:
    return SourceRecord({**PLACE, "offset": offset, "key": "k", **more}, value)


def batch_of(*messages: SourceRecord, **fields: Any) -> StagedBatch:
    reader = Reader({found.source["offset"]: found for found in messages})
    return StagedBatch("b1", "p", "orders|3", Name("orders", "3"), 3, 1, reader=reader, **fields)


def published(bucket: MemoryBucket, batch: StagedBatch, *faults: tuple[int, Fault]) -> list[Letter]:
    letters = LetterFiles(StagingAttempt(bucket), 1 << 20)
    letters.write(batch, faults)
    entries = letters.finish(batch)
    bucket.publish([StagedFile(entry["staged"], entry["key"], entry["sha256"], entry["size"]) for entry in entries])
    return list(FileLetters(bucket).letters())


def faults_of(*items: int) -> list[tuple[int, Fault]]:
    return [(item, record_fault("bad", b"as a processor had it")) for item in items]


def row(letter: Letter) -> dict[str, Any]:
    (found,) = MessageRebuilder().row(letter).to_pylist()
    return dict(found)


def test_a_letter_holds_the_message_and_gives_it_back() -> None:
    bucket = MemoryBucket()
    batch = batch_of(message(7, b"\xff", headers=HEADERS), message(9, None), message(8, b"", key=None))
    seventh, eighth, tombstone = published(bucket, batch, *faults_of(9, 7, 8))
    assert all(letter.is_whole and letter.refusal is None for letter in (seventh, eighth, tombstone))
    assert row(seventh) == {
        "topic": "orders",
        "partition": 3,
        "offset": 7,
        "timestamp": pa.scalar(1_700_000_000_123_000, pa.timestamp("us", "UTC")).as_py(),
        "timestamp_type": 1,
        "key": b"k",
        "value": b"\xff",
        "headers": [{"key": "trace", "value": b"a"}, {"key": "trace", "value": None}, {"key": "", "value": b"\xff"}],
    }
    assert (row(eighth)["key"], row(eighth)["value"], row(eighth)["headers"]) == (None, b"", None)
    assert (row(tombstone)["key"], row(tombstone)["value"]) == (b"k", None), "a tombstone is not an empty message"


def test_a_large_record_is_in_a_file_of_its_own_that_the_receipt_has() -> None:
    bucket = MemoryBucket()
    batch = batch_of(message(1, LARGE, headers=HEADERS), message(2, b"small"), message(3, b"x" * 100_000))
    letters = LetterFiles(StagingAttempt(bucket), 1 << 20)
    letters.write(batch, faults_of(1, 2, 3))
    kept, records = letters.finish(batch)
    assert [(entry["rows"], entry["first"], entry["last"]) for entry in (kept, records)] == [(3, 1, 3), (0, 1, 3)]
    assert records["key"] == "_holdfast/deadletter-records/orders/1_3_00000000000000000001.jsonl"
    bucket.publish(
        [StagedFile(entry["staged"], entry["key"], entry["sha256"], entry["size"]) for entry in (kept, records)]
    )
    box = FileLetters(bucket)
    large, small, text = box.letters()
    assert (large.size, large.refusal, small.spilled) == (len(LARGE), None, None)
    assert len(large.raw or "") < 2 * MAX_RAW_BYTES, "the list of letters stays short"
    assert large.spilled is not None
    assert row(box.whole(large))["value"] == LARGE
    assert len(row(box.whole(large))["headers"]) == 3
    assert row(box.whole(text))["value"] == b"x" * 100_000
    assert box.whole(small) == small


def test_a_large_key_is_kept_too() -> None:
    bucket = MemoryBucket()
    (letter,) = published(bucket, batch_of(message(1, None, key="k" * 200_000)), *faults_of(1))
    assert letter.refusal is None
    found = row(FileLetters(bucket).whole(letter))
    assert (found["key"], found["value"]) == (b"k" * 200_000, None)


def test_a_spilled_record_that_is_gone_or_altered_is_not_sent() -> None:
    bucket = MemoryBucket()
    (letter,) = published(bucket, batch_of(message(1, LARGE)), *faults_of(1))
    assert letter.spilled is not None
    box, spilled = FileLetters(bucket), dict(letter.spilled)
    with pytest.raises(BatchError, match="was altered"):
        box.whole(replace(letter, spilled=spilled | {"start": 1}))
    with pytest.raises(BatchError, match="is gone"):
        box.whole(replace(letter, spilled=spilled | {"file": "elsewhere"}))


def test_a_row_that_a_sink_refused_is_shown_beside_the_record() -> None:
    refused = (1, replace(record_fault("too long", b'{"n":1}'), form=ROW))
    (letter,) = published(MemoryBucket(), batch_of(message(1, b"as it came")), refused)
    assert (letter.record(), letter.row, letter.form, letter.refusal) == (b"as it came", '{"n":1}', None, None)


def test_a_row_among_several_of_its_record_holds_the_record_and_is_not_sent() -> None:
    refused = (1, replace(record_fault("too long", b'{"n":1}'), form=ROW))
    (letter,) = published(MemoryBucket(), batch_of(message(1, b"as it came"), several_rows=True), refused)
    assert letter.record() == b"as it came"
    assert letter.refusal == "a processor makes several rows of a record, and its other rows may have been written"


def test_a_record_that_the_source_has_no_more_is_kept_as_the_pipeline_had_it() -> None:
    gone = SourceRecord({"topic": "orders", "partition": 3, "offset": 1}, missing="it was compacted away")
    (letter,) = published(MemoryBucket(), batch_of(gone), (1, record_fault("bad", b"had")))
    assert (letter.record(), letter.missing, letter.is_whole) == (b"had", "it was compacted away", False)
    assert letter.source == gone.source


def test_damage_of_an_object_names_the_object() -> None:
    place = SourceRecord({"offset": 0, "bucket": "b", "key": "k", "etag": "e"})
    (letter,) = published(MemoryBucket(), batch_of(place), (0, damage_fault("truncated")))
    assert (letter.source, letter.raw, letter.refusal) == (place.source, None, "no record is kept in it")


def test_the_same_letters_are_the_same_bytes_whatever_order_they_come_in() -> None:
    batch, written = batch_of(message(1, LARGE), message(2, None)), []
    two = (1, record_fault("another", b""))
    for faults in ([*faults_of(1, 2), two], [two, *faults_of(2, 1)]):
        bucket = MemoryBucket()
        published(bucket, batch, *faults)
        written.append({key: bucket.read(key) for key in bucket.keys("")})
    assert written[0] == written[1]


def test_abandoned_letters_leave_no_records() -> None:
    bucket, batch = MemoryBucket(), batch_of(message(1, LARGE))
    letters = LetterFiles(StagingAttempt(bucket), 1)
    letters.write(batch, faults_of(1))
    letters.flush_if_many(batch)
    letters.abandon(batch)
    assert not bucket.staged


# --- sent again ------------------------------------------------------------------------------------------------------


def test_a_record_that_fails_once_more_is_kept_whole_once_more() -> None:
    bucket = MemoryBucket()
    (first,) = published(bucket, batch_of(message(1, LARGE, headers=HEADERS)), *faults_of(1))
    reader = LetterReader(FileLetters(bucket), {"b1": {1: first.id}})
    other = MemoryBucket()
    (second,) = published(other, replace(batch_of(), reader=reader), *faults_of(1))
    assert row(FileLetters(other).whole(second)) == row(FileLetters(bucket).whole(first))


def test_a_letter_of_an_earlier_version_stays_what_it_is() -> None:
    bucket = MemoryBucket()
    bucket.create(
        "_holdfast/deadletters/a.jsonl", b'{"reason": "x", "raw": "1", "origin": {"key": "orders|3", "item": 1}}\n'
    )
    (old,) = FileLetters(bucket).letters()
    assert (old.refusal, old.is_whole, row(old)["value"], row(old)["key"]) == (None, False, b"1", None)
    reader = LetterReader(FileLetters(bucket), {"b1": {1: old.id}})
    (kept,) = published(MemoryBucket(), replace(batch_of(), reader=reader), *faults_of(1))
    assert (kept.record(), kept.is_whole) == (b"1", False)


def test_a_batch_of_a_redrive_has_as_many_large_records_as_fit_into_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redriving, "MAX_BATCH_BYTES", 100)
    live = Lease("p", "orders|3", group="orders", commit=Commit(incarnation="id"))
    ids = [LetterId("a", number) for number in range(5)]
    partition = PartitionLetters(live, Name("orders", "3"), ids, [60, 0, 60, 300, 0]).partition()
    assert json.loads(json.dumps(partition.spec))["spilled"] == [[0, 60], [2, 60], [3, 300]]
    source, ends, row_ = LettersSource(None, None), [], new_lease("p", partition, "w", now=0.0, run="redrive-1")  # type: ignore[arg-type]
    while isinstance(plan := source.plan([row_], Limits())[0], Cut):
        ends.append(plan.end["offset"])
        row_ = replace(row_, progress=replace(row_.progress, position=plan.end))
    assert ends == [2, 3, 5]


def test_the_rows_of_a_redrive_hold_spilled_records() -> None:
    bucket = MemoryBucket()
    (letter,) = published(bucket, batch_of(message(1, LARGE)), *faults_of(1))
    live = Lease("p", "orders|3", group="orders", commit=Commit(incarnation="id"))
    partition = PartitionLetters(live, Name("orders", "3"), [letter.id], [len(LARGE)]).partition()
    lease = new_lease("p", partition, "w", now=0.0, run="redrive-1")
    batch = Batch("b1", lease, Name("orders", "3"), Cut({"offset": 0}, {"offset": 1}))
    read = LettersSource(FileLetters(bucket), MessageRebuilder()).read(None, [batch])
    (rows,) = read.rows(0)
    assert rows.to_pylist()[0]["value"] == LARGE
