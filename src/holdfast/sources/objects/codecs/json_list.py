"""A JSON document: a list of objects, or an object whose first list has the records.

Elements are found in numpy, in memory bounded by the longest element, and decoded like lines. An item is where an
element begins.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from holdfast.flow.fault import record_fault
from holdfast.formats._framing import first_of_pairs
from holdfast.sources.objects.codecs.codec import Portion, StreamCodec
from holdfast.sources.objects.codecs.lines import BYTE_ORDER_MARK, KEPT_OF_LONG_LINE, Jsonl, Lines, LongLine, bounded
from holdfast.sources.objects.object_ref import Damaged, Stream

CHUNK = 2 << 20
_COMMA, _OPEN_LIST, _CLOSE_LIST = b",[]"
_LF, _CR, _SPACE = b"\n\r "
_KINDS = np.zeros(256, np.bool_)
_KINDS[list(b"{}[],")] = True
_STEPS = np.zeros(256, np.int64)
_STEPS[list(b"{[")], _STEPS[list(b"}]")] = 1, -1
_BLANK = np.zeros(256, np.bool_)
_BLANK[list(b" \t\r\n")] = True


class JsonList(StreamCodec):
    """Every element is a JSON object: typed columns, or without a schema its text, in one line."""

    def __init__(self, schema: pa.Schema | None, longest: int = 64 << 20, chunk: int = CHUNK) -> None:
        self._lines = Jsonl(schema, longest)
        self.schema = self._lines.schema
        self._longest = longest
        self._chunk = chunk

    def read(self, data: Stream, start: int, end: int) -> Iterator[Portion]:
        for found in self.texts(data, start, end):
            yield from self._portions(found)

    def texts(self, data: Stream, start: int, end: int) -> Iterator[Lines | LongLine]:  # noqa: ARG002 - all of it
        elements = _Elements(self._longest)
        while block := data.read(self._chunk):
            yield from elements.of(block)
        elements.check_end()

    def _portions(self, found: Lines | LongLine) -> Iterator[Portion]:
        if isinstance(found, Lines):
            missing = found.items[found.ends <= found.starts]
            if len(missing):
                reason = "there is nothing between two commas"
                faults = [(item, record_fault(reason, b"")) for item in missing.tolist()]
                yield Portion([], [pa.array([], field.type) for field in self.schema], faults)
        yield from self._lines.portions([found])


class _Marks(NamedTuple):
    """The brackets and commas of a part of the text: indices, bytes, and the depth after each."""

    indices: Any
    kinds: Any
    depths: Any


class _Structure:
    """Finds brackets and commas outside of strings, in parts of a text."""

    def __init__(self) -> None:
        self._in_string = 0
        self._escaped = False
        self._depth = 0

    def marks(self, block: bytes) -> _Marks:
        numbers = np.frombuffer(block, np.uint8)
        quotes = self._quotes(numbers)
        indices = np.flatnonzero(_KINDS[numbers])
        indices = indices[(self._in_string + np.searchsorted(quotes, indices)) % 2 == 0]
        kinds = numbers[indices]
        depths = self._depth + np.cumsum(_STEPS[kinds])
        self._in_string = (self._in_string + len(quotes)) % 2
        self._depth = int(depths[-1]) if len(depths) else self._depth
        return _Marks(indices, kinds, depths)

    def _quotes(self, numbers: Any) -> Any:
        """Quotes that no backslash escapes."""
        quotes, slashes = np.flatnonzero(numbers == ord('"')), np.flatnonzero(numbers == ord("\\"))
        if self._escaped:
            quotes, slashes = quotes[quotes > 0], slashes[slashes > 0]
            self._escaped = False
        if len(slashes):
            escapes = first_of_pairs(slashes)
            quotes = quotes[~np.isin(quotes, escapes + 1)]
            self._escaped = bool(escapes[-1] == len(numbers) - 1)
        return quotes


class _Elements:
    """Cuts the elements out of the text. Its phases: before the list, in it, after it, after the document."""

    def __init__(self, longest: int) -> None:
        self._longest = longest
        self._structure = _Structure()
        self._phase = self._before
        self._depth = 0
        """The depth of brackets at which the elements are; 0 before the document has begun."""
        self._elements = 0
        self._skipping = False
        self._tail = b""
        """The beginning of the element that is not finished."""
        self._at = 0
        """Where the unfinished tail begins, or the next part of the text if there is none."""

    def of(self, block: bytes) -> Iterator[Lines | LongLine]:
        """Elements that end in the next part of the text. Raises `Damaged`."""
        if not self._depth:
            if self._at == 0 and block.startswith(BYTE_ORDER_MARK):
                block = b"   " + block[len(BYTE_ORDER_MARK) :]
            self._depth = _depth_of(block)
        return self._phase(block, self._structure.marks(block))

    def check_end(self) -> None:
        """Raise `Damaged` if the document is not whole."""
        if self._phase != self._over:
            raise Damaged("it is not a whole JSON document: it ends too early")

    def _before(self, block: bytes, marks: _Marks) -> Iterator[Lines | LongLine]:
        lists = np.flatnonzero((marks.kinds == _OPEN_LIST) & (marks.depths == self._depth))
        first = int(lists[0]) if len(lists) else len(marks.kinds)
        if (marks.depths[:first] <= 0).any():
            raise Damaged("there is no list in the JSON document")
        if not len(lists):
            self._at += len(block)
            return
        begin = int(marks.indices[first]) + 1
        self._at += begin
        self._phase = self._inside
        yield from self._inside(block[begin:], _marks_behind(marks, first, begin))

    def _inside(self, block: bytes, marks: _Marks) -> Iterator[Lines | LongLine]:
        outside = np.flatnonzero(marks.depths < self._depth)
        last = int(outside[0]) if len(outside) else len(marks.kinds)
        commas = (marks.kinds[:last] == _COMMA) & (marks.depths[:last] == self._depth)
        borders = [marks.indices[:last][commas], marks.indices[last : last + 1]]
        data, shift = self._tail + block, len(self._tail)
        yield from self._cut(data, np.concatenate(borders) + shift, ended=len(outside) > 0)
        if not len(outside):
            return
        if marks.kinds[last] != _CLOSE_LIST:
            raise Damaged("it is not a valid JSON document: brackets do not match")
        self._phase, end = self._behind, int(marks.indices[last]) + 1
        if marks.depths[last] <= 0:
            self._phase = self._over
        yield from self._phase(block[end:], _marks_behind(marks, last, end))

    def _behind(self, block: bytes, marks: _Marks) -> Iterator[Lines | LongLine]:
        outside = np.flatnonzero(marks.depths <= 0)
        if len(outside):
            self._phase, end = self._over, int(marks.indices[outside[0]]) + 1
            yield from self._over(block[end:], _marks_behind(marks, int(outside[0]), end))

    def _over(self, block: bytes, marks: _Marks) -> Iterator[Lines | LongLine]:  # noqa: ARG002 - a phase like the others
        if block.strip(b" \t\r\n"):
            raise Damaged("there is more text after the end of the JSON document")
        yield from ()

    def _cut(self, data: bytes, borders: Any, *, ended: bool) -> Iterator[Lines | LongLine]:
        """The elements before these borders; the text after the last border is kept for the next part."""
        at, end = self._at, int(borders[-1]) + 1 if len(borders) else 0
        self._tail, self._at = data[end:], at + end
        if len(borders):
            found = _as_lines(data[:end], borders, at)
            lonely = ended and len(borders) == 1 and not self._elements
            self._elements += len(borders)
            # The first was reported already if it is too long; and an empty list has no element, not an empty element.
            if not (lonely and found.starts[0] >= found.ends[0]):
                yield from bounded(found.part(int(self._skipping), len(found)), self._longest)
            self._skipping = False
        if len(self._tail) > self._longest and not ended:
            if not self._skipping:
                yield LongLine(self._at, self._tail.lstrip()[:KEPT_OF_LONG_LINE])
            self._skipping, self._at, self._tail = True, self._at + len(self._tail), b""


def _depth_of(block: bytes) -> int:
    """The depth of the elements in a document that begins like this; 0 if only white space has been read yet."""
    begin = block.lstrip(b" \t\r\n")[:1]
    if begin not in {b"", b"[", b"{"}:
        raise Damaged("the JSON document is neither a list nor an object")
    return {b"": 0, b"[": 1, b"{": 2}[begin]


def _marks_behind(marks: _Marks, number: int, begin: int) -> _Marks:
    """The marks after the mark at this index, for the text from `begin` on."""
    return _Marks(marks.indices[number + 1 :] - begin, marks.kinds[number + 1 :], marks.depths[number + 1 :])


def _as_lines(data: bytes, borders: Any, at: int) -> Lines:
    """The elements before the borders as lines: trimmed, with line breaks between them and none within them."""
    numbers = np.frombuffer(data, np.uint8).copy()
    blank = _BLANK[numbers]
    blank[borders] = True
    numbers[blank & ((numbers == _LF) | (numbers == _CR))] = _SPACE
    numbers[borders] = _LF
    filled = np.append(np.flatnonzero(~blank), len(numbers))
    starts = np.concatenate([np.zeros(1, np.int64), borders[:-1] + 1])
    begins = np.minimum(filled[np.searchsorted(filled, starts)], borders)
    lasts = np.searchsorted(filled, borders) - 1
    ends = np.where(lasts >= 0, filled[np.maximum(lasts, 0)] + 1, begins)
    return Lines(numbers.tobytes(), begins, np.maximum(ends, begins), begins + at)
