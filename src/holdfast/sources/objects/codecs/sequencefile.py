"""Hadoop's SequenceFile: what is between two marks belongs to the range in which it begins.

Columns are `key` and `value`. An item is where the record begins; in a block, where the block begins times
`RECORDS_OF_BLOCK`, plus the number of the record in it.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from holdfast.errors import BatchError
from holdfast.formats._decompression import unpacker
from holdfast.formats.sequencefile.layout import ESCAPE, AnyHeader, decode_any_header, taken_vint, taken_vints
from holdfast.formats.sequencefile.reader import apart, cut_records
from holdfast.sources.objects.codecs.blocks import ENDS_TOO_EARLY, Forward
from holdfast.sources.objects.codecs.codec import BlockCodec, Portion, Range
from holdfast.sources.objects.codecs.typed import cast_rows
from holdfast.sources.objects.codecs.writables import decoder
from holdfast.sources.objects.object_ref import Damaged, RandomBytes

COLUMNS = pa.schema([("key", pa.binary()), ("value", pa.binary())])
RECORDS_OF_BLOCK = 1 << 20
_WRONG = "a record's length and what follows disagree"
_LENGTH = struct.Struct(">i")


class SequenceFile(BlockCodec):
    """Keys and values as bytes, or in the types of a schema with these names."""

    def __init__(self, schema: pa.Schema | None = None) -> None:
        self.schema = COLUMNS if schema is None else schema

    def read(self, data: RandomBytes, extent: Range) -> Iterator[Portion]:
        try:
            forward = Forward(data, extent.size)
            header = decode_any_header(forward.take)
            if forward.at >= extent.end:
                return
            columns, mark = _columns(header), ESCAPE + header.sync
            behind = forward.at < extent.start
            if behind and not forward.go_behind(mark, max(extent.start, forward.at + len(mark)), extent.end):
                return
            in_blocks = header.compression == "block"
            found = _blocks(forward, header, extent, behind=behind) if in_blocks else _records(forward, header, extent)
            for items, keys, values in found:
                yield from self._sound(items, keys, values, columns)
        except (Damaged, ValueError) as error:
            raise Damaged(f"it is no valid SequenceFile: {error}") from error

    def _sound(self, items: Any, keys: Any, values: Any, columns: Callable[[Any, Any], Any]) -> Iterator[Portion]:
        """The records as rows; those before one that is damaged come first."""
        try:
            rows = columns(keys, values)
        except ValueError:
            half = len(items) // 2
            if not half:
                raise
            yield from self._sound(items[:half], keys[:half], values[:half], columns)
            yield from self._sound(items[half:], keys[half:], values[half:], columns)
        else:
            yield cast_rows(rows, items, self.schema)


def _columns(header: AnyHeader) -> Callable[[Any, Any], Any]:
    key, value = decoder(header.key_class), decoder(header.value_class)
    if key is None or value is None:
        raise BatchError(f"a SequenceFile of {header.key_class} and {header.value_class} cannot be read")
    return lambda keys, values: pa.record_batch([key(keys), value(values)], names=["key", "value"])


def _records(forward: Forward, header: AnyHeader, extent: Range) -> Iterator[tuple[Any, Any, Any]]:
    unpack = unpacker(header.codec) if header.compression == "record" else None
    at, data = forward.at, b""
    while True:
        starts, used, ended = _scanned(data, at, ESCAPE + header.sync, extent)
        for some in np.array_split(starts, -(-len(starts) // 8192) or 1):
            if len(some):
                yield some + at, *cut_records(data, some, unpack)
        if ended is not None:
            if ended:
                raise Damaged(ended)
            return
        at, data = at + used, data[used:]
        piece = forward.some()
        if not piece:
            if data:
                raise Damaged(ENDS_TOO_EARLY)
            return
        data += piece


def _scanned(data: bytes, at: int, mark: bytes, extent: Range) -> tuple[Any, int, str | None]:
    """Where whole records begin, where the first begins that is not whole, and why none follows: damage, or nothing."""
    starts, place, end, number = [], 0, len(data), _LENGTH.unpack_from
    ended: str | None = None
    while place + 8 <= end and ended is None:
        (size,) = number(data, place)
        if size >= 0:
            if place + 8 + size > end:
                ended = ENDS_TOO_EARLY if at + place + 8 + size > extent.size else None
                break
            starts.append(place)
            place += 8 + size
        elif place + len(mark) > end:
            break
        elif data[place : place + len(mark)] == mark:
            place += len(mark)
            ended = "" if at + place >= extent.end else None
        else:
            ended = _WRONG
    return np.array(starts, np.int64), place, ended


def _blocks(forward: Forward, header: AnyHeader, extent: Range, *, behind: bool) -> Iterator[tuple[Any, Any, Any]]:
    """The object stands at a mark, or behind it already."""
    unpack, mark = unpacker(header.codec), ESCAPE + header.sync
    while behind or forward.left:
        if not behind and forward.take(len(mark)) != mark:
            raise Damaged(_WRONG)
        behind, at = False, forward.at
        if at >= extent.end:
            return
        count = taken_vint(forward.take)
        if count >= RECORDS_OF_BLOCK:
            raise Damaged(f"the block at {at} says that it has {count} records; up to {RECORDS_OF_BLOCK} are read")
        parts = [unpack(forward.take(taken_vint(forward.take))) for _ in range(4)]
        keys, values = apart(parts[1], taken_vints(parts[0], count)), apart(parts[3], taken_vints(parts[2], count))
        yield at * RECORDS_OF_BLOCK + np.arange(count), keys, values
