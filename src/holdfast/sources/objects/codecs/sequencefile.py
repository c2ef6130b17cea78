"""Hadoop's SequenceFile: the records between two sync markers belong to the range in which they begin.

Columns are `key` and `value`. An item is where the record begins; in a block, where the block begins times
`MAX_BLOCK_RECORDS`, plus the index of the record in it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from holdfast.errors import BatchError
from holdfast.formats._arrays import content, cut_out, lengths
from holdfast.formats._forward import MAX_BLOCK, RangeReader
from holdfast.formats.sequencefile.layout import ESCAPE, AnyHeader, decode_any_header
from holdfast.formats.sequencefile.reader import (
    PORTION_RECORDS,
    WRONG_LENGTH,
    blocks,
    payloads,
    record_portions,
    record_runs,
    record_unpacker,
)
from holdfast.sources.objects.codecs.codec import BlockCodec, Portion, Range
from holdfast.sources.objects.codecs.typed import cast_rows
from holdfast.sources.objects.object_ref import Damaged, RandomBytes

COLUMNS = pa.schema([("key", pa.binary()), ("value", pa.binary())])
MAX_BLOCK_RECORDS = 1 << 20
_PACKAGE = "org.apache.hadoop.io."


class SequenceFile(BlockCodec):
    """Keys and values as bytes, or in the types of a schema with these names."""

    def __init__(self, schema: pa.Schema | None = None) -> None:
        self.schema = COLUMNS if schema is None else schema

    def read(self, data: RandomBytes, extent: Range) -> Iterator[Portion]:
        try:
            reader = RangeReader(data, extent.size)
            header = decode_any_header(reader.take)
            if reader.offset >= extent.end:
                return
            decode, mark = _decoder(header), ESCAPE + header.sync
            skips = reader.offset < extent.start
            if skips and not reader.skip_behind(mark, max(extent.start, reader.offset + len(mark)), extent.end):
                return
            is_block = header.compression == "block"
            found = _blocks(reader, header, extent, skips) if is_block else _records(reader, header, extent)
            for items, keys, values in found:
                yield from self._sound(items, keys, values, decode)
        except ValueError as error:
            raise Damaged(f"it is not a valid SequenceFile: {error}") from error

    def _sound(self, items: Any, keys: Any, values: Any, decode: Callable[[Any, Any], Any]) -> Iterator[Portion]:
        """The records as rows. Raises `ValueError` at the first damaged one, when all before it have been yielded."""
        try:
            rows = decode(keys, values)
        except ValueError:
            half = len(items) // 2
            if not half:
                raise
            yield from self._sound(items[:half], keys[:half], values[:half], decode)
            yield from self._sound(items[half:], keys[half:], values[half:], decode)
        else:
            yield cast_rows(rows, items, self.schema)


def _records(reader: RangeReader, header: AnyHeader, extent: Range) -> Iterator[tuple[Any, Any, Any]]:
    unpack = record_unpacker(header)
    for offset, data, starts in record_runs(reader, header, extent.end, max_bytes=MAX_BLOCK):
        for some, keys, values in record_portions(data, starts, unpack, MAX_BLOCK):
            yield some + offset, keys, values


def _blocks(reader: RangeReader, header: AnyHeader, extent: Range, skips: bool) -> Iterator[tuple[Any, Any, Any]]:
    limits = {"max_records": MAX_BLOCK_RECORDS, "max_bytes": MAX_BLOCK}
    for offset, keys, values in blocks(reader, header, extent.end, behind_mark=skips, **limits):
        items = offset * MAX_BLOCK_RECORDS + np.arange(len(keys))
        for first in range(0, len(keys), PORTION_RECORDS):
            some = slice(first, first + PORTION_RECORDS)
            yield items[some], keys[some], values[some]


# --- writables -----------------------------------------------------------------------------------------------------


def _decoder(header: AnyHeader) -> Callable[[Any, Any], Any]:
    """Decodes keys and values into a record batch. Raises `BatchError` for classes that are not supported."""
    key, value = _writable_decoder(header.key_class), _writable_decoder(header.value_class)
    if key is None or value is None:
        raise BatchError(f"a SequenceFile of {header.key_class} and {header.value_class} cannot be read")
    return lambda keys, values: pa.record_batch([key(keys), value(values)], names=["key", "value"])


def _writable_decoder(class_name: str) -> Callable[[Any], Any] | None:
    """Decodes a binary array of writables into a column; None for a class that is not supported.

    The decoder raises `ValueError` if a value is not a writable of that class.
    """
    decoders: dict[str, Callable[[Any], Any]] = {
        "BytesWritable": payloads,
        "Text": _texts,
        "LongWritable": lambda values: _numbers(values, ">i8"),
        "IntWritable": lambda values: _numbers(values, ">i4"),
        "NullWritable": lambda values: pa.nulls(len(values), pa.binary()),
    }
    return decoders.get(class_name.removeprefix(_PACKAGE)) if class_name.startswith(_PACKAGE) else None


def _numbers(values: Any, dtype: str) -> Any:
    if (lengths(values) != np.dtype(dtype).itemsize).any():
        raise ValueError(WRONG_LENGTH)
    return pa.array(np.frombuffer(content(values), dtype).astype(np.int64))


def _texts(values: Any) -> Any:
    """Each text follows its length, which is one byte up to 127; a larger byte encodes how many bytes follow."""
    data, sizes = np.frombuffer(content(values), np.uint8), lengths(values)
    ends = np.cumsum(sizes, dtype=np.int64)
    starts = ends - sizes
    if (sizes < 1).any():
        raise ValueError(WRONG_LENGTH)
    first = data[starts].astype(np.int64)
    digits = np.where(first <= 127, 0, 0x90 - first)
    if (digits < 0).any() or (digits > 4).any() or (digits >= sizes).any():
        raise ValueError(WRONG_LENGTH)
    stated = np.where(digits == 0, first, 0)
    for digit in range(1, 5):
        some = digits >= digit
        stated[some] = (stated[some] << 8) | data[starts[some] + digit]
    if (stated != sizes - 1 - digits).any():
        raise ValueError(WRONG_LENGTH)
    return cut_out(content(values), starts + 1 + digits, ends)
