"""The source of a redrive: each partition has some dead letters of one sink, and its position counts them.

Rows carry the key, the incarnation and the items of the records' original partitions, so that whatever is derived from
a record's origin (the id of a document, another dead letter) is the same as at the first attempt.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from holdfast.errors import BatchError
from holdfast.flow.batch import Batch, Cut, Done, Limits, Name, Plan
from holdfast.flow.fault import RECORD, Fault, batch_fault
from holdfast.flow.letter import Letter, LetterBox, LetterId, Rebuilder, SourceRecord
from holdfast.flow.source import BATCH_COLUMN, FAULT_COLUMN, ITEM_COLUMN, OffsetPositions, RereadsRecords, Source
from holdfast.flow.staging import StagedBatch
from holdfast.leases.lease import Lease, Partition

MAX_BATCH_LETTERS = 1000
"""Maximum number of letters in a batch: they are sent along with the task."""
MAX_BATCH_BYTES = 64 << 20
"""Bytes of large records in a batch, if it has more than one of them: as many as its other letters may have."""
MAX_ITEM = (1 << 63) - 1


@dataclass(frozen=True)
class PartitionLetters:
    """Letters of one partition, in the order of their items."""

    row: Lease
    """The partition's row in the live pipeline."""
    name: Name
    ids: Sequence[LetterId]
    spilled_sizes: Sequence[int] = ()
    """For each letter the bytes of its record that are not in the letter; none are in any if this is empty."""
    repeats: Sequence[int] = ()
    """The indexes of letters whose record is in an earlier letter, too: each record is sent once."""

    def partition(self) -> Partition:
        """The partition of the redrive that reads these letters."""
        spec = {"stream": self.name.stream, "label": self.name.label, "letters": encode_ids(self.ids)}
        spilled = [[number, size] for number, size in enumerate(self.spilled_sizes) if size]
        optional = {"spilled": spilled, "repeats": list(self.repeats)}
        return Partition(
            key=self.row.key,
            group=self.row.group,
            spec=spec | {name: numbers for name, numbers in optional.items() if numbers},
            estimated_count=len(self.ids),
            incarnation=self.row.commit.incarnation,
        )


def original_name(lease: Lease) -> Name:
    """The name of a redrive's partition in the live pipeline."""
    return Name(lease.spec["stream"], lease.spec["label"])


def redriven_name(lease: Lease) -> Name:
    """The name under which a redrive writes this partition. Its commits are numbered apart from the live ones."""
    return Name(lease.spec["stream"], f"{lease.spec['label']}-{lease.run}")


def letter_ids(lease: Lease) -> list[LetterId]:
    """The letters of a redrive's partition; none if its row was purged."""
    return list(decode_ids(lease.spec.get("letters", ())))


def sent_ids(lease: Lease) -> list[LetterId]:
    """The letters of a redrive's partition that are committed."""
    position = lease.progress.position
    return letter_ids(lease)[: 0 if position is None else position["offset"]]


def spilled_size(letter: Letter) -> int:
    """The bytes of the letter's record that are not in the letter."""
    return 0 if letter.spilled is None else int(letter.spilled["size"])


def encode_ids(ids: Iterable[LetterId]) -> list[Any]:
    """The ids as short JSON for a row, in the same order: containers, each with ranges of numbers."""
    encoded: list[Any] = []
    for container, group in groupby(ids, key=lambda letter: letter.container):
        ranges: list[list[int]] = []
        for number in (letter.number for letter in group):
            if ranges and ranges[-1][1] + 1 == number:
                ranges[-1][1] = number
            else:
                ranges.append([number, number])
        encoded.append([container, ranges])
    return encoded


def decode_ids(encoded: Any) -> Iterator[LetterId]:
    """The ids that `encode_ids` was given."""
    for container, ranges in encoded:
        for first, last in ranges:
            yield from (LetterId(container, number) for number in range(first, last + 1))


class LettersSource(Source, OffsetPositions, RereadsRecords):
    """Reads letters on the node, and gives the rows of each batch to one task."""

    def __init__(self, box: LetterBox, rebuilder: Rebuilder) -> None:
        self._box = box
        self._rebuilder = rebuilder

    def discover(self, state: dict[str, Any]) -> Iterable[Partition]:  # noqa: ARG002 - the run has its partitions
        return ()

    def name(self, lease: Lease) -> Name:
        return redriven_name(lease)

    def plan(self, leases: Sequence[Lease], limits: Limits) -> list[Plan]:
        most = min(MAX_BATCH_LETTERS, limits.max_records or MAX_BATCH_LETTERS)
        return [self._next(lease, most) for lease in leases]

    def _next(self, lease: Lease, most: int) -> Plan:
        position, end = lease.progress.position, len(letter_ids(lease))
        start = 0 if position is None else position["offset"]
        if start >= end:
            return Done()
        until = _within_bytes(lease.spec.get("spilled", ()), start, min(end, start + most))
        return Cut(self.position(start), self.position(until), last=until == end)

    def read(
        self,
        spark: Any,  # noqa: ARG002 - Spark only runs it
        batches: Sequence[Batch],
        columns: frozenset[str] | None = None,  # noqa: ARG002 - letters hold little
    ) -> LettersRead:
        fields = self._rebuilder.fields()
        fetched = {batch.id: self._fetched(batch) for batch in batches}
        rows = [letter_rows(batch_id, letters, self._rebuilder, fields) for batch_id, letters in fetched.items()]
        ids = {
            batch_id: {item: letter.id for item, letter in reversed([*zip(row_items(letters), letters, strict=True)])}
            for batch_id, letters in fetched.items()
            if not isinstance(letters, BatchError)
        }
        return LettersRead(rows, fields, ids)

    def record_reader(self, rows: LettersRead) -> LetterReader:
        return LetterReader(self._box, rows.ids)

    def _fetched(self, batch: Batch) -> list[Letter] | BatchError:
        ids, repeats = letter_ids(batch.lease), set(batch.lease.spec.get("repeats", ()))
        numbers = range(batch.cut.start["offset"], batch.cut.end["offset"])
        try:
            letters = self._box.fetch([ids[number] for number in numbers if number not in repeats])
            return [self._box.whole(letter) for letter in letters]
        except BatchError as gone:
            return gone


def _within_bytes(spilled: Sequence[Sequence[int]], start: int, end: int) -> int:
    """The end of a batch that begins at `start` and whose large records fit into memory; it has at least one letter."""
    size = 0
    for number, record_size in spilled:
        if start <= number < end:
            size += record_size
            if size > MAX_BATCH_BYTES and number > start:
                return number
    return end


class LettersRead:
    """A direct read: one task for each batch, which carries its rows. Picklable."""

    def __init__(self, batches: Sequence[Any], fields: Any, ids: Mapping[str, Mapping[int, LetterId]]) -> None:
        """`ids`: by batch and item, the letter that holds the record."""
        from pyspark.sql import types as kinds

        system = [
            kinds.StructField(BATCH_COLUMN, kinds.StringType()),
            kinds.StructField(ITEM_COLUMN, kinds.LongType()),
            kinds.StructField(FAULT_COLUMN, kinds.StringType()),
        ]
        self._batches = list(batches)
        self.ids = ids
        self.schema = kinds.StructType([*system, *fields.fields])

    @property
    def tasks(self) -> int:
        return len(self._batches)

    def rows(self, task: int) -> Iterator[Any]:
        yield from self._batches[task].to_batches()


@dataclass(frozen=True)
class LetterReader:
    """A `RecordReader` that takes the record of a repeated fault from the letter that it comes from."""

    box: LetterBox
    ids: Mapping[str, Mapping[int, LetterId]]

    def records(self, batch: StagedBatch, faults: Sequence[tuple[int, Fault]]) -> Iterator[SourceRecord]:
        ids = self.ids[batch.id]
        letters = {letter.id: letter for letter in self.box.fetch(list({ids[item] for item, _ in faults}))}
        return (_record_of(self.box.whole(letters[ids[item]])) for item, _ in faults)


def _record_of(letter: Letter) -> SourceRecord:
    missing = letter.missing
    if letter.source is None:
        missing = "the letter that it comes from was written by an earlier version, which kept no more"
    return SourceRecord(letter.source or {}, None if letter.is_null else letter.record(), letter.form, missing)


def letter_rows(batch_id: str, letters: Sequence[Letter] | BatchError, rebuilder: Rebuilder, fields: Any) -> Any:
    """The letters of one batch as an Arrow table. A record that still cannot be rebuilt has a fault."""
    from pyspark.sql.pandas.types import to_arrow_schema

    data = to_arrow_schema(fields, timezone="UTC")
    if isinstance(letters, BatchError):
        return _table(batch_id, [(0, batch_fault(str(letters)).encode(), _null_row(data))], data)
    items = row_items(letters)
    rows = [(item, *_rebuilt(letter, rebuilder, data)) for item, letter in zip(items, letters, strict=True)]
    return _table(batch_id, rows, data)


def row_items(letters: Sequence[Letter]) -> list[int]:
    """The items of the letters' rows, which have 64 bits. Larger ones, as Kinesis has, become negative numbers."""
    count = len(letters)
    return [letter.item if letter.item <= MAX_ITEM else number - count for number, letter in enumerate(letters)]


def _rebuilt(letter: Letter, rebuilder: Rebuilder, data: Any) -> tuple[str | None, Any]:
    try:
        return None, rebuilder.row(letter)
    except ValueError as wrong:
        fault = Fault(RECORD, str(wrong), letter.raw, letter.encoding == "base64", letter.size, letter.form)
        return fault.encode(), _null_row(data)


def _null_row(data: Any) -> Any:
    import pyarrow as pa

    return pa.RecordBatch.from_arrays([pa.nulls(1, field.type) for field in data], schema=data)


def _table(batch_id: str, rows: Sequence[tuple[int, str | None, Any]], data: Any) -> Any:
    import pyarrow as pa

    records = pa.Table.from_batches([row.cast(data) for _, _, row in rows], data)
    columns = [
        pa.array([batch_id] * len(rows), pa.string()),
        pa.array([item for item, _, _ in rows], pa.int64()),
        pa.array([fault for _, fault, _ in rows], pa.string()),
    ]
    system = [(BATCH_COLUMN, pa.string()), (ITEM_COLUMN, pa.int64()), (FAULT_COLUMN, pa.string())]
    return pa.Table.from_arrays([*columns, *records.columns], schema=pa.schema([*pa.schema(system), *data]))
