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
from holdfast.sources.objects.codecs.codec import BlockCodec, Portion, Range
from holdfast.sources.objects.codecs.typed import typed_rows
from holdfast.sources.objects.object_ref import Damaged, RandomBytes

MAX_BLOCK_ROWS = 1 << 20
PORTION_ROWS = 8192


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
        rows = decoder.rows(block)
        for first in range(0, block.count, PORTION_ROWS):
            some = rows[first : first + PORTION_ROWS]
            yield typed_rows(some, block.offset * MAX_BLOCK_ROWS + np.arange(first, first + len(some)), self.schema)


class _BlockDecoder:
    """Decodes the blocks of one file. Raises `ValueError`."""

    def __init__(self, header: Header) -> None:
        import fastavro

        self._codec = header.codec
        try:
            self._schema: Any = fastavro.parse_schema(header.schema)
        except Exception as error:  # fastavro raises errors of many types
            raise ValueError(f"its schema is not valid: {error!r}") from error

    def rows(self, block: Block) -> list[Any]:
        import fastavro

        data = BytesIO(unpacked_block(self._codec, block.data, MAX_BLOCK))
        try:
            rows = [fastavro.schemaless_reader(data, self._schema, None) for _ in range(block.count)]
        except Exception as error:
            raise ValueError(f"a row cannot be decoded: {error!r}") from error
        if data.read(1):
            raise ValueError("a block has more bytes than its rows")
        return [row if isinstance(row, dict) else {"value": row} for row in rows]
