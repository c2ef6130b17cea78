"""Reads files of an archive back as Kafka rows, in the order of their offsets."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.buckets.bucket import Bucket
from holdfast.errors import HoldfastError, Unavailable
from holdfast.flow.fault import Fault, batch_fault, unavailable_fault
from holdfast.flow.format import Format
from holdfast.flow.kafka_columns import (
    HEADERS,
    KEY,
    OFFSET,
    PARTITION,
    TIMESTAMP,
    TOPIC,
    VALUE,
    kafka_schema,
    message_source,
)
from holdfast.flow.letter import SourceRecord
from holdfast.flow.source import BATCH_COLUMN, FAULT_COLUMN, ITEM_COLUMN, SIZE_COLUMN
from holdfast.flow.staging import StagedBatch
from holdfast.sources.archive.catalog import ArchivedFile

KAFKA_SCHEMA = kafka_schema()
SCHEMA = pa.schema(
    [
        (BATCH_COLUMN, pa.string()),
        (ITEM_COLUMN, pa.int64()),
        (FAULT_COLUMN, pa.string()),
        (SIZE_COLUMN, pa.int64()),
        *KAFKA_SCHEMA,
    ]
)


@dataclass(frozen=True)
class ArchivedBatch:
    """Offsets [start, end) of one topic partition, and the commits' files that hold them."""

    id: str
    topic: str
    partition: int
    start: int
    end: int
    commits: tuple[tuple[ArchivedFile, ...], ...]
    format: Format


@dataclass(frozen=True)
class ArchiveRead:
    """A direct read: one task per batch."""

    bucket: Bucket
    batches: Sequence[ArchivedBatch]
    schema: Any

    @property
    def tasks(self) -> int:
        return len(self.batches)

    def rows(self, task: int) -> Iterator[Any]:
        batch = self.batches[task]
        try:
            for files in batch.commits:
                yield from self._of_commit(batch, files)
        except Unavailable as away:
            yield _faulty(batch, unavailable_fault(str(away)))
        except (HoldfastError, ValueError, OSError) as error:
            yield _faulty(batch, batch_fault(str(error)))

    def records(self, batch: StagedBatch, faults: Sequence[tuple[int, Fault]]) -> Iterator[SourceRecord]:
        """Implements `RecordReader`: the messages of these offsets, from the files that hold them."""
        (archived,) = [found for found in self.batches if found.id == batch.id]
        files = [file for of_commit in archived.commits for file in of_commit]
        wanted = pa.array([offset for offset, _ in faults], pa.int64())
        found: dict[int, dict[str, Any]] = {}
        for file in files:
            if any(file.first <= offset <= file.last for offset, _ in faults):
                for rows in self._of_file(archived, file):
                    chosen = rows.filter(pc.is_in(rows.column(OFFSET), wanted))
                    found |= {row[OFFSET]: row for row in chosen.to_pylist()}
        return (_source_record(archived, offset, found.get(offset)) for offset, _ in faults)

    def _of_commit(self, batch: ArchivedBatch, files: Sequence[ArchivedFile]) -> Iterator[Any]:
        portions = [self._of_file(batch, file) for file in files]
        if len(portions) == 1:
            yield from portions[0]
            return
        batches = [rows for portion in portions for rows in portion]
        if batches:
            # Files of one commit in several output folders share a range of offsets.
            table = pa.Table.from_batches(batches).sort_by(ITEM_COLUMN)
            yield from table.to_batches()

    def _of_file(self, batch: ArchivedBatch, file: ArchivedFile) -> Iterator[Any]:
        data = self.bucket.read(file.key)
        if data is None:
            raise ValueError(f"{file.key} of the archive does not exist")
        # Damaged bytes can end the process: Arrow's reader of ORC does not check what it reads.
        if file.sha256 and hashlib.sha256(data).hexdigest() != file.sha256:
            raise ValueError(f"{file.key} of the archive is not the file that was committed: it has another SHA-256")
        seen = 0
        for rows in batch.format.read(io.BytesIO(data)):
            whole = _kafka_rows(batch, file, rows, seen)
            seen += rows.num_rows
            offsets = whole.column("offset")
            within = pc.and_(pc.greater_equal(offsets, batch.start), pc.less(offsets, batch.end))
            chosen = whole.filter(within)
            if chosen.num_rows:
                yield chosen
        if seen != file.rows:
            raise ValueError(f"{file.key} of the archive has {seen} records instead of {file.rows}")


def _source_record(batch: ArchivedBatch, offset: int, row: Mapping[str, Any] | None) -> SourceRecord:
    origin = {TOPIC: batch.topic, PARTITION: batch.partition, OFFSET: offset}
    if row is None:
        return SourceRecord(origin, missing="the archive does not have the message any more")
    lacking = set(KAFKA_SCHEMA.names) - {TOPIC, PARTITION, OFFSET} - batch.format.keeps
    if lacking:
        return SourceRecord(origin, row[VALUE], missing=f"the archive does not keep {', '.join(sorted(lacking))}")
    headers = None if row[HEADERS] is None else [(header["key"], header["value"]) for header in row[HEADERS]]
    milliseconds = None if row[TIMESTAMP] is None else round(row[TIMESTAMP].timestamp() * 1000)
    return SourceRecord(message_source({**row, TIMESTAMP: milliseconds, HEADERS: headers}), row[VALUE])


def _kafka_rows(batch: ArchivedBatch, file: ArchivedFile, rows: Any, before: int) -> Any:
    """Return the rows with all of Kafka's columns; those that the format did not keep are null."""
    number = rows.num_rows
    given = {
        name: rows.column(name).cast(KAFKA_SCHEMA.field(name).type)
        for name in rows.schema.names
        if name in KAFKA_SCHEMA.names
    }
    given[TOPIC] = pa.repeat(pa.scalar(batch.topic), number)
    given[PARTITION] = pa.repeat(pa.scalar(batch.partition, pa.int32()), number)
    if OFFSET not in given:
        given[OFFSET] = pa.array(range(file.first + before, file.first + before + number), pa.int64())
    data = [given.get(name, pa.nulls(number, KAFKA_SCHEMA.field(name).type)) for name in KAFKA_SCHEMA.names]
    lengths = [pc.fill_null(pc.binary_length(data[KAFKA_SCHEMA.get_field_index(name)]), 0) for name in (KEY, VALUE)]
    system = [
        pa.repeat(pa.scalar(batch.id), number),
        given[OFFSET],
        pa.nulls(number, pa.string()),
        pc.add(*lengths).cast(pa.int64()),
    ]
    return pa.RecordBatch.from_arrays([*system, *data], names=SCHEMA.names)


def _faulty(batch: ArchivedBatch, fault: Fault) -> Any:
    """A record batch of one row, whose fault makes the whole batch fail."""
    system = [
        pa.array([batch.id]),
        pa.array([batch.start], pa.int64()),
        pa.array([fault.encode()]),
        pa.array([0], pa.int64()),
    ]
    return pa.RecordBatch.from_arrays(
        [*system, *(pa.nulls(1, field.type) for field in KAFKA_SCHEMA)], names=SCHEMA.names
    )
