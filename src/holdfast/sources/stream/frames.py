"""The bytes of a segment: frames of records, each with its length and checksum. Pure.

A segment begins with a header and holds frames one after the other. A frame is what one append has written, so that
it is there as a whole or not at all. All numbers are little-endian:

    segment header   magic (8 bytes), base: offset of the first record (u64), timestamp of the first frame (i64, ms)
    frame            bytes that follow the checksum (u32), their CRC-32 (u32),
                     offset of the first record (u64), timestamp (i64, ms), number of records (u32), flags (u32),
                     lengths of the bodies (i32 each), lengths of the keys (i32 each; only if KEYS is set),
                     the bodies, the keys, the headers (MessagePack; only if HEADERS is set)

A length of -1 is a body or key that is absent; it only occurs if ABSENT is set.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from itertools import accumulate, pairwise, repeat
from typing import NamedTuple

import msgspec
from isal.isal_zlib import crc32

from holdfast.flow.shards import Headers, StreamRecord

MAGIC = b"HFSTREAM"
SEGMENT_HEADER = struct.Struct("<8sQq")
PREFIX = struct.Struct("<II")
FRAME_HEADER = struct.Struct("<IIQqII")
KEYS, HEADERS, ABSENT = 1, 2, 4

MAX_RECORD_BYTES = 16 << 20
"""Bytes of key, headers and body of one record at most."""
FRAME_BYTES = 1 << 20
"""Records that exceed this size together are written as several frames."""
MAX_FRAME_BYTES = MAX_RECORD_BYTES + FRAME_BYTES + (1 << 20)
"""No frame is longer; a greater length is damage."""

_HEADERS = msgspec.msgpack.Decoder(tuple[Headers, ...])


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
    flags, lengths, blobs = 0, _lengths(bodies), list(bodies)
    if any(key is not None for key in keys):
        flags |= KEYS
        lengths += _lengths(keys)
        blobs += keys
    if -1 in lengths:
        flags |= ABSENT
        blobs = [blob for blob in blobs if blob is not None]
    if any(headers):
        flags |= HEADERS
        blobs.append(msgspec.msgpack.encode(headers))
    rest = struct.pack(f"<QqII{len(lengths)}i", base, timestamp, len(bodies), flags, *lengths) + b"".join(blobs)
    return PREFIX.pack(len(rest), crc32(rest)) + rest


def _lengths(blobs: Sequence[bytes | None]) -> list[int]:
    if None in blobs:
        return [-1 if blob is None else len(blob) for blob in blobs]
    return [*map(len, blobs)]  # type: ignore[arg-type]


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
    _, checksum, base, timestamp, count, _ = FRAME_HEADER.unpack_from(data, at)
    stop = at + length
    if not count or crc32(memoryview(data)[at + PREFIX.size : stop]) != checksum:
        return None
    return Frame(at, stop, base, base + count, timestamp)


def decode(data: bytes, frame: Frame, shard: str) -> list[StreamRecord]:
    """Return the records of a whole frame."""
    _, _, base, timestamp, count, flags = FRAME_HEADER.unpack_from(data, frame.start)
    columns = 2 if flags & KEYS else 1
    lengths = struct.unpack_from(f"<{columns * count}i", data, frame.start + FRAME_HEADER.size)
    blobs, at = _cut(data, frame.start + FRAME_HEADER.size + 4 * len(lengths), lengths, absent=bool(flags & ABSENT))
    keys = blobs[count:] if flags & KEYS else repeat(None)
    headers = _HEADERS.decode(memoryview(data)[at : frame.stop]) if flags & HEADERS else repeat(())
    cells = zip(repeat(shard, count), range(base, base + count), repeat(timestamp), keys, headers, blobs, strict=False)
    # Without a call of Python per record.
    return list(map(tuple.__new__, repeat(StreamRecord), cells))


def _cut(data: bytes, at: int, lengths: Sequence[int], *, absent: bool) -> tuple[Sequence[bytes | None], int]:
    """Cut consecutive pieces of these lengths, and return them and where the last one ends."""
    ends = list(accumulate(map(max, lengths, repeat(0)) if absent else lengths, initial=at))
    pieces: list[bytes | None] = [data[start:end] for start, end in pairwise(ends)]
    if absent:
        pieces = [None if length < 0 else piece for length, piece in zip(lengths, pieces, strict=True)]
    return pieces, ends[-1]
