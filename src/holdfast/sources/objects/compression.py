"""Compressed objects: how an object is recognised as compressed, and its decompressed bytes, in little memory.

Content before the damage is returned before the damage is raised.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from holdfast.formats._decompression import SNAPPY_MAGIC, FileCompression, small_parts
from holdfast.sources.objects.object_ref import Damaged, Stream

HEAD_BYTES = 16
"""Number of first bytes that are enough to recognise a compression."""
_ENDINGS: dict[str, FileCompression] = {
    ".gz": "gzip",
    ".gzip": "gzip",
    ".zst": "zstd",
    ".zstd": "zstd",
    ".snappy": "snappy",
    ".sz": "snappy",
    ".bz2": "bzip2",
    ".bzip2": "bzip2",
}
_GZIP_MAGIC = b"\x1f\x8b"
_ZSTD_MAGIC = re.compile(rb"\x28\xb5\x2f\xfd|[\x50-\x5f]\x2a\x4d\x18")
# An empty bzip2 file has the second kind of block only.
_BZIP2_MAGIC = re.compile(rb"BZh[1-9](1AY&SY|\x17rE8P\x90)", re.DOTALL)


class Peeked:
    """The bytes of an object from its beginning on; the first ones can be looked at before they are read."""

    def __init__(self, data: Stream) -> None:
        self._data = data
        self._head = b""

    def head(self) -> bytes:
        """The first bytes; fewer than `HEAD_BYTES` only if there are no more. Call it before anything is read."""
        while len(self._head) < HEAD_BYTES and (part := self._data.read(HEAD_BYTES - len(self._head))):
            self._head += part
        return self._head

    def read(self, size: int, /) -> bytes:
        part, self._head = self._head[:size], self._head[size:]
        return part + self._data.read(size - len(part)) if len(part) < size else part


class Decompressed:
    """A `Stream` of the parts of a compressed object. Damage is raised when all parts before it have been read."""

    def __init__(self, parts: Iterator[bytes], compression: str) -> None:
        self._parts = parts
        self._compression = compression
        self._rest = b""
        self._damage: Damaged | None = None

    def read(self, size: int, /) -> bytes:
        taken, missing = [], size
        while missing and (part := self._rest or self._next()):
            taken.append(part[:missing])
            self._rest = part[missing:]
            missing -= len(taken[-1])
        if not taken and self._damage is not None:
            raise self._damage
        return taken[0] if len(taken) == 1 else b"".join(taken)

    def _next(self) -> bytes:
        if self._damage is not None:
            return b""
        try:
            return next(self._parts, b"")
        except ValueError as error:
            self._damage = Damaged(f"it is not a valid {self._compression} file: {error}")
            return b""


def compression_by_name(path: str) -> FileCompression | None:
    """The compression that the ending of the name stands for, if any."""
    name = path.lower()
    return next((compression for ending, compression in _ENDINGS.items() if name.endswith(ending)), None)


def compression_of(path: str, setting: str, head: Callable[[], bytes]) -> FileCompression:
    """The compression of an object. `head` reads its first bytes; it is called only if nothing else decides."""
    for compression in ("none", "gzip", "zstd", "snappy", "bzip2"):
        if setting == compression:
            return compression
    return compression_by_name(path) or _by_magic(head())


def decompressed(data: Stream, compression: FileCompression) -> Stream:
    """The content of an object that is read from its beginning. Reading raises `Damaged` where the data is invalid."""
    return data if compression == "none" else Decompressed(small_parts(data, compression), compression)


def _by_magic(head: bytes) -> FileCompression:
    if head.startswith(_GZIP_MAGIC):
        return "gzip"
    if _ZSTD_MAGIC.match(head):
        return "zstd"
    if _BZIP2_MAGIC.match(head):
        return "bzip2"
    return "snappy" if head.startswith(SNAPPY_MAGIC) else "none"
