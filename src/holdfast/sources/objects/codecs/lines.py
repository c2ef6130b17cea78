"""Codecs of lines: many lines become columns in compiled code, and lines that cannot be decoded become faults.

A line codec decodes all lines it is given, or raises `ValueError`. `sift` then halves them until each bad line is found
by itself, so that the good lines beside it are kept.
"""

from __future__ import annotations

import sys
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeAlias

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.json

from holdfast.flow.fault import Fault, record_fault
from holdfast.formats._json import parsed_schema
from holdfast.sources.objects.codecs.codec import Portion, StreamCodec
from holdfast.sources.objects.object_ref import Damaged, Stream

TRIMMED = 64
"""Characters of white space around a JSON object that are trimmed; a line with more is refused."""
_OPEN, _CLOSE = ord("{"), ord("}")


class LineCodec(StreamCodec):
    """A codec whose records are lines."""

    splits = True

    def __init__(self, schema: pa.Schema, longest: int) -> None:
        self.schema = schema
        self.longest = longest

    @abstractmethod
    def decode(self, lines: Lines) -> tuple[Any, list[Any]]:
        """Items of the records, and the data columns. Raises `ValueError` if a line is not a record."""

    def read(self, data: Stream, start: int, end: int) -> Iterator[Portion]:
        return self.portions(self.texts(data, start, end))

    def texts(self, data: Stream, start: int, end: int) -> Iterator[Lines | LongLine]:
        return split_lines(data, start, end, longest=self.longest)

    def portions(self, found: Iterable[Lines | LongLine]) -> Iterator[Portion]:
        """The records and faults of these lines."""
        for lines in found:
            if isinstance(lines, LongLine):
                reason = f"the record is longer than {self.longest} bytes"
                fault = record_fault(reason, lines.beginning, self.longest + 1)
                yield self._portion([], [(lines.item, fault)])
            else:
                yield self._portion(*sift(self, lines))

    def _portion(self, good: Sequence[tuple[Any, list[Any]]], bad: Sequence[tuple[int, Fault]]) -> Portion:
        if not good:
            return Portion([], [pa.array([], field.type) for field in self.schema], bad)
        return Portion(*concatenated(good), bad)


class Text(LineCodec):
    """Every line is a record, in the column `value`."""

    def __init__(self, longest: int = 64 << 20) -> None:
        super().__init__(pa.schema([("value", pa.string())]), longest)

    def decode(self, lines: Lines) -> tuple[Any, list[Any]]:
        check_utf8(lines)
        return lines.items, [strings(lines)]


class Jsonl(LineCodec):
    """Every line that is not blank is a JSON object: typed columns, or without a schema the line as it is."""

    def __init__(self, schema: pa.Schema | None, longest: int = 64 << 20) -> None:
        super().__init__(pa.schema([("value", pa.string())]) if schema is None else schema, longest)
        self._typed = schema is not None
        self._parsed = None if schema is None else parsed_schema(schema)

    def decode(self, lines: Lines) -> tuple[Any, list[Any]]:
        check_utf8(lines)
        lines = _objects(lines)
        if not len(lines):
            return lines.items, [pa.array([], field.type) for field in self.schema]
        text = pa.py_buffer(lines.data).slice(int(lines.starts[0]), int(lines.ends[-1] - lines.starts[0]))
        if not self._typed:
            _check_number(_objects_in(text), lines)
            return lines.items, [strings(lines)]
        table = self._parse(text)
        _check_number(table.num_rows, lines)
        return lines.items, self._typed_columns(table)

    def _parse(self, text: pa.Buffer) -> pa.Table:
        return pa.json.read_json(
            pa.BufferReader(text),
            read_options=pa.json.ReadOptions(use_threads=False, block_size=text.size + 1),
            parse_options=pa.json.ParseOptions(
                explicit_schema=self._parsed, unexpected_field_behavior="ignore", newlines_in_values=False
            ),
        )

    def _typed_columns(self, table: pa.Table) -> list[Any]:
        columns = [table.column(field.name).combine_chunks() for field in self.schema]
        return [
            column if column.type.equals(field.type) else column.cast(field.type)
            for column, field in zip(columns, self.schema, strict=True)
        ]


def _check_number(objects: int, lines: Lines) -> None:
    # Every line begins and ends with a brace, so no object spans two lines: equal counts mean one object per line.
    if objects != len(lines):
        raise ValueError("the line has more than one JSON object")


def _objects_in(text: pa.Buffer) -> int:
    """The number of objects, without their fields: four times as fast as Arrow, which reads the fields."""
    try:
        return len(_syntax().decode_lines(text))
    except (msgspec.MsgspecError, RecursionError) as error:
        raise ValueError(str(error)) from None


@cache
def _syntax() -> Any:
    """A decoder that checks the syntax and discards the values."""
    return msgspec.json.Decoder(msgspec.defstruct("Anything", [], gc=False))


def sift(codec: LineCodec, lines: Lines) -> tuple[list[tuple[Any, list[Any]]], list[tuple[int, Fault]]]:
    """The decoded good lines, in order, and the items and faults of the others."""
    try:
        return [codec.decode(lines)], []
    except ValueError as error:
        if len(lines) == 1:
            return [], [(int(lines.items[0]), record_fault(_reason(error), lines.line(0)))]
    half = len(lines) // 2
    (good, bad), (more_good, more_bad) = sift(codec, lines.part(0, half)), sift(codec, lines.part(half, len(lines)))
    return good + more_good, bad + more_bad


def concatenated(parts: Sequence[tuple[Any, list[Any]]]) -> tuple[Any, list[Any]]:
    """The parts that `sift` decoded, concatenated."""
    if len(parts) == 1:
        return parts[0]
    items = np.concatenate([items for items, _ in parts])
    return items, [pa.concat_arrays(columns) for columns in zip(*(columns for _, columns in parts), strict=True)]


def check_utf8(lines: Lines) -> None:
    """Raise `ValueError` if a line is not UTF-8."""
    if not len(lines) or lines.data.isascii():
        return
    start, end = int(lines.starts[0]), int(lines.ends[-1])
    # Line breaks are still between the lines, so no character can span two of them.
    text = pa.py_buffer(lines.data).slice(start, end - start)
    borders = pa.py_buffer(np.array([0, text.size], np.int64))
    try:
        pa.LargeStringArray.from_buffers(1, borders, text).validate(full=True)
    except pa.ArrowInvalid as error:
        raise ValueError("it is not valid UTF-8") from error


def strings(lines: Lines) -> Any:
    """Each line as a string. All bytes are copied once."""
    lengths = lines.ends - lines.starts
    offsets = np.zeros(len(lines) + 1, np.int32)
    np.cumsum(lengths, out=offsets[1:])
    text = b""
    if len(lines):
        text = lines.data[lines.starts[0] : lines.ends[-1]].replace(b"\r\n", b"").replace(b"\n", b"")
    if len(text) != offsets[-1]:
        # Lines were left out, or a lone carriage return is at the end.
        text = b"".join(lines.line(index) for index in range(len(lines)))
    return pa.StringArray.from_buffers(len(lines), pa.py_buffer(offsets), pa.py_buffer(text))


def _reason(error: Exception) -> str:
    """Why a line cannot be decoded, without the row number that Arrow adds."""
    return str(error).removesuffix(" in row 0").removesuffix(".")


def _objects(lines: Lines) -> Lines:
    """The lines that are not blank. Raises `ValueError` unless each looks like an object."""
    # Arrow's parser would accept objects that span lines or share a line, and it crashes on a lone `null`.
    numbers, starts, ends = np.frombuffer(lines.data, np.uint8), lines.starts, lines.ends
    for _ in range(TRIMMED):
        filled = ends > starts
        if not filled.all():
            lines = Lines(lines.data, lines.starts[filled], lines.ends[filled], lines.items[filled])
            starts, ends = starts[filled], ends[filled]
        if not len(starts):
            return lines
        before, behind = _is_space(numbers[starts]), _is_space(numbers[ends - 1])
        if not before.any() and not behind.any():
            break
        starts, ends = starts + before, np.maximum(ends - behind, starts + before)
    if not ((numbers[starts] == _OPEN) & (numbers[ends - 1] == _CLOSE)).all():
        raise ValueError("it is not a JSON object")
    return lines


def _is_space(numbers: Any) -> Any:
    return (numbers == ord(" ")) | (numbers == ord("\t")) | (numbers == ord("\r"))


CHUNK = 8 << 20
OVERRUN = 64 << 10
KEPT_OF_LONG_LINE = 64 << 10
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
NOT_OF_THE_LINE = len(BYTE_ORDER_MARK) + 1
"""Bytes by which an unfinished line may be longer than its text: a byte order mark before it, a carriage return after
it."""
END_OF_STREAM = sys.maxsize

_LF, _CR, _QUOTE, _COMMA = 10, 13, 34, 44
_BORDERS = np.zeros(256, np.bool_)
_BORDERS[[_LF, _CR, _QUOTE, _COMMA]] = True

Offsets: TypeAlias = "np.ndarray[Any, np.dtype[np.int64]]"


@dataclass(frozen=True, slots=True)
class Lines:
    """Consecutive lines in one buffer. Line i is `data[starts[i]:ends[i]]`, without its line break."""

    data: bytes
    starts: Offsets
    ends: Offsets
    items: Offsets
    """The offset of each line in the object."""

    def __len__(self) -> int:
        return len(self.starts)

    def part(self, start: int, end: int) -> Lines:
        """The lines from `start` to `end`."""
        return Lines(self.data, self.starts[start:end], self.ends[start:end], self.items[start:end])

    def line(self, index: int) -> bytes:
        return self.data[self.starts[index] : self.ends[index]]


@dataclass(frozen=True, slots=True)
class LongLine:
    """A line longer than the limit: where it begins, and its first bytes."""

    item: int
    beginning: bytes


def split_lines(
    stream: Stream, start: int = 0, end: int = END_OF_STREAM, *, longest: int = 64 << 20, chunk: int = CHUNK
) -> Iterator[Lines | LongLine]:
    """The lines that begin in [start, end). The stream must be positioned one byte before `start`, or at 0."""
    at, block = _first_begin(stream, start, end, chunk) if start else (0, b"")
    tail, overrun = b"", OVERRUN
    while at < end:
        read_to = at + len(tail)
        if not block and read_to < end:
            block = stream.read(min(chunk, end - read_to))
        elif not block:
            block, overrun = stream.read(overrun), min(2 * overrun, chunk)
        if not block:
            yield from bounded(_lines(tail, np.array([len(tail)], np.int64), at), longest) if tail else ()
            return
        breaks = np.flatnonzero(np.frombuffer(block, np.uint8) == _LF) + len(tail)
        data, block = tail + block if tail else block, b""
        if len(breaks):
            lines = _lines(data, breaks, at)
            yield from bounded(lines.part(0, int(np.searchsorted(lines.items, end))), longest)
            tail, at = data[breaks[-1] + 1 :], at + int(breaks[-1]) + 1
        elif len(data) > longest + NOT_OF_THE_LINE:
            yield LongLine(at, _without_mark(data, at)[:KEPT_OF_LONG_LINE])
            at, block = _first_begin(stream, at + len(data) + 1, end, chunk)
            tail = b""
        else:
            tail = data


def split_quoted_lines(stream: Stream, *, longest: int = 64 << 20, chunk: int = CHUNK) -> Iterator[Lines | LongLine]:
    """The lines of a whole stream; a line break within quotes does not count. Raises `Damaged` if it ends in quotes."""
    data, at, scanned, quoted, skipping, ended = b"", 0, 0, 0, False, False
    while not ended:
        block = stream.read(chunk)
        data, ended = data + block, not block
        # The neighbours of a quote decide whether it begins or ends a field, so the last byte waits for the next.
        limit = len(data) if ended else max(len(data) - 1, scanned)
        quotes = _field_quotes(data, scanned, limit, at)
        breaks = np.flatnonzero(np.frombuffer(data, np.uint8)[scanned:limit] == _LF) + scanned
        breaks = breaks[(quoted + np.searchsorted(quotes, breaks)) % 2 == 0]
        quoted, scanned = (quoted + len(quotes)) % 2, limit
        if len(breaks):
            yield from bounded(_lines(data, breaks, at).part(int(skipping), len(breaks)), longest)
            begin, skipping = int(breaks[-1]) + 1, False
            data, at, scanned = data[begin:], at + begin, scanned - begin
        if len(data) > longest + NOT_OF_THE_LINE:
            if not skipping:
                yield LongLine(at, _without_mark(data, at)[:KEPT_OF_LONG_LINE])
            data, at, scanned, skipping = data[-2:], at + len(data) - 2, scanned - (len(data) - 2), True
    if quoted:
        raise Damaged("it ends within quotes")
    if data and not skipping:
        yield from bounded(_lines(data, np.array([len(data)], np.int64), at), longest)


def _field_quotes(data: bytes, start: int, end: int, at: int) -> Offsets:
    """Where quotes begin or end a field; quotes inside a plain field, as in 5" disks, do not count."""
    numbers = np.frombuffer(data, np.uint8)
    found = np.flatnonzero(numbers[start:end] == _QUOTE) + start
    if not len(found):
        return found
    before, behind = numbers[np.maximum(found - 1, 0)], numbers[np.minimum(found + 1, len(numbers) - 1)]
    first = len(BYTE_ORDER_MARK) if at == 0 and data.startswith(BYTE_ORDER_MARK) else 0
    border: Any = _BORDERS[before] | _BORDERS[behind] | (found == first) | (found == len(numbers) - 1)
    chosen: Offsets = found[border]
    return chosen


def _first_begin(stream: Stream, start: int, end: int, chunk: int) -> tuple[int, bytes]:
    """Where the first line begins, at `start` or later, and the bytes that were read from there on.

    The stream is at the byte before `start`: if that is a line break, a line begins at `start` itself.
    """
    at = start - 1
    while at < end - 1 and (block := stream.read(min(chunk, max(end - 1 - at, 1), OVERRUN))):
        found = block.find(b"\n")
        if found >= 0:
            return at + found + 1, block[found + 1 :]
        at += len(block)
    return end, b""


def _lines(data: bytes, breaks: Offsets, at: int) -> Lines:
    """The lines that end at these breaks. A carriage return before a break belongs to it."""
    numbers = np.frombuffer(data, np.uint8)
    starts = np.concatenate([np.zeros(1, np.int64), breaks[:-1] + 1])
    items = starts + at
    if at == 0 and data.startswith(BYTE_ORDER_MARK):
        starts[0] = len(BYTE_ORDER_MARK)
    returns = (breaks > starts) & (numbers[np.maximum(breaks - 1, 0)] == _CR)
    return Lines(data, starts, breaks - returns, items)


def _without_mark(data: bytes, at: int) -> bytes:
    return data if at else data.removeprefix(BYTE_ORDER_MARK)


def bounded(lines: Lines, longest: int) -> Iterator[Lines | LongLine]:
    """The same lines; each line longer than the limit becomes a `LongLine`."""
    begun = 0
    for index in np.flatnonzero(lines.ends - lines.starts > longest).tolist():
        if begun < index:
            yield lines.part(begun, index)
        yield LongLine(int(lines.items[index]), lines.line(index)[:KEPT_OF_LONG_LINE])
        begun = index + 1
    if begun < len(lines):
        yield lines.part(begun, len(lines))
