"""An open object as Arrow wants a file."""

from __future__ import annotations

import io

from holdfast.sources.objects.places import RandomBytes


class ArrowBytes:
    """Knows where it stands and how large it is; closing leaves the object open."""

    closed = False

    def __init__(self, data: RandomBytes, size: int) -> None:
        self._data = data
        self._size = size
        self._at = data.seek(0)

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        self._at = base + offset
        return self._at

    def tell(self) -> int:
        return self._at

    def read(self, size: int = -1) -> bytes:
        self._data.seek(self._at)
        wanted = self._size - self._at if size < 0 else size
        parts = []
        # A plain file may give fewer bytes than it has.
        while wanted > 0 and (part := self._data.read(wanted)):
            parts.append(part)
            wanted -= len(part)
            self._at += len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def flush(self) -> None:
        """Nothing is written."""

    def close(self) -> None:
        """Whoever opened the object closes it."""
