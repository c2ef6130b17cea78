"""Dead letters of a function: a file for each record, which a worker writes before it acknowledges the record.

The file is named by the record and created once. So a worker that dies between the letter and the commit of the ack
leaves a letter that the next worker finds: a record that fails has one letter, however often it is handled.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from holdfast.buckets.bucket import Bucket
from holdfast.deadletters.letter_files import FileLetters
from holdfast.deadletters.letter_topic import LetterTopic
from holdfast.errors import BatchError
from holdfast.flow.batch import Batch, Name
from holdfast.flow.fault import RECORD, Fault, dead_letter
from holdfast.flow.letter import Letter, SourceRecord, decoded_bytes, encoded_bytes, new_letters
from holdfast.flow.names import dead_letter_key, letter_records_key
from holdfast.flow.shards import StreamRecord
from holdfast.flow.staging import StagedBatch
from holdfast.functions.shard_calls import DeadRecord
from holdfast.leases.lease import Json, Lease

MAX_REASON = 2000
RECORD_COLUMN = "record"


@dataclass(frozen=True, slots=True)
class RecordLetters:
    """Keeps letters in the bucket of a sink, and sends copies to a topic. Picklable; used inside a task."""

    bucket: Bucket
    topic: LetterTopic | None = None

    def keep(self, origin: Json, letters: Sequence[DeadRecord]) -> None:
        """Write the letters that are not there yet, and return when they are durable. Raises `Unavailable`.

        `origin` is that of `letter_origin`.
        """
        self.keep_of_batch(_batch_of(origin), letters)

    def keep_of_batch(self, batch: StagedBatch, letters: Sequence[DeadRecord]) -> None:
        """Like `keep`, for letters of this batch."""
        records = {letter.record.offset: letter.record for letter in letters}
        faults = [(letter.record.offset, Fault(RECORD, _reason(letter))) for letter in letters]
        self.bury(replace(batch, reader=_Records(records)), faults)

    def bury(self, batch: StagedBatch, faults: Sequence[tuple[int, Fault]]) -> None:
        """Like `keep`, for records that the batch's reader reads, each given by its item."""
        files = []
        for letter in new_letters(batch, faults):
            # In a redrive, the item of a row is not an offset that has more than 64 bits.
            more, offset = letter.more, letter.more.get("source", {}).get("offset", letter.item)
            if letter.spill is not None:
                large = letter_records_key(batch.name, batch.generation, offset)
                self.bucket.create(large, letter.spill)
                more = letter.spilled({"file": large, "start": 0})
            line = dead_letter(batch.pipeline, batch.key, offset, letter.fault, more)
            files.append(dead_letter_key(batch.name, batch.generation, offset))
            self.bucket.create(files[-1], line)
        if self.topic is not None and files:
            self._send_copies(self.topic, batch, files)

    def _send_copies(self, topic: LetterTopic, batch: StagedBatch, files: Sequence[str]) -> None:
        box = FileLetters(self.bucket)
        letters = [letter for file in files for letter in box.of_file(file)]
        # A redrive has a label of its own, so that it does not fence the worker of the shard.
        shard = Lease(batch.pipeline, batch.key, run=batch.name.label)
        try:
            topic.send(box, letters, shard)
        except ValueError as altered:
            raise BatchError(f"a dead letter cannot be sent to topic {topic.topic}: {altered}") from altered


@dataclass(frozen=True, slots=True)
class _Records:
    """A `RecordReader` of records that are in memory."""

    by_offset: Mapping[int, StreamRecord]

    def records(self, batch: Any, faults: Sequence[tuple[int, Fault]]) -> Iterator[SourceRecord]:  # noqa: ARG002
        return (_source_record(self.by_offset[offset]) for offset, _ in faults)


def letter_origin(batch: Batch) -> Json:
    """What the letters of a shard say about where its records come from."""
    lease = batch.lease
    return {"pipeline": lease.pipeline, "label": batch.name.label, "generation": lease.commit.generation}


def _batch_of(origin: Json) -> StagedBatch:
    name = Name(origin["stream"], origin["label"])
    return StagedBatch("", origin["pipeline"], origin["key"], name, token=0, generation=origin["generation"])


def _source_record(record: StreamRecord) -> SourceRecord:
    source: dict[str, Any] = {"shard": record.shard, "offset": record.offset, "timestamp": record.timestamp}
    source |= encoded_bytes("key", record.key, "key_encoding")
    if record.headers:
        source["headers"] = [{"key": name, **encoded_bytes("value", value)} for name, value in record.headers]
    return SourceRecord(source, record.body)


class StreamRecordRebuilder:
    """A `Rebuilder`: a row has the record itself, encoded, in its one column."""

    keeps: frozenset[str] | None = None

    def fields(self) -> Any:
        from pyspark.sql import types

        return types.StructType([types.StructField(RECORD_COLUMN, types.BinaryType())])

    def refusal(self, letter: Letter) -> str | None:
        if letter.source is None or "offset" not in letter.source:
            return "it was not written by a function, and does not have the offset of its record"
        return None

    def row(self, letter: Letter) -> Any:
        import pyarrow as pa

        record = _stream_record(letter)
        # The offset apart, as text: msgpack holds no more than 64 bits.
        data = msgspec.msgpack.encode((str(record.offset), msgspec.structs.replace(record, offset=0)))
        return pa.RecordBatch.from_arrays([pa.array([data], pa.binary())], names=[RECORD_COLUMN])


def record_of_row(data: bytes) -> StreamRecord:
    """The record that a rebuilder has encoded."""
    offset, record = msgspec.msgpack.decode(data, type=tuple[str, StreamRecord])
    return msgspec.structs.replace(record, offset=int(offset))


def _stream_record(letter: Letter) -> StreamRecord:
    source = letter.source or {}
    try:
        headers = tuple((header["key"], decoded_bytes(header, "value")) for header in source.get("headers", ()))
        key = decoded_bytes(source, "key", "key_encoding")
        body = None if letter.is_null else letter.record()
        return StreamRecord(source["shard"], source["offset"], source["timestamp"], key, headers, body)
    except (KeyError, TypeError) as wrong:
        raise ValueError(f"the letter does not hold a record of a stream: {wrong!r}") from wrong


def _reason(letter: DeadRecord) -> str:
    first, _, _ = letter.error.partition("\n")
    return f"failed {letter.attempts} times: {first}"[:MAX_REASON]
