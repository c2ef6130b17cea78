"""Lines of a byte range, found with numpy: no Python code runs per line.

A range owns the lines that begin in [start, end): it skips to the first of them, and reads beyond its end to finish the
last. So all ranges of an object give every line exactly once, whatever their sizes and order.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from holdfast.sources.objects.object_ref import Damaged, Stream

CHUNK = 8 << 20
OVERRUN = 64 << 10
KEPT_OF_LONG_LINE = 64 << 10
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
NOT_OF_THE_LINE = len(BYTE_ORDER_MARK) + 1
"""Bytes that may not belong to an unfinished line: a byte order mark before it, a carriage return behind it."""
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
    """Where each begins in the object."""

    def __len__(self) -> int:
        return len(self.starts)

    def part(self, start: int, end: int) -> Lines:
        """Some of the lines."""
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
    """The lines that begin in [start, end). The stream must stand one byte before `start`, or at 0."""
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

    The stream stands at the byte before `start`: if that is a line break, a line begins at `start` itself.
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
