"""Reads a file or object forwards: fetches large portions, and returns exact numbers of bytes."""

from __future__ import annotations

import sys
from typing import Protocol

READ_BYTES = 4 << 20
ENDS_TOO_EARLY = "it ends too early"
MAX_BLOCK = 64 << 20
"""The most bytes that a block, record or value of an object may have, before and after decompression: a few bytes can
declare gigabytes, and what exceeds this is damage."""


class Readable(Protocol):
    """Bytes in order."""

    def read(self, size: int, /) -> bytes:
        """Up to `size` bytes; none only at the end."""
        ...


class Seekable(Readable, Protocol):
    """Bytes at any offset."""

    def seek(self, offset: int, /) -> int:
        """Go to that byte, counted from the beginning."""
        ...


class ForwardReader:
    """Reads a file from its beginning."""

    def __init__(self, data: Readable, size: int | None = None) -> None:
        """`data` must be at its beginning. `size` is the size of the whole file, if it is known."""
        self.size = size
        self._max_take = sys.maxsize
        self._data = data
        self._buffer = b""
        self._index = 0
        self._next = 0
        """Offset in the file after the buffer."""

    @property
    def offset(self) -> int:
        """Where the next byte is in the file."""
        return self._next - len(self._buffer) + self._index

    def at_end(self) -> bool:
        """Whether no more bytes follow. Reads only where the size is not known."""
        if self.size is not None:
            return self.offset >= self.size
        return not self.peek(1)

    def peek(self, size: int) -> bytes:
        """The next bytes, without consuming them; fewer only at the end."""
        self._fill(size)
        return self._buffer[self._index : self._index + size]

    def read(self, size: int) -> bytes:
        """The next bytes; fewer only at the end."""
        taken = self.peek(size)
        self._index += len(taken)
        return taken

    def take(self, size: int) -> bytes:
        """Exactly that many bytes. Raises `ValueError` if there are fewer; never requests more than the file has."""
        if size < 0 or (self.size is not None and size > self.size - self.offset):
            raise ValueError(ENDS_TOO_EARLY)
        if size > self._max_take:
            raise ValueError(
                f"{size} bytes at {self.offset} are declared as one block; at most {self._max_take} are read"
            )
        taken = self.read(size)
        if len(taken) < size:
            raise ValueError(ENDS_TOO_EARLY)
        return taken

    def portion(self) -> bytes:
        """The next bytes, however many; none at the end."""
        taken, self._buffer, self._index = self._buffer[self._index :], b"", 0
        return taken or self._read(READ_BYTES)

    def _fill(self, size: int) -> None:
        while len(self._buffer) - self._index < size and (part := self._read(max(READ_BYTES, size))):
            self._buffer, self._index = self._buffer[self._index :] + part, 0

    def _read(self, size: int) -> bytes:
        part = self._data.read(size)
        self._next += len(part)
        return part


class RangeReader(ForwardReader):
    """Reads an object from its beginning, or from a sync marker between two blocks; takes at most `MAX_BLOCK` bytes."""

    def __init__(self, data: Seekable, size: int) -> None:
        super().__init__(data, size)
        self._max_take = MAX_BLOCK
        self._seekable = data

    def skip_behind(self, mark: bytes, start: int, end: int) -> bool:
        """Skip past the first sync marker that ends at `start` or later, and before `end`; False if there is none."""
        begin = max(start - len(mark), 0)
        self._buffer, self._index, self._next = b"", 0, self._seekable.seek(begin)
        while True:
            found = self._buffer.find(mark)
            if found >= 0:
                self._index = found + len(mark)
                return self.offset < end
            if self._next >= min(end, self.size or 0) or not (part := self._read(READ_BYTES)):
                return False
            self._buffer = self._buffer[1 - len(mark) :] + part
