"""Operations on the bytes of many records at once, in Arrow and numpy: no Python object per record.

A column of bytes is one buffer in memory, record after record. A file mostly consists of the same bytes, with a few
bytes before or after each record.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow.types import is_binary, is_large_binary, is_large_string, is_string


def is_bytes(kind: Any) -> bool:
    return bool(is_string(kind) or is_binary(kind) or is_large_string(kind) or is_large_binary(kind))


def binary(array: Any) -> Any:
    """A column of text or bytes as bytes with short offsets. Text is not copied."""
    if pa.types.is_string(array.type):
        return array.view(pa.binary())
    return array if pa.types.is_binary(array.type) else array.cast(pa.binary())


def entries_of(maps: Any) -> Any:
    """An array of maps as lists of structs, which more of Arrow's functions take."""
    kind = maps.type
    pair = pa.struct([pa.field("key", kind.key_type, nullable=False), pa.field("value", kind.item_type)])
    return maps.cast(pa.list_(pair))


def content(array: Any) -> Any:
    """All bytes of a binary array as one buffer, without a copy."""
    if not len(array):
        return pa.py_buffer(b"")
    borders = _borders(array)
    return array.buffers()[2].slice(int(borders[0]), int(borders[-1] - borders[0]))


def lengths(array: Any) -> Any:
    """The length of each record in bytes, as 64-bit numbers; 0 for null."""
    borders = _borders(array).astype(np.int64)
    if array.null_count:
        return np.asarray(pc.binary_length(array).fill_null(0)).astype(np.int64)
    return borders[1:] - borders[:-1]


def has_byte(array: Any, byte: bytes) -> bool:
    """Whether the byte occurs in any record. Bytes in the memory of a null may match, too."""
    data = np.frombuffer(content(array), np.uint8)
    # The smallest byte is found without a copy, and most records have nothing below a space.
    return bool(len(data) and data.min() <= ord(byte) and (data == ord(byte)).any())


def begins_with(array: Any, byte: bytes) -> Any:
    """Whether the first byte of each record is this one; false for an empty record."""
    borders, data = _borders(array), np.frombuffer(array.buffers()[2] or b"", np.uint8)
    if not len(data):
        return np.zeros(len(array), bool)
    first = data[np.minimum(borders[:-1], len(data) - 1)]
    return (first == ord(byte)) & (borders[1:] > borders[:-1])


def joined(*parts: Any) -> Any:
    """One buffer: all parts of the first record, then all of the second, and so on. Nulls are empty."""
    return content(beside(*parts))


def beside(*parts: Any) -> Any:
    """The parts of each record, joined into one record."""
    return pc.binary_join_element_wise(*parts, b"", null_handling="replace", null_replacement=b"")


def rows_of(matrix: Any) -> Any:
    """Each row of a matrix of bytes as a record."""
    count, width = matrix.shape
    borders = np.arange(0, (count + 1) * width, width, dtype=np.int32)
    data = pa.py_buffer(np.ascontiguousarray(matrix))
    return pa.BinaryArray.from_buffers(pa.binary(), count, [None, pa.py_buffer(borders), data])


def cut_out(data: Any, starts: Any, ends: Any) -> Any:
    """The records of a buffer that lie between these offsets, in order; bytes between two records are skipped."""
    if not len(starts):
        return pa.array([], pa.binary())
    borders = np.empty(2 * len(starts), np.int32)
    borders[0::2], borders[1::2] = starts, ends
    # Every second entry is the gap between two records.
    buffers = [None, pa.py_buffer(borders), pa.py_buffer(data)]
    whole = pa.BinaryArray.from_buffers(pa.binary(), len(borders) - 1, buffers)
    return whole.take(pa.array(np.arange(0, len(borders), 2)))


def _borders(array: Any) -> Any:
    return np.frombuffer(array.buffers()[1], np.int32)[array.offset : array.offset + len(array) + 1]
