"""Avro's object container files: a block belongs to the range in which it begins, right behind a mark.

An item is where the block begins, times `ROWS_OF_BLOCK`, plus the number of the row in it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from io import BytesIO
from typing import Any

import numpy as np
import pyarrow as pa

from holdfast.errors import Refused
from holdfast.formats.avro.reader import unpacked_block
from holdfast.formats.avro.writer import MAGIC, MARK_BYTES
from holdfast.sources.objects.codecs.blocks import ENDS_TOO_EARLY, Forward
from holdfast.sources.objects.codecs.codec import BlockCodec, Portion, Range
from holdfast.sources.objects.codecs.typed import typed_rows
from holdfast.sources.objects.object_ref import Damaged, RandomBytes

ROWS_OF_BLOCK = 1 << 20
PORTION_ROWS = 8192


class Avro(BlockCodec):
    """Columns of the schema, by name. Rows that are no records are in the column `value`."""

    def __init__(self, schema: pa.Schema) -> None:
        try:
            import fastavro  # noqa: F401 - better here than in a task
        except ImportError as error:
            raise Refused("codec: avro needs fastavro: pip install 'holdfast[archive]'") from error
        self.schema = schema

    def read(self, data: RandomBytes, extent: Range) -> Iterator[Portion]:
        try:
            forward = Forward(data, extent.size)
            told, mark = _header(forward)
            if forward.at >= extent.start or forward.go_behind(mark, extent.start, extent.end):
                yield from self._blocks(forward, _Rows(told), mark, extent)
        except (Damaged, ValueError) as error:
            raise Damaged(f"it is no valid Avro file: {error}") from error

    def _blocks(self, forward: Forward, rows: _Rows, mark: bytes, extent: Range) -> Iterator[Portion]:
        while forward.left and (at := forward.at) < extent.end:
            count, block = _number(forward), forward.take(_number(forward))
            if forward.take(MARK_BYTES) != mark:
                raise Damaged(f"the block at {at} does not end with the file's mark")
            if not 0 <= count < ROWS_OF_BLOCK:
                raise Damaged(f"the block at {at} says that it has {count} rows; up to {ROWS_OF_BLOCK} are read")
            found = rows.of(block, count)
            for first in range(0, count, PORTION_ROWS):
                some = found[first : first + PORTION_ROWS]
                yield typed_rows(some, at * ROWS_OF_BLOCK + np.arange(first, first + len(some)), self.schema)


class _Rows:
    """What is in the blocks of one file."""

    def __init__(self, told: dict[str, bytes]) -> None:
        import fastavro

        if "avro.schema" not in told:
            raise Damaged("it has no schema")
        self._codec = told.get("avro.codec", b"null").decode()
        try:
            self._schema: Any = fastavro.parse_schema(json.loads(told["avro.schema"]))
        except Exception as error:  # fastavro raises whatever it stumbles over
            raise Damaged(f"its schema is none: {error!r}") from error

    def of(self, block: bytes, count: int) -> list[Any]:
        import fastavro

        data = BytesIO(unpacked_block(self._codec, block))
        try:
            rows = [fastavro.schemaless_reader(data, self._schema, None) for _ in range(count)]
        except Exception as error:
            raise Damaged(f"a row cannot be decoded: {error!r}") from error
        if data.read(1):
            raise Damaged("a block has more bytes than its rows")
        return [row if isinstance(row, dict) else {"value": row} for row in rows]


def _header(forward: Forward) -> tuple[dict[str, bytes], bytes]:
    if forward.left < len(MAGIC) or forward.take(len(MAGIC)) != MAGIC:
        raise Damaged("it does not begin like one")
    told: dict[str, bytes] = {}
    while count := _number(forward):
        if count < 0:
            _number(forward)  # how many bytes they take; that is of use only to those who skip them
        for _ in range(abs(count)):
            name = forward.take(_number(forward)).decode()
            told[name] = forward.take(_number(forward))
    return told, forward.take(MARK_BYTES)


def _number(forward: Forward) -> int:
    """A number in zigzag, seven bits to a byte, the lowest first."""
    value = 0
    for shift in range(0, 70, 7):
        byte = forward.take(1)[0]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1)
    raise Damaged(ENDS_TOO_EARLY)
