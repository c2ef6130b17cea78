"""Snappy in its two framings: the official one, and the one in which Hadoop and Spark write files."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa

from holdfast.sources.objects.object_ref import Damaged, Stream

MOST_EXPANSION = 64
"""Snappy never packs better than about 21 to 1: a chunk that says it holds more is damaged, and needs no memory."""
LARGEST_CHUNK = 256 << 20
_LARGEST_FRAME = 65536
_PACKED, _PLAIN, _PADDING = 0x00, 0x01, 0xFE
_MASK = 0xA282EAD8
_POLYNOMIAL = 0x82F63B78
_WIDTH = 64
"""Bytes that one lane of a checksum goes over."""


def unpacked_snappy(data: Stream, magic: bytes) -> Iterator[bytes]:
    """The parts of a file in either framing; the official one begins with the magic bytes. Raises `Damaged`."""
    head = _Exactly(data)
    return _framed(head, magic) if head.peek(len(magic)) == magic else _of_hadoop(head)


def crc32c(data: bytes) -> int:
    """Castagnoli's checksum, in numpy: many lanes at once, put together at the end."""
    numbers = np.frombuffer(data, np.uint8)
    if len(numbers) < 4:
        started = 0xFFFFFFFF
        for number in numbers.tolist():
            started = int(_table()[(started ^ number) & 0xFF]) ^ (started >> 8)
        return started ^ 0xFFFFFFFF
    lanes = np.zeros(-(-len(numbers) // _WIDTH) * _WIDTH, np.uint8)
    lanes[-len(numbers) :] = numbers
    # The register's first value is the same as those bits turned over in the first bytes; zeros before them count not.
    begin = len(lanes) - len(numbers)
    lanes[begin : begin + 4] ^= 0xFF
    sums, table = np.zeros(len(lanes) // _WIDTH, np.uint32), _table()
    for column in np.ascontiguousarray(lanes.reshape(-1, _WIDTH).T):
        sums = table.take(sums.astype(np.uint8) ^ column) ^ (sums >> 8)
    whole, (first, second, third, fourth) = 0, _moved()
    for one in sums.tolist():
        whole = one ^ first[whole & 0xFF] ^ second[whole >> 8 & 0xFF] ^ third[whole >> 16 & 0xFF] ^ fourth[whole >> 24]
    return whole ^ 0xFFFFFFFF


class _Exactly:
    """Bytes by exact counts."""

    def __init__(self, data: Stream) -> None:
        self._data = data
        self._ahead = b""

    def peek(self, size: int) -> bytes:
        while len(self._ahead) < size and (part := self._data.read(size - len(self._ahead))):
            self._ahead += part
        return self._ahead[:size]

    def take(self, size: int, *, or_end: bool = False) -> bytes:
        """So many bytes; none at the end, if it may be here. Raises `Damaged` if there are fewer."""
        taken = self.peek(size)
        self._ahead = self._ahead[size:]
        if len(taken) != size and (taken or not or_end):
            raise Damaged("it is no valid snappy file: it ends too early")
        return taken


def _framed(data: _Exactly, magic: bytes) -> Iterator[bytes]:
    while head := data.take(4, or_end=True):
        kind, body = head[0], data.take(int.from_bytes(head[1:], "little"))
        if kind in {_PACKED, _PLAIN}:
            part = _unpacked_chunk(body[4:]) if kind == _PACKED else body[4:]
            if len(part) > _LARGEST_FRAME or _masked(crc32c(part)) != int.from_bytes(body[:4], "little"):
                raise Damaged("it is no valid snappy file: a checksum is wrong")
            if part:
                yield part
        elif kind != _PADDING and head + body != magic:
            # Nobody writes the other kinds that may be skipped; one flipped bit would make such a chunk of a good one.
            raise Damaged(f"it is no valid snappy file: there is a chunk of the kind {kind:#x}")


def _of_hadoop(data: _Exactly) -> Iterator[bytes]:
    """A block says how much it holds, and has it in one chunk or several, each with its size when packed."""
    while head := data.take(4, or_end=True):
        missing = int.from_bytes(head, "big")
        while missing > 0:
            size = int.from_bytes(data.take(4), "big")
            if size > LARGEST_CHUNK:
                raise Damaged("it is no valid snappy file: a chunk is too large")
            part = _unpacked_chunk(data.take(size))
            missing -= len(part)
            if missing < 0 or not part:
                raise Damaged("it is no valid snappy file: a block does not hold what it says")
            yield part


def _unpacked_chunk(chunk: bytes) -> bytes:
    size = 0
    for place, number in enumerate(chunk[:5]):
        size |= (number & 0x7F) << (7 * place)
        if number < 0x80:
            break
    if size > MOST_EXPANSION * (len(chunk) + 1):
        raise Damaged("it is no valid snappy file: a chunk says that it holds too much")
    try:
        return bytes(pa.Codec("snappy").decompress(chunk, size, asbytes=True))
    except OSError as error:
        raise Damaged(f"it is no valid snappy file: {error}") from error


def _masked(number: int) -> int:
    return ((number >> 15 | number << 17) + _MASK) & 0xFFFFFFFF


@cache
def _table() -> Any:
    numbers = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        numbers = np.where(numbers & 1, (numbers >> 1) ^ np.uint32(_POLYNOMIAL), numbers >> 1)
    return numbers.astype(np.uint32)


@cache
def _moved() -> list[list[int]]:
    """What each byte of a register becomes when a lane of zeros goes by."""
    numbers = np.arange(256, dtype=np.uint32)[None, :] << (8 * np.arange(4, dtype=np.uint32))[:, None]
    for _ in range(_WIDTH):
        numbers = _table()[numbers & 0xFF] ^ (numbers >> 8)
    moved: list[list[int]] = numbers.tolist()
    return moved
