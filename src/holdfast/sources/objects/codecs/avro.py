"""Avro's object container files: a block belongs to the range in which it begins, directly after a sync marker.

An item is the offset of the block times `MAX_BLOCK_ROWS`, plus the index of the row in the block.
"""

from __future__ import annotations

from collections.abc import Iterator
from io import BytesIO
from typing import Any

import numpy as np
import pyarrow as pa

from holdfast.errors import Refused
from holdfast.formats._forward import MAX_BLOCK, RangeReader
from holdfast.formats.avro.reader import Block, Header, blocks, decode_header, unpacked_block
from holdfast.sources.objects.codecs.avro_bounds import MAX_MEMORY, Meter, MeteredBytes, SchemaCost, install_meters
from holdfast.sources.objects.codecs.codec import BlockCodec, Portion, Range
from holdfast.sources.objects.codecs.typed import typed_rows
from holdfast.sources.objects.object_ref import Damaged, RandomBytes

MAX_BLOCK_ROWS = 1 << 20
PORTION_ROWS = 8192
_PORTION_MEMORY = 32 << 20
"""After about so much, rows that have been decoded are handed on."""


class Avro(BlockCodec):
    """Columns of the schema, by name. Rows that are not records are in the column `value`."""

    def __init__(self, schema: pa.Schema) -> None:
        try:
            import fastavro  # noqa: F401 - better here than in a task
        except ImportError as error:
            raise Refused("codec: avro needs fastavro: pip install 'holdfast[archive]'") from error
        self.schema = schema

    def read(self, data: RandomBytes, extent: Range) -> Iterator[Portion]:
        try:
            reader = RangeReader(data, extent.size)
            header = decode_header(reader.take)
            if reader.offset >= extent.start or reader.skip_behind(header.mark, extent.start, extent.end):
                decoder = _BlockDecoder(header)
                for block in blocks(reader, header.mark, extent.end):
                    yield from self._portions(block, decoder)
        except ValueError as error:
            raise Damaged(f"it is not a valid Avro file: {error}") from error

    def _portions(self, block: Block, decoder: _BlockDecoder) -> Iterator[Portion]:
        if block.count >= MAX_BLOCK_ROWS:
            raise ValueError(
                f"the block at {block.offset} declares {block.count} rows; at most {MAX_BLOCK_ROWS} are read"
            )
        first = 0
        for rows in decoder.portions(block):
            yield typed_rows(rows, block.offset * MAX_BLOCK_ROWS + np.arange(first, first + len(rows)), self.schema)
            first += len(rows)


class _BlockDecoder:
    """Decodes the blocks of one file. Raises `ValueError`."""

    def __init__(self, header: Header) -> None:
        import fastavro

        self._codec = header.codec
        self._meter = Meter()
        self._metered: Any = None
        try:
            self._schema: Any = fastavro.parse_schema(header.schema)
            self._cost = SchemaCost(self._schema)
        except Exception as error:  # fastavro raises errors of many types
            raise ValueError(f"its schema is not valid: {error!r}") from error
        self._portion_rows = min(PORTION_ROWS, _PORTION_MEMORY // max(self._cost.row.memory, 1) + 1)

    def portions(self, block: Block) -> Iterator[list[Any]]:
        """The rows of a block, some at a time. The last are yielded when the whole block has been found sound."""
        data = unpacked_block(self._codec, block.data, MAX_BLOCK)
        is_bounded = not self._cost.is_unbounded and len(data) * self._cost.per_read <= MAX_MEMORY
        whole = BytesIO(data) if is_bounded else MeteredBytes(data, self._meter, self._cost.per_read)
        left = block.count
        while left:
            try:
                rows = self._some(whole, left) if is_bounded else self._metered_rows(whole, left)
            except MemoryError:
                raise
            except Exception as error:
                raise ValueError(f"a row cannot be decoded: {error!r}") from error
            left -= len(rows)
            if not left and whole.tell() < len(data):
                break
            yield [row if isinstance(row, dict) else {"value": row} for row in rows]
        if whole.tell() < len(data):
            raise ValueError("a block has more bytes than its rows")

    def _some(self, data: BytesIO, left: int) -> list[Any]:
        from fastavro import schemaless_reader

        return [schemaless_reader(data, self._schema, None) for _ in range(min(left, self._portion_rows))]

    def _metered_rows(self, data: BytesIO, left: int) -> list[Any]:
        from fastavro import parse_schema, schemaless_reader

        if self._metered is None:
            install_meters()
            self._metered = parse_schema(self._cost.metered(self._schema, self._meter))
        rows: list[Any] = []
        spent = 0
        while len(rows) < min(left, PORTION_ROWS) and spent < _PORTION_MEMORY:
            self._meter.begin(self._cost.row.memory)
            rows.append(schemaless_reader(data, self._metered, None))
            spent += self._meter.spent
        return rows
