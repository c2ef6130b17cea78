"""Keys of a SequenceFile, many at once: offsets alone, or MessagePack maps of offset and key."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.flow.kafka_columns import KEY, OFFSET
from holdfast.formats._arrays import binary, content, cut_out, lengths, rows_of

_OFFSET_FIELD, _KEY_FIELD = 1, 2
_ONE_PAIR, _TWO_PAIRS, _INT64, _BIN8, _BIN16, _BIN32 = 0x81, 0x82, 0xD3, 0xC4, 0xC5, 0xC6
_SHORT = 11
"""Bytes of a map without a key: its type, field 1, an int64."""
_HEADS = {_BIN8: 1, _BIN16: 2, _BIN32: 4}


def legacy(rows: Any) -> list[Any]:
    """Keys of the class `LongWritable`: the offsets alone."""
    return [rows_of(_bytes_of(np.asarray(rows.column(OFFSET)), ">i8"))]


def legacy_offsets(keys: Any) -> Any:
    """The inverse of `legacy`."""
    if (lengths(keys) != 8).any():
        raise ValueError("a key does not have 8 bytes")
    return pa.array(np.frombuffer(content(keys), ">i8").astype(np.int64))


def messagepack(rows: Any) -> list[Any]:
    """Keys of the class `BytesWritable`: the length of a map and the map, in two parts to be joined."""
    keys = binary(rows.column(KEY))
    sizes, has_key = lengths(keys), np.asarray(keys.is_valid())
    table = np.empty((len(keys), 4 + _SHORT + 6), np.uint8)
    wide = np.where(sizes <= 0xFF, 1, np.where(sizes <= 0xFFFF, 2, 4))
    whole = _SHORT + np.where(has_key, 2 + wide + sizes, 0)
    table[:, :4] = _bytes_of(whole, ">i4")
    table[:, 4] = np.where(has_key, _TWO_PAIRS, _ONE_PAIR)
    table[:, 5], table[:, 6] = _OFFSET_FIELD, _INT64
    table[:, 7:15] = _bytes_of(np.asarray(rows.column(OFFSET)), ">i8")
    table[:, 15] = _KEY_FIELD
    table[:, 16] = np.where(wide == 1, _BIN8, np.where(wide == 2, _BIN16, _BIN32))
    table[:, 17:] = _bytes_of(sizes, ">i4")
    wanted = np.ones(table.shape, bool)
    wanted[:, 15:] = has_key[:, None]
    wanted[:, 17:] &= np.arange(4) >= 4 - wide[:, None]
    borders = np.concatenate([[0], np.cumsum(wanted.sum(axis=1))]).astype(np.int32)
    heads = pa.BinaryArray.from_buffers(
        pa.binary(), len(keys), [None, pa.py_buffer(borders), pa.py_buffer(table[wanted])]
    )
    return [heads, keys]


def messagepack_fields(keys: Any) -> tuple[Any, Any]:
    """Offsets and keys, decoded from MessagePack maps that have no length in front."""
    data, sizes = np.frombuffer(content(keys), np.uint8), lengths(keys)
    ends = np.cumsum(sizes, dtype=np.int64)
    starts = ends - sizes
    if not _are_ours(data, starts, sizes):
        return _one_by_one(keys)
    offsets = data[starts[:, None] + np.arange(3, _SHORT)].reshape(-1).view(">i8").astype(np.int64)
    has_key = data[starts] == _TWO_PAIRS
    kinds = data[np.minimum(starts + _SHORT + 1, len(data) - 1)]
    heads = _SHORT + 2 + np.select([kinds == kind for kind in _HEADS], list(_HEADS.values()), 0)
    begins = np.where(has_key, starts + heads, ends)
    return pa.array(offsets), pc.if_else(
        pa.array(has_key), cut_out(content(keys), begins, ends), pa.scalar(None, pa.binary())
    )


def _are_ours(data: Any, starts: Any, sizes: Any) -> bool:
    """Whether all maps have the form that `messagepack` gives them."""
    if (sizes < _SHORT).any():
        return False
    has_key = data[starts] == _TWO_PAIRS
    short = (data[starts] == _ONE_PAIR) & (sizes == _SHORT)
    field = (data[starts + 1] == _OFFSET_FIELD) & (data[starts + 2] == _INT64)
    return bool((field & (short | (has_key & (sizes > _SHORT + 2)))).all()) and bool(
        np.isin(data[starts[has_key] + _SHORT + 1], list(_HEADS)).all()
    )


def _one_by_one(keys: Any) -> tuple[Any, Any]:
    """Decode maps that another program wrote: numbers may be shorter, and there may be more fields in any order."""
    maps = [_Map(packed).fields() for packed in keys.to_pylist()]
    if any(type(fields.get(_OFFSET_FIELD)) is not int for fields in maps):
        raise ValueError("a key has no offset")
    found = [fields.get(_KEY_FIELD) for fields in maps]
    return pa.array([fields[_OFFSET_FIELD] for fields in maps], pa.int64()), pa.array(found, pa.binary())


class _Map:
    """The part of MessagePack that such keys use: a map of integers to integers or bytes."""

    def __init__(self, packed: bytes) -> None:
        self._packed = packed
        self._index = 0

    def fields(self) -> dict[Any, Any]:
        pairs = self._take(1)[0] - 0x80
        if not 0 <= pairs <= 0x0F:
            raise ValueError("a key is not a MessagePack map")
        return {self._value(): self._value() for _ in range(pairs)}

    def _value(self) -> Any:
        kind = self._take(1)[0]
        if kind <= 0x7F:
            return kind
        if kind >= 0xE0:
            return kind - 0x100
        if 0xCC <= kind <= 0xD3:
            return int.from_bytes(self._take(1 << (kind & 3)), "big", signed=kind >= 0xD0)
        if 0xA0 <= kind <= 0xBF:
            return self._take(kind - 0xA0)
        width = {0xC4: 1, 0xC5: 2, 0xC6: 4, 0xD9: 1, 0xDA: 2, 0xDB: 4}.get(kind)
        if width is None:
            raise ValueError(f"a key has a MessagePack value of the unknown type {kind:#x}")
        return self._take(int.from_bytes(self._take(width), "big"))

    def _take(self, size: int) -> bytes:
        taken = self._packed[self._index : self._index + size]
        if len(taken) != size:
            raise ValueError("a key ends too early")
        self._index += size
        return taken


def _bytes_of(numbers: Any, kind: str) -> Any:
    """Each number as a row of bytes."""
    return np.ascontiguousarray(numbers.astype(kind)).view(np.uint8).reshape(len(numbers), -1)
