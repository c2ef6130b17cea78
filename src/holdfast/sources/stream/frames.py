"""The bytes of a segment: frames of records, each with its length and checksum. Pure.

A segment begins with a header and holds frames one after the other. A frame is what one append has written, so that
it is there as a whole or not at all. All numbers are little-endian:

    segment header   magic (8 bytes), base: offset of the first record (u64), timestamp of the first frame (i64, ms)
    frame            bytes that follow the checksum (u32), their CRC-32 (u32),
                     offset of the first record (u64), timestamp (i64, ms), number of records (u32),
                     MessagePack: [bodies, keys or nil, headers or nil], each an array with an entry per record
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from itertools import repeat
from typing import NamedTuple

import msgspec
from isal.isal_zlib import crc32

from holdfast.errors import BatchError
from holdfast.flow.shards import Headers, StreamRecord

MAGIC = b"HFSTREAM"
SEGMENT_HEADER = struct.Struct("<8sQq")
PREFIX = struct.Struct("<II")
FRAME_HEADER = struct.Struct("<IIQqI")

MAX_RECORD_BYTES = 16 << 20
"""Bytes of key, headers and body of one record at most."""
FRAME_BYTES = 1 << 20
"""Records that exceed this size together are written as several frames."""
MAX_FRAME_BYTES = MAX_RECORD_BYTES + FRAME_BYTES + (1 << 20)
"""No frame is longer; a greater length is damage."""

_Blobs = list[bytes | None]
_COLUMNS = msgspec.msgpack.Decoder(tuple[_Blobs, _Blobs | None, list[Headers] | None])


class NewRecord(NamedTuple):
    """A record to append."""

    body: bytes | None
    key: bytes | None = None
    headers: Headers = ()


class Frame(NamedTuple):
    """A whole frame in a buffer: its records have the offsets [base, end), its bytes end at `stop`."""

    start: int
    stop: int
    base: int
    end: int
    timestamp: int


def encode(base: int, timestamp: int, records: Sequence[NewRecord]) -> bytes:
    """Return the frame of these records; there must be at least one."""
    bodies, keys, headers = zip(*records, strict=True)
    count = len(bodies)
    columns = (bodies, None if keys.count(None) == count else keys, headers if any(headers) else None)
    rest = struct.pack("<QqI", base, timestamp, count) + msgspec.msgpack.encode(columns)
    return PREFIX.pack(len(rest), crc32(rest)) + rest


def frame_bytes(data: bytes, at: int) -> int | None:
    """Return the length of the frame that begins there, whole or not; None if its header is not whole.

    A frame of an impossible length is 0 bytes long.
    """
    if at + FRAME_HEADER.size > len(data):
        return None
    length = PREFIX.size + PREFIX.unpack_from(data, at)[0]
    return length if FRAME_HEADER.size < length <= MAX_FRAME_BYTES else 0


def frame_at(data: bytes, at: int) -> Frame | None:
    """Return the frame that begins there, or None if it is not whole or its checksum is wrong."""
    length = frame_bytes(data, at)
    if not length or at + length > len(data):
        return None
    _, checksum, base, timestamp, count = FRAME_HEADER.unpack_from(data, at)
    stop = at + length
    if not count or crc32(memoryview(data)[at + PREFIX.size : stop]) != checksum:
        return None
    return Frame(at, stop, base, base + count, timestamp)


def decode(data: bytes, frame: Frame, shard: str) -> list[StreamRecord]:
    """Return the records of a whole frame.

    Raises `BatchError` for an invalid frame, which another program has written.
    """
    offsets = range(frame.base, frame.end)
    try:
        bodies, keys, headers = _COLUMNS.decode(memoryview(data)[frame.start + FRAME_HEADER.size : frame.stop])
    except msgspec.MsgspecError as error:
        raise BatchError(f"{shard} has an unreadable frame at offset {frame.base}: {error}") from error
    if any(column is not None and len(column) != len(offsets) for column in (bodies, keys, headers)):
        raise BatchError(f"{shard} has a frame with missing records at offset {frame.base}")
    # Without a call of Python per record: reading is several times as fast.
    columns = (repeat(shard), offsets, repeat(frame.timestamp), keys or repeat(None), headers or repeat(()), bodies)
    return list(map(StreamRecord, *columns))
