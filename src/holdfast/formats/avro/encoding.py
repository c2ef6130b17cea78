"""Columns as Avro encodes them: a binary array with the bytes of each row."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.formats._arrays import beside, binary, is_bytes, lengths, rows_of
from holdfast.formats.avro.schemas import DECIMAL_BYTES

_NULL, _THERE, _END = b"\x00", b"\x02", b"\x00"
"""The places of a union's two types, as Avro's numbers; and the end of a list."""


def encoded(columns: Any, count: int) -> Any:
    """The bytes of each row of these columns."""
    pieces = [piece for column in columns for piece in _nullable(column)]
    return beside(*pieces) if pieces else pa.array([b""] * count, pa.binary())


def number(value: int) -> bytes:
    """One number as Avro has it."""
    return bytes(numbers(np.array([value], np.int64))[0].as_py())


def numbers(values: Any) -> Any:
    """Whole numbers: zigzag, seven bits to a byte, the lowest first."""
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
    """The pieces of each row: which of null and the type it is, and the value if it is there."""
    if not column.null_count:
        return [pa.scalar(_THERE), *_pieces(column)]
    there = column.is_valid()
    value = beside(*_pieces(column))
    return [pc.if_else(there, _THERE, _NULL), pc.if_else(there, value, pa.scalar(b"", pa.binary()))]


def _pieces(column: Any) -> list[Any]:
    types, kind = pa.types, column.type
    if is_bytes(kind):
        values = binary(column)
        return [numbers(lengths(values)), values]
    if types.is_struct(kind):
        return [encoded([column.field(place) for place in range(kind.num_fields)], len(column))]
    if types.is_list(kind) or types.is_large_list(kind) or types.is_map(kind):
        return _items(column)
    return [_fixed(column)]


def _items(column: Any) -> list[Any]:
    """Lists and maps: how many, then each of them, then the end."""
    borders = np.asarray(column.offsets).astype(np.int32)
    sizes = np.diff(borders)
    if pa.types.is_map(column.type):
        values = [*_pieces(column.keys), *_nullable(column.items)]
    else:
        values = _nullable(column.values)
    inner = beside(*values)
    joined = pc.binary_join(pa.ListArray.from_arrays(pa.array(borders), inner), b"")
    counts = pc.if_else(pa.array(sizes > 0), numbers(sizes), pa.scalar(b"", pa.binary()))
    return [counts, joined, pa.scalar(_END)]


def _fixed(column: Any) -> Any:
    """Kinds whose values lie in memory one beside the other."""
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
