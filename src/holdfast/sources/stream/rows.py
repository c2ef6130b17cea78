"""Reads batches of an embedded stream in tasks, as rows with the columns of Kafka messages."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from holdfast.errors import BatchError, Halt, SourceUnavailable, is_host_fault
from holdfast.flow.batch import Batch
from holdfast.flow.fault import Fault, batch_fault, unavailable_fault
from holdfast.flow.kafka_columns import kafka_schema
from holdfast.flow.shards import StreamRecord
from holdfast.flow.source import BATCH_COLUMN, FAULT_COLUMN, ITEM_COLUMN, SIZE_COLUMN
from holdfast.sources.stream.cursor import Cursor, Gap
from holdfast.sources.stream.ends import Ends
from holdfast.sources.stream.stream import Stream, shard_folder

LOG_APPEND_TIME = 1
"""The `timestamp_type` of Kafka for times that the log has set."""
_SYSTEM = pa.schema(
    [
        (BATCH_COLUMN, pa.dictionary(pa.int32(), pa.string())),
        (ITEM_COLUMN, pa.int64()),
        (SIZE_COLUMN, pa.int64()),
        (FAULT_COLUMN, pa.string()),
    ]
)


def arrow_schema() -> Any:
    """All columns: the system columns, then those of Kafka messages."""
    return pa.schema([*_SYSTEM, *kafka_schema()])


@dataclass(frozen=True)
class OffsetRange:
    """The records [start, end) of a shard that a batch reads."""

    batch: str
    shard: str
    number: int
    start: int
    end: int


@dataclass(frozen=True)
class StreamRows:
    """The batches of a round, each read by one task in order. A `TaskRows`."""

    folder: Path
    name: str
    id: str
    ranges: Sequence[OffsetRange]
    schema: Any

    @property
    def tasks(self) -> int:
        return len(self.ranges)

    def rows(self, task: int) -> Iterator[Any]:
        wanted = self.ranges[task]
        try:
            self._check()
            with closing(Ends(self.folder / self.name, writable=False)) as ends:
                yield from self._read(wanted, ends)
        except (BatchError, Halt, SourceUnavailable, OSError) as error:
            away = isinstance(error, SourceUnavailable) or is_host_fault(error)
            yield _faulty(wanted, unavailable_fault(str(error)) if away else batch_fault(str(error)))

    def _check(self) -> None:
        if Stream.open(self.folder, self.name).id != self.id:
            raise BatchError(f"stream {self.name} was deleted and created again after the batch was planned")

    def _read(self, wanted: OffsetRange, ends: Ends) -> Iterator[Any]:
        folder = shard_folder(self.folder / self.name, wanted.number)
        cursor = Cursor(folder, wanted.shard, wanted.number, ends, wanted.start)
        while cursor.next < wanted.end:
            records = cursor.read()
            if isinstance(records, Gap):
                raise BatchError(f"offsets {records.start} to {records.end - 1} of {wanted.shard} are deleted by now")
            if not records:
                raise BatchError(f"{wanted.shard} ends at {cursor.next}, and the batch at {wanted.end}")
            kept = records[: max(0, wanted.end - records[0].offset)]
            if kept:
                yield self._rows(wanted, kept)

    def _rows(self, wanted: OffsetRange, records: Sequence[StreamRecord]) -> Any:
        count = len(records)
        offsets = [record.offset for record in records]
        pairs = [[{"key": name, "value": value} for name, value in record.headers] or None for record in records]
        sizes = [len(record.key or b"") + len(record.body or b"") for record in records]
        cells = {
            "topic": [self.name] * count,
            "partition": [wanted.number] * count,
            "offset": offsets,
            "timestamp": [record.timestamp * 1000 for record in records],
            "timestamp_type": [LOG_APPEND_TIME] * count,
            "key": [record.key for record in records],
            "value": [record.body for record in records],
            "headers": pairs,
        }
        data = [pa.array(cells[field.name], field.type) for field in kafka_schema()]
        system = [_batch_column(wanted, count), pa.array(offsets, pa.int64()), pa.array(sizes, pa.int64())]
        arrays = [*system, pa.nulls(count, pa.string()), *data]
        return pa.RecordBatch.from_arrays(arrays, schema=arrow_schema())


def ranges(batches: Sequence[Batch]) -> list[OffsetRange]:
    """What to read of each batch: without the gap at its start, and without batches that are nothing but a gap."""
    found = []
    for batch in batches:
        start = max([int(batch.cut.start["offset"]), *(gap_end for _, gap_end in batch.cut.gaps)])
        end = int(batch.cut.end["offset"])
        if start < end:
            found.append(OffsetRange(batch.id, batch.lease.key, int(batch.lease.spec["shard"]), start, end))
    return found


def _batch_column(wanted: OffsetRange, count: int) -> Any:
    return pa.DictionaryArray.from_arrays(pa.array([0] * count, pa.int32()), pa.array([wanted.batch], pa.string()))


def _faulty(wanted: OffsetRange, fault: Fault) -> Any:
    schema = arrow_schema()
    system = [
        _batch_column(wanted, 1),
        pa.array([wanted.start], pa.int64()),
        pa.array([0], pa.int64()),
        pa.array([fault.encode()], pa.string()),
    ]
    nulls = [pa.nulls(1, field.type) for field in kafka_schema()]
    return pa.RecordBatch.from_arrays([*system, *nulls], schema=schema)
