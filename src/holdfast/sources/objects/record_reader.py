"""Reads single records of objects a second time, for dead letters, and turns them into rows again for redrives.

The text of a record is kept as it is in the object. A row of Parquet, Avro or SequenceFile has no text: it is kept as
JSON of its columns, for people, and as Arrow's bytes, which have the types.
"""

from __future__ import annotations

import base64
import io
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from itertools import groupby
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import pyarrow as pa

from holdfast.errors import BatchError, Refused
from holdfast.flow.fault import COLUMNS, DAMAGE, Fault
from holdfast.flow.letter import Letter, SourceRecord
from holdfast.flow.staging import StagedBatch
from holdfast.formats._json_objects import json_objects
from holdfast.sources.objects.codecs.codec import BlockCodec, Portion, Range, StreamCodec
from holdfast.sources.objects.codecs.lines import END_OF_STREAM, LineCodec, Lines, LongLine, split_lines
from holdfast.sources.objects.codecs.typed import cast_rows
from holdfast.sources.objects.compression import Peeked, compression_of, decompressed
from holdfast.sources.objects.config import LINE_CODECS, ObjectsConfig
from holdfast.sources.objects.object_ref import ObjectRef
from holdfast.sources.objects.planner import ObjectPlanner
from holdfast.sources.objects.splits import Split
from holdfast.sources.objects.task_rows import ObjectRows

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from holdfast.sources.objects.codecs.codec import Codec

ARROW, HEADER = "arrow", "header"
"""Fields of a letter's `source`: the row as base64 of Arrow's stream format, and the header of a CSV file."""
WINDOW_BYTES = 1 << 20
NO_RECORD = "the object has no record there"


class ObjectRecordReader:
    """Reads records in one task. An object that must be read from its beginning stays open, so that it is read once."""

    def __init__(self, rows: ObjectRows) -> None:
        self._rows = rows
        self._open: dict[tuple[str, int], _ObjectRecords] = {}

    def records(self, batch: StagedBatch, faults: Sequence[tuple[int, Fault]]) -> Iterator[SourceRecord]:
        splits = [split for packed in self._rows.packed for split in packed if split.batch == batch.id]
        splits.sort(key=lambda split: (split.base, split.start))
        bases = sorted({split.base for split in splits})
        for base, of_object in groupby(faults, key=lambda found: bases[bisect_right(bases, found[0]) - 1]):
            of_base = [split for split in splits if split.base == base]
            for item, fault in of_object:
                yield self._record(of_base, item - base, fault)

    def _record(self, splits: Sequence[Split], item: int, fault: Fault) -> SourceRecord:
        source = {**splits[0].ref.description(), "item": item}
        if fault.kind == DAMAGE:
            return SourceRecord(source)
        identity = (splits[0].batch, splits[0].base)
        try:
            if identity not in self._open:
                self._open[identity] = self._finder(splits)
            return self._open[identity].record(item, source)
        except BatchError as gone:
            return SourceRecord(source, missing=str(gone))

    def _finder(self, splits: Sequence[Split]) -> _ObjectRecords:
        codec, ref = self._rows.codec, splits[0].ref
        if isinstance(codec, BlockCodec):
            return _SplitRows([_Forward(_row_pieces(codec, split)) for split in splits])
        assert isinstance(codec, StreamCodec)
        with ref.opened() as data:
            compression = compression_of(ref.path, self._rows.compression, Peeked(data).head)
        if compression == "none" and isinstance(codec, LineCodec):
            return _PlainLines(codec, ref)
        return _Forward(_text_pieces(codec, ref, compression))


class _ObjectRecords(Protocol):
    def record(self, item: int, source: dict[str, Any]) -> SourceRecord:
        """The record that has this item within its object. Raises `BatchError`, `Unavailable`."""


class _RecordPortion(Protocol):
    """Some records of an object, in the order of their items."""

    first: int
    last: int

    def record(self, item: int, source: dict[str, Any]) -> SourceRecord: ...


class _Forward:
    """Reads an object from its beginning on, and once more if a lower item is wanted."""

    def __init__(self, pieces: Callable[[], Iterator[_RecordPortion]]) -> None:
        self._pieces = pieces
        self._left: Iterator[_RecordPortion] | None = None
        self._piece: _RecordPortion | None = None

    def first(self) -> int | None:
        """The first item; None if there are no records."""
        self._begin()
        return None if self._piece is None else self._piece.first

    def record(self, item: int, source: dict[str, Any]) -> SourceRecord:
        if self._left is None or self._piece is None or item < self._piece.first:
            self._begin()
        while self._piece is not None and self._piece.last < item and self._left is not None:
            self._piece = next(self._left, None)
        return SourceRecord(source, missing=NO_RECORD) if self._piece is None else self._piece.record(item, source)

    def _begin(self) -> None:
        self._left = self._pieces()
        self._piece = next(self._left, None)


class _SplitRows:
    """Finds the split that has a row: rows are numbered across the object, and each split knows its first row."""

    def __init__(self, splits: Sequence[_Forward]) -> None:
        self._splits = splits
        self._firsts: dict[int, int | None] = {}

    def record(self, item: int, source: dict[str, Any]) -> SourceRecord:
        low, high = 0, len(self._splits)
        while high - low > 1:
            middle = (low + high) // 2
            if middle not in self._firsts:
                self._firsts[middle] = self._splits[middle].first()
            first = self._firsts[middle]
            # A split without a first row has none: its rows belong to the splits before it.
            low, high = (middle, high) if first is not None and first <= item else (low, middle)
        return self._splits[low].record(item, source)


class _PlainLines:
    """A line that begins at a byte of an object that is not compressed."""

    def __init__(self, codec: LineCodec, ref: ObjectRef) -> None:
        self._codec = codec
        self._window = _Window(ref)

    def record(self, item: int, source: dict[str, Any]) -> SourceRecord:
        self._window.seek(max(0, item - 1))
        found = next(split_lines(self._window, item, item + 1, longest=self._codec.longest), None)
        return SourceRecord(source, missing=NO_RECORD) if found is None else _TextPortion(found).record(item, source)


class _Window:
    """A `Stream` over an object that keeps the bytes around the last line: the next one is mostly among them."""

    def __init__(self, ref: ObjectRef) -> None:
        self._ref = ref
        self._at = self._start = 0
        self._kept = b""

    def seek(self, offset: int) -> None:
        self._at = offset

    def read(self, size: int, /) -> bytes:
        first = self._at - self._start
        if first < 0 or first + size > len(self._kept):
            with self._ref.opened() as data:
                data.seek(self._at)
                self._start, self._kept, first = self._at, data.read(max(size, WINDOW_BYTES)), 0
        part = self._kept[first : first + size]
        self._at += len(part)
        return part


class _TextPortion:
    """Records that are text."""

    def __init__(self, found: Lines | LongLine, header: bytes | None = None) -> None:
        self._found = found
        self._header = header
        items = [found.item] if isinstance(found, LongLine) else found.items
        self.first, self.last = int(items[0]), int(items[-1])

    def record(self, item: int, source: dict[str, Any]) -> SourceRecord:
        found = self._found
        if isinstance(found, LongLine):
            return SourceRecord(source, missing="the record is longer than max_line_bytes; the object has it there")
        index = int(np.searchsorted(found.items, item))
        if index == len(found) or found.items[index] != item:
            return SourceRecord(source, missing=NO_RECORD)
        if self._header is not None:
            source = {**source, HEADER: self._header.decode("utf-8", "backslashreplace")}
        return SourceRecord(source, found.line(index))


def _text_pieces(codec: StreamCodec, ref: ObjectRef, compression: Any) -> Callable[[], Iterator[_RecordPortion]]:
    def pieces() -> Iterator[_RecordPortion]:
        header = None
        with ref.opened() as data:
            for found in codec.texts(decompressed(data, compression), 0, END_OF_STREAM):
                if codec.has_header and header is None and isinstance(found, Lines):
                    header = found.line(0)
                if isinstance(found, LongLine) or len(found):
                    yield _TextPortion(found, header)

    return pieces


class _RowPortion:
    """Records that are rows of a block."""

    def __init__(self, portion: Portion, schema: pa.Schema) -> None:
        self._portion = portion
        self._schema = schema
        self._faults = dict(portion.faults)
        items = [*np.asarray(portion.items).tolist()[:: max(1, len(portion.items) - 1)], *self._faults]
        self.first, self.last = min(items), max(items)

    def record(self, item: int, source: dict[str, Any]) -> SourceRecord:
        portion, fault = self._portion, self._faults.get(item)
        if fault is not None:
            # The row does not fit the columns: its fault has it as JSON, or the beginning of that.
            missing = None if fault.size is None else "the row does not fit the schema; the object has it there"
            return SourceRecord(source, None if missing else (fault.raw or "").encode(), fault.form, missing)
        index = int(np.searchsorted(portion.items, item))
        if index == len(portion.items) or portion.items[index] != item:
            return SourceRecord(source, missing=NO_RECORD)
        row = pa.RecordBatch.from_arrays([column.slice(index, 1) for column in portion.columns], schema=self._schema)
        text = bytes(json_objects(row)[0].cast(pa.binary()).as_py())
        return SourceRecord({**source, ARROW: _arrow_stream(row)}, text, COLUMNS)


def _row_pieces(codec: BlockCodec, split: Split) -> Callable[[], Iterator[_RecordPortion]]:
    def pieces() -> Iterator[_RecordPortion]:
        with split.ref.opened() as data:
            for portion in codec.read(data, Range(split.start, split.end, split.ref.size)):
                if len(portion.items) or portion.faults:
                    yield _RowPortion(portion, codec.schema)

    return pieces


def _arrow_stream(row: Any) -> str:
    data = pa.BufferOutputStream()
    with pa.ipc.new_stream(data, row.schema) as writer:
        writer.write_batch(row)
    return base64.b64encode(data.getvalue()).decode()


# --- records of dead letters become rows again -----------------------------------------------------------------------


JSON_CODECS = ("jsonl", "json")


class RecordRebuilder:
    """A `Rebuilder`. A letter keeps the text of a record, or JSON of its columns."""

    keeps = None

    def __init__(self, planner: ObjectPlanner, config: ObjectsConfig) -> None:
        self._planner = planner
        self._config = config

    def fields(self) -> StructType:
        return self._planner.columns()

    def refusal(self, letter: Letter) -> str | None:
        codec = self._config.codec
        has_header = letter.spilled is not None or HEADER in (letter.source or {})
        if letter.form == COLUMNS or codec in LINE_CODECS or codec in JSON_CODECS or (codec == "csv" and has_header):
            return None
        return f"a record of the codec {codec} cannot be read without the object that it was in"

    def row(self, letter: Letter) -> Any:
        source = letter.source or {}
        try:
            if ARROW in source:
                return _row_of(base64.b64decode(source[ARROW]), self._text_codec.schema)
            codec = self._json_codec if letter.form == COLUMNS else self._text_codec
        except Refused as refused:
            raise ValueError(str(refused)) from refused
        header = f"{source[HEADER]}\n".encode() if HEADER in source else b""
        items, columns = 0, list[Any]()
        for portion in codec.read(io.BytesIO(header + letter.record() + b"\n"), 0, END_OF_STREAM):
            if portion.faults:
                raise ValueError(portion.faults[0][1].reason)
            if len(portion.items):
                items += len(portion.items)
                columns = list(portion.columns)
        if items != 1:
            raise ValueError("the record is blank" if not items else f"the letter holds {items} records")
        return pa.RecordBatch.from_arrays(columns, schema=codec.schema)

    @cached_property
    def _text_codec(self) -> Any:
        codec = self._config.codec
        return self._codec("jsonl" if codec in JSON_CODECS else codec)

    @cached_property
    def _json_codec(self) -> Any:
        return self._codec("jsonl")

    def _codec(self, name: Any) -> Codec:
        from pyspark.sql.pandas.types import to_arrow_schema

        from holdfast.sources.objects.codecs import codec_of

        schema = None if self._config.schema_ is None else to_arrow_schema(self.fields(), timezone="UTC")
        return codec_of(name, schema, self._config.max_line_bytes)


def _row_of(stream: bytes, schema: pa.Schema) -> Any:
    """The row that a letter keeps as Arrow's bytes, in the columns that the settings have now."""
    portion = cast_rows(pa.ipc.open_stream(stream).read_next_batch(), np.zeros(1, np.int64), schema)
    if portion.faults:
        raise ValueError(portion.faults[0][1].reason)
    return pa.RecordBatch.from_arrays(list(portion.columns), schema=schema)
