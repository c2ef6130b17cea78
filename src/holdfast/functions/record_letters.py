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
from holdfast.flow.batch import Batch, Name
from holdfast.flow.fault import RECORD, Fault, dead_letter
from holdfast.flow.letter import Letter, SourceRecord, decoded_bytes, encoded_bytes, new_letters
from holdfast.flow.names import dead_letter_key, letter_records_key
from holdfast.flow.shards import StreamRecord
from holdfast.flow.staging import StagedBatch
from holdfast.functions.shard_calls import DeadRecord
from holdfast.leases.lease import Json

MAX_REASON = 2000
RECORD_COLUMN = "record"
MAX_ITEM = (1 << 63) - 1
"""Rows of a redrive carry the offset as their item, in 64 bits."""


@dataclass(frozen=True, slots=True)
class RecordLetters:
    """Keeps letters in the bucket of a sink. Picklable; used inside a task."""

    bucket: Bucket

    def keep(self, origin: Json, letters: Sequence[DeadRecord]) -> None:
        """Write the letters that are not there yet, and return when they are durable. Raises `Unavailable`.

        `origin` is that of `letter_origin`.
        """
        self.keep_of_batch(_batch_of(origin), letters)

    def keep_of_batch(self, batch: StagedBatch, letters: Sequence[DeadRecord]) -> None:
        """The same for letters of this batch."""
        records = {letter.record.offset: letter.record for letter in letters}
        faults = [(letter.record.offset, Fault(RECORD, _reason(letter))) for letter in letters]
        self.bury(replace(batch, reader=_Records(records)), faults)

    def bury(self, batch: StagedBatch, faults: Sequence[tuple[int, Fault]]) -> None:
        """The same for records that the batch's reader reads, each given by its item."""
        for letter in new_letters(batch, faults):
            more = letter.more
            if letter.spill is not None:
                large = letter_records_key(batch.name, batch.generation, letter.item)
                self.bucket.create(large, letter.spill)
                more = letter.spilled({"file": large, "start": 0})
            line = dead_letter(batch.pipeline, batch.key, letter.item, letter.fault, more)
            self.bucket.create(dead_letter_key(batch.name, batch.generation, letter.item), line)


@dataclass(frozen=True, slots=True)
class _Records:
    """A `RecordReader` of records that are at hand."""

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
        if letter.item > MAX_ITEM:
            return "its offset has more than 64 bits, as those of Kinesis have; put the record into the stream again"
        return None

    def row(self, letter: Letter) -> Any:
        import pyarrow as pa

        data = msgspec.msgpack.encode(_stream_record(letter))
        return pa.RecordBatch.from_arrays([pa.array([data], pa.binary())], names=[RECORD_COLUMN])


def record_of_row(data: bytes) -> StreamRecord:
    """The record that a rebuilder has encoded."""
    return msgspec.msgpack.decode(data, type=StreamRecord)


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
