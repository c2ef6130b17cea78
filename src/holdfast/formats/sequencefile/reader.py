"""Reads SequenceFiles of messages, ours and those that Hadoop and Spark write with the same classes."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa

from holdfast.flow.kafka_columns import KEY, OFFSET, VALUE
from holdfast.formats._arrays import content, cut_out, lengths
from holdfast.formats._compression import Pack
from holdfast.formats._decompression import CUT_OFF, READ_BYTES, unpacker
from holdfast.formats.sequencefile import keys as keys_
from holdfast.formats.sequencefile.layout import (
    ESCAPE,
    SYNC_BYTES,
    AnyHeader,
    KeyKind,
    decode_header,
    taken_vint,
    taken_vints,
)

_DAMAGED = "a record's length and what follows disagree"
_LENGTH = struct.Struct(">i")


def read(data: BinaryIO) -> Iterator[Any]:
    """Record batches with offset, value, and key if the file has it."""
    pieces = _Pieces(data)
    kind, header = decode_header(pieces.take)
    for keys, values in _blocks(pieces, header) if header.compression == "block" else _records(pieces, header):
        yield _batch(kind, keys, payloads(values))


def _records(pieces: _Pieces, header: AnyHeader) -> Iterator[tuple[Any, Any]]:
    unpack = unpacker(header.codec) if header.compression == "record" else None
    data = pieces.rest()
    while True:
        starts, used = _scanned(data, ESCAPE + header.sync)
        if len(starts):
            yield cut_records(data, starts, unpack)
        piece = pieces.next()
        if not piece:
            break
        data = data[used:] + piece
    if used < len(data):
        raise ValueError(CUT_OFF)


def cut_records(data: bytes, starts: Any, unpack: Pack | None) -> tuple[Any, Any]:
    """Keys and values of the records that begin at these places."""
    numbers = np.frombuffer(data, np.uint8)
    record, key = (_numbers_at(numbers, starts + place) for place in (0, 4))
    if (key < 0).any() or (key > record).any():
        raise ValueError(_DAMAGED)
    values = cut_out(data, starts + 8 + key, starts + 8 + record)
    if unpack is not None:
        values = pa.array(map(unpack, values.to_pylist()), pa.binary())
    return cut_out(data, starts + 8, starts + 8 + key), values


def _scanned(data: bytes, mark: bytes) -> tuple[Any, int]:
    """Where whole records begin, and where the first begins that is not whole."""
    starts, place, end, number = [], 0, len(data), _LENGTH.unpack_from
    while place + 8 <= end:
        (size,) = number(data, place)
        if size >= 0:
            if place + 8 + size > end:
                break
            starts.append(place)
            place += 8 + size
        elif place + len(mark) > end:
            break
        elif data[place : place + len(mark)] == mark:
            place += len(mark)
        else:
            raise ValueError(_DAMAGED)
    return np.array(starts, np.int64), place


def _blocks(pieces: _Pieces, header: AnyHeader) -> Iterator[tuple[Any, Any]]:
    unpack = unpacker(header.codec)
    while not pieces.at_end():
        if pieces.take(4 + SYNC_BYTES) != ESCAPE + header.sync:
            raise ValueError(_DAMAGED)
        count = taken_vint(pieces.take)
        parts = [unpack(pieces.take(taken_vint(pieces.take))) for _ in range(4)]
        yield apart(parts[1], taken_vints(parts[0], count)), apart(parts[3], taken_vints(parts[2], count))


def apart(data: bytes, sizes: Any) -> Any:
    """Records of these sizes that lie one behind the other."""
    borders = np.concatenate([[0], np.cumsum(sizes)])
    if borders[-1] != len(data):
        raise ValueError(_DAMAGED)
    buffers = [None, pa.py_buffer(borders.astype(np.int32)), pa.py_buffer(data)]
    return pa.BinaryArray.from_buffers(pa.binary(), len(sizes), buffers)


def _batch(kind: KeyKind, keys: Any, values: Any) -> Any:
    if kind == "legacy":
        return pa.record_batch([keys_.legacy_offsets(keys), values], names=[OFFSET, VALUE])
    return pa.record_batch([*keys_.messagepack_fields(payloads(keys)), values], names=[OFFSET, KEY, VALUE])


def payloads(writables: Any) -> Any:
    """What is in each `BytesWritable`, behind its length."""
    sizes = lengths(writables).astype(np.int64)
    ends = np.cumsum(sizes)
    data = content(writables)
    if (sizes < 4).any() or (_numbers_at(np.frombuffer(data, np.uint8), ends - sizes) != sizes - 4).any():
        raise ValueError(_DAMAGED)
    return cut_out(data, ends - sizes + 4, ends)


def _numbers_at(data: Any, places: Any) -> Any:
    return data[places[:, None] + np.arange(4)].reshape(-1).view(">i4").astype(np.int64)


class _Pieces:
    """A file that is read forwards in large pieces."""

    def __init__(self, data: BinaryIO) -> None:
        self._data = data
        self._waiting = b""
        self._place = 0

    def take(self, size: int) -> bytes:
        """Exactly so many bytes. Raises `ValueError` if there are fewer."""
        while len(self._waiting) - self._place < size:
            piece = self._data.read(max(READ_BYTES, size))
            if not piece:
                raise ValueError(CUT_OFF)
            self._waiting, self._place = self._waiting[self._place :] + piece, 0
        self._place += size
        return self._waiting[self._place - size : self._place]

    def rest(self) -> bytes:
        """What was read from the file and not taken. `next` goes on behind it."""
        return self._waiting[self._place :]

    def next(self) -> bytes:
        """The next piece of the file; nothing at the end."""
        return self._data.read(READ_BYTES)

    def at_end(self) -> bool:
        if self._place == len(self._waiting):
            self._waiting, self._place = self._data.read(READ_BYTES), 0
        return not self._waiting
