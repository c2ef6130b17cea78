"""Writes object container files: a header with the schema, then blocks of rows, each followed by a sync marker."""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.flow.format import FormatWriter, RawWriter
from holdfast.formats._arrays import beside, binary, content, is_bytes, lengths, rows_of
from holdfast.formats._messages import portions
from holdfast.formats.avro.schemas import DECIMAL_BYTES, avro_schema

MAGIC = b"Obj\x01"
MARK_BYTES = 16
CHECKSUM_BYTES = 4
CODECS = {"none": "null", "gzip": "deflate", "zstd": "zstandard", "snappy": "snappy"}
RAW_DEFLATE = -15
_NULL, _THERE, _END = b"\x00", b"\x02", b"\x00"
"""The indices of the two types of a union, as Avro's numbers; and the end of a list."""


class AvroFile(FormatWriter):
    """Collects encoded rows until they fill a block."""

    def __init__(self, raw: RawWriter, schema: Any, compression: str, block_bytes: int) -> None:
        self._raw = raw
        self._codec = CODECS[compression]
        self._schema = json.dumps(avro_schema(schema), separators=(",", ":")).encode()
        self._pack = _packer(self._codec)
        self._block_bytes = block_bytes
        self._waiting: list[Any] = []
        self._bytes = 0
        self._mark = b""

    @property
    def buffered(self) -> int:
        return self._bytes

    def write(self, rows: Any) -> None:
        for part in portions(rows):
            self._add(encoded(part.columns, part.num_rows))

    def close(self) -> None:
        if self._waiting:
            self._write_block()
        self._begin(b"")

    def _add(self, rows: Any) -> None:
        ends, start, before = np.cumsum(lengths(rows), dtype=np.int64), 0, 0
        while start < len(rows):
            last = int(np.searchsorted(ends, before + self._block_bytes - self._bytes))
            count = min(last + 1, len(rows)) - start
            self._waiting.append(rows.slice(start, count))
            start += count
            self._bytes += int(ends[start - 1]) - before
            before = int(ends[start - 1])
            if self._bytes >= self._block_bytes:
                self._write_block()

    def _write_block(self) -> None:
        rows = pa.concat_arrays(self._waiting)
        self._waiting, self._bytes = [], 0
        self._begin(content(rows.slice(0, 1)))
        packed = self._pack(content(rows))
        self._raw.write(number(len(rows)) + number(len(packed)) + packed + self._mark)

    def _begin(self, first_row: Any) -> None:
        """Begin the file.

        Its sync marker is a digest of the schema and the first row: the same rows give the same file.
        """
        if not self._mark:
            digest = hashlib.blake2b(self._schema, digest_size=MARK_BYTES, person=b"Avro")
            digest.update(first_row)
            self._mark = digest.digest()
            entries = {b"avro.schema": self._schema, b"avro.codec": self._codec.encode()}
            pairs = b"".join(_text(name) + _text(value) for name, value in entries.items())
            self._raw.write(MAGIC + number(len(entries)) + pairs + number(0) + self._mark)


def _packer(codec: str) -> Callable[[Any], bytes]:
    if codec == "null":
        return bytes
    if codec == "deflate":
        return _deflated
    if codec == "zstandard":
        zstd = pa.Codec("zstd", 1)
        return lambda data: bytes(zstd.compress(data, asbytes=True))
    snappy = pa.Codec("snappy")
    return lambda data: bytes(snappy.compress(data, asbytes=True)) + zlib.crc32(data).to_bytes(CHECKSUM_BYTES, "big")


def _deflated(data: Any) -> bytes:
    from isal import isal_zlib

    deflate = isal_zlib.compressobj(isal_zlib.ISAL_DEFAULT_COMPRESSION, isal_zlib.DEFLATED, RAW_DEFLATE)
    return bytes(deflate.compress(data) + deflate.flush())


def _text(data: bytes) -> bytes:
    return number(len(data)) + data


# --- encoding ------------------------------------------------------------------------------------------------------


def encoded(columns: Any, count: int) -> Any:
    """The bytes of each row of these columns."""
    parts = [part for column in columns for part in _nullable(column)]
    return beside(*parts) if parts else pa.array([b""] * count, pa.binary())


def number(value: int) -> bytes:
    """One number in Avro's encoding."""
    return bytes(numbers(np.array([value], np.int64))[0].as_py())


def numbers(values: Any) -> Any:
    """Integers in zigzag, seven bits to a byte, the lowest first."""
    values = np.asarray(values).astype(np.int64)
    zigzag = ((values << 1) ^ (values >> 63)).view(np.uint64)
    if not len(zigzag) or zigzag.max() < 0x80:
        return rows_of(zigzag.astype(np.uint8).reshape(-1, 1))
    width = (int(zigzag.max()).bit_length() + 6) // 7
    shifted = zigzag[:, None] >> (7 * np.arange(width, dtype=np.uint64))
    more = shifted >= 0x80
    table = (shifted & 0x7F).astype(np.uint8) | (more.astype(np.uint8) << 7)
    wanted = np.ones(table.shape, bool)
    wanted[:, 1:] = more[:, :-1]
    borders = np.concatenate([[0], np.cumsum(wanted.sum(axis=1))]).astype(np.int32)
    return pa.BinaryArray.from_buffers(
        pa.binary(), len(values), [None, pa.py_buffer(borders), pa.py_buffer(table[wanted])]
    )


def _nullable(column: Any) -> list[Any]:
    """The parts of each row: the index of its type in the union, and the value if it is not null."""
    if not column.null_count:
        return [pa.scalar(_THERE), *_parts(column)]
    there = column.is_valid()
    value = beside(*_parts(column))
    return [pc.if_else(there, _THERE, _NULL), pc.if_else(there, value, pa.scalar(b"", pa.binary()))]


def _parts(column: Any) -> list[Any]:
    types, kind = pa.types, column.type
    if is_bytes(kind):
        values = binary(column)
        return [numbers(lengths(values)), values]
    if types.is_struct(kind):
        return [encoded([column.field(index) for index in range(kind.num_fields)], len(column))]
    if types.is_list(kind) or types.is_large_list(kind) or types.is_map(kind):
        return _items(column)
    return [_fixed(column)]


def _items(column: Any) -> list[Any]:
    """Lists and maps: the number of items, the items, and the end."""
    borders = np.asarray(column.offsets).astype(np.int32)
    sizes = np.diff(borders)
    if pa.types.is_map(column.type):
        values = [*_parts(column.keys), *_nullable(column.items)]
    else:
        values = _nullable(column.values)
    inner = beside(*values)
    joined = pc.binary_join(pa.ListArray.from_arrays(pa.array(borders), inner), b"")
    counts = pc.if_else(pa.array(sizes > 0), numbers(sizes), pa.scalar(b"", pa.binary()))
    return [counts, joined, pa.scalar(_END)]


def _fixed(column: Any) -> Any:
    """Types whose values have a fixed width in memory."""
    types, kind = pa.types, column.type
    if types.is_decimal(kind):
        return rows_of(_bytes_of(column, DECIMAL_BYTES)[:, ::-1])
    if types.is_floating(kind):
        return rows_of(_bytes_of(column, kind.bit_width // 8))
    if types.is_boolean(kind):
        return rows_of(np.asarray(column.fill_null(False)).astype(np.uint8).reshape(-1, 1))
    if types.is_timestamp(kind):
        column = column.cast(pa.timestamp("us", kind.tz)).cast(pa.int64())
    elif types.is_date32(kind):
        column = column.cast(pa.int32())
    return numbers(np.asarray(column.fill_null(0)))


def _bytes_of(column: Any, width: int) -> Any:
    data = np.frombuffer(column.buffers()[1], np.uint8)
    return data[column.offset * width : (column.offset + len(column)) * width].reshape(-1, width)
