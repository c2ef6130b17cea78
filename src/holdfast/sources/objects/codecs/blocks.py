"""Blocks with marks between them: going forwards through an object, and finding the first mark of a range."""

from __future__ import annotations

from holdfast.sources.objects.object_ref import Damaged, RandomBytes

READ_BYTES = 4 << 20
ENDS_TOO_EARLY = "it ends too early"


class Forward:
    """The bytes of an object from its beginning on, or from a mark on."""

    def __init__(self, data: RandomBytes, size: int) -> None:
        self._data = data
        self._size = size
        self._waiting = b""
        self._place = 0
        self._next = data.seek(0)

    @property
    def at(self) -> int:
        """Where the next byte is in the object."""
        return self._next - len(self._waiting) + self._place

    @property
    def left(self) -> int:
        """So many bytes are before the end of the object."""
        return self._size - self.at

    def take(self, size: int) -> bytes:
        """Exactly so many bytes. Raises `Damaged` if there are fewer; what is asked for is never more than there is."""
        if not 0 <= size <= self.left:
            raise Damaged(ENDS_TOO_EARLY)
        while len(self._waiting) - self._place < size:
            piece = self._read(max(READ_BYTES, size))
            if not piece:
                raise Damaged(ENDS_TOO_EARLY)
            self._waiting, self._place = self._waiting[self._place :] + piece, 0
        self._place += size
        return self._waiting[self._place - size : self._place]

    def some(self) -> bytes:
        """The next bytes, however many; none at the end."""
        taken, self._waiting, self._place = self._waiting[self._place :], b"", 0
        return taken or self._read(READ_BYTES)

    def go_behind(self, mark: bytes, start: int, end: int) -> bool:
        """Go behind the first mark that ends at `start` or later, and before `end`; False if there is none."""
        begin = max(start - len(mark), 0)
        self._waiting, self._place, self._next = b"", 0, self._data.seek(begin)
        while True:
            found = self._waiting.find(mark)
            if found >= 0:
                self._place = found + len(mark)
                return self.at < end
            if self._next >= min(end, self._size) or not (piece := self._read(READ_BYTES)):
                return False
            self._waiting = self._waiting[1 - len(mark) :] + piece

    def _read(self, size: int) -> bytes:
        piece = self._data.read(size)
        self._next += len(piece)
        return piece
