"""CSV with a header line, by Arrow's parser.

A field in quotes may contain line breaks, so the next record cannot be found from the middle of a file: an object is
read from its beginning. A record ends at a line break outside of quotes; its item is where it begins.
"""

from __future__ import annotations

import csv
import itertools
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from holdfast.errors import BatchError, Refused
from holdfast.sources.objects.codecs.codec import Portion, StreamCodec
from holdfast.sources.objects.codecs.lines import CHUNK, LineCodec, Lines, LongLine, split_quoted_lines
from holdfast.sources.objects.object_ref import Damaged, Stream

_ZONE = r":\d\d(\.\d+)?(Z|[+-]\d\d(:?\d\d)?)$"


class Csv(StreamCodec):
    """Columns of the schema, by the names of the header. An empty field is null unless it is in quotes."""

    has_header = True

    def __init__(self, schema: pa.Schema, longest: int = 64 << 20, chunk: int = CHUNK) -> None:
        self.schema = schema
        self._longest = longest
        self._chunk = chunk
        self._parsed = {field.name: _parsed_as(field.type, field.name) for field in schema}

    def read(self, data: Stream, start: int, end: int) -> Iterator[Portion]:
        found = self.texts(data, start, end)
        first = next(found, None)
        if first is None:
            return
        if isinstance(first, LongLine):
            raise Damaged("it is not a valid CSV file: its header is too long")
        rows = _Rows(self.schema, self._longest, _header(first.line(0), self.schema.names), self._parsed)
        yield from rows.portions(itertools.chain([first.part(1, len(first))], found))

    def texts(self, data: Stream, start: int, end: int) -> Iterator[Lines | LongLine]:  # noqa: ARG002 - all of it
        return split_quoted_lines(data, longest=self._longest, chunk=self._chunk)


class _Rows(LineCodec):
    """The lines of an object after its header."""

    def __init__(self, schema: pa.Schema, longest: int, header: list[str], parsed: dict[str, Any]) -> None:
        super().__init__(schema, longest)
        self._header = header
        self._convert = pa.csv.ConvertOptions(
            column_types=parsed,
            include_columns=list(parsed),
            include_missing_columns=True,
            null_values=[""],
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
        )

    def decode(self, lines: Lines) -> tuple[Any, list[Any]]:
        filled = lines.ends > lines.starts
        lines = Lines(lines.data, lines.starts[filled], lines.ends[filled], lines.items[filled])
        if not len(lines):
            return lines.items, [pa.array([], field.type) for field in self.schema]
        text = _with_break(lines)
        table = pa.csv.read_csv(
            pa.BufferReader(text),
            read_options=pa.csv.ReadOptions(use_threads=False, block_size=len(text) + 1, column_names=self._header),
            parse_options=pa.csv.ParseOptions(newlines_in_values=True),
            convert_options=self._convert,
        )
        if table.num_rows != len(lines):
            raise ValueError("quotes are not where they should be")
        return lines.items, [_typed(table.column(field.name).combine_chunks(), field.type) for field in self.schema]


def _with_break(lines: Lines) -> Any:
    """The text of the lines with a final line break: without it Arrow misreads an empty last field after quotes."""
    start, end, data = int(lines.starts[0]), int(lines.ends[-1]), lines.data
    behind = data[end : end + 2].partition(b"\n")
    if not behind[1]:
        return data[start:end] + b"\n"
    return pa.py_buffer(data).slice(start, end + len(behind[0]) + 1 - start)


def _header(line: bytes, wanted: list[str]) -> list[str]:
    """The names of the columns. Raises `BatchError` if a wanted column is ambiguous, or if there is none."""
    try:
        names = next(csv.reader([line.decode()]), [])
    except (UnicodeDecodeError, csv.Error) as error:
        raise Damaged(f"it is not a valid CSV file: its header cannot be read: {error}") from error
    twice = [name for name in wanted if names.count(name) > 1]
    if twice:
        raise BatchError(f"the header has the column {twice[0]} more than once")
    if not set(names) & set(wanted):
        raise BatchError(f"the header has none of the columns of the schema; it has {', '.join(names)[:200]}")
    return names


def _parsed_as(kind: Any, column: str) -> Any:
    types = pa.types
    if types.is_timestamp(kind):
        return pa.string()  # Arrow's CSV parser takes times with a zone or times without, not both
    plain = (types.is_integer, types.is_floating, types.is_boolean, types.is_string, types.is_date32, types.is_decimal)
    if any(is_kind(kind) for is_kind in plain):
        return kind
    raise Refused(f"schema: column {column} cannot be read from CSV as {kind}; use another type, such as STRING")


def _typed(column: Any, kind: Any) -> Any:
    if not pa.types.is_timestamp(kind):
        return column
    if kind.tz is None:
        return column.cast(kind)
    nothing = pa.scalar(None, pa.string())
    zoned = pc.match_substring_regex(column, _ZONE)
    # A time without a zone is taken as UTC.
    plain = pc.if_else(zoned, nothing, column).cast(pa.timestamp(kind.unit)).cast(kind)
    return pc.coalesce(pc.if_else(zoned, column, nothing).cast(kind), plain)
