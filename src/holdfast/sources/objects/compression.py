"""Compressed objects: how it is told that one is, and its unpacked bytes, in bounded memory.

What was unpacked before the damage of an object is handed out before the damage is told.
"""

from __future__ import annotations

import bz2
import re
from collections.abc import Callable, Iterator
from typing import Literal

from holdfast.sources.objects.object_ref import Damaged, Stream

Compression = Literal["none", "gzip", "zstd", "snappy", "bzip2"]

HEAD_BYTES = 16
"""So many first bytes tell every compression that can be told."""
_ENDINGS: dict[str, Compression] = {
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
# A file of bzip2 that holds nothing has the second kind of block only.
_BZIP2_MAGIC = re.compile(rb"BZh[1-9](1AY&SY|\x17rE8P\x90)", re.DOTALL)
SNAPPY_MAGIC = b"\xff\x06\x00\x00sNaPpY"
"""Of the official framing; Hadoop's has none."""
_GZIP_FORMAT = 31
_READ = 128 << 10
_PART = 64 << 10
"""Small, because an unpacker that meets damage gives nothing of the part that it was asked for."""


class Peeked:
    """The bytes of an object that stands at its beginning; its first ones may be looked at before they are read."""

    def __init__(self, data: Stream) -> None:
        self._data = data
        self._head = b""

    def head(self) -> bytes:
        """The first bytes; fewer only if there are no more. To be called before anything is read."""
        while len(self._head) < HEAD_BYTES and (part := self._data.read(HEAD_BYTES - len(self._head))):
            self._head += part
        return self._head

    def read(self, size: int, /) -> bytes:
        part, self._head = self._head[:size], self._head[size:]
        return part + self._data.read(size - len(part)) if len(part) < size else part


class Unpacked:
    """The parts that one of the functions below gives, in whatever portions they are asked for."""

    def __init__(self, parts: Iterator[bytes]) -> None:
        self._parts = parts
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
        except Damaged as damage:
            self._damage = damage
            return b""


def compression_by_name(path: str) -> Compression | None:
    """What the ending of the name says; None if it says nothing."""
    name = path.lower()
    return next((kind for ending, kind in _ENDINGS.items() if name.endswith(ending)), None)


def compression_of(path: str, setting: str, head: Callable[[], bytes]) -> Compression:
    """The compression of an object. `head` reads its first bytes; it is asked only if nothing else tells."""
    for kind in ("none", "gzip", "zstd", "snappy", "bzip2"):
        if setting == kind:
            return kind
    return compression_by_name(path) or _by_magic(head())


def unpacked(data: Stream, compression: Compression) -> Stream:
    """The bytes of an object that stands at its beginning. Reading raises `Damaged` where they are not so packed."""
    unpack = {"gzip": _gunzipped, "zstd": _unzstd, "snappy": _unsnappy, "bzip2": _unbzip2}.get(compression)
    return data if unpack is None else Unpacked(unpack(data))


def _by_magic(head: bytes) -> Compression:
    if head.startswith(_GZIP_MAGIC):
        return "gzip"
    if _ZSTD_MAGIC.match(head):
        return "zstd"
    if _BZIP2_MAGIC.match(head):
        return "bzip2"
    return "snappy" if head.startswith(SNAPPY_MAGIC) else "none"


def _gunzipped(data: Stream) -> Iterator[bytes]:
    """Of one or more members. Zeros may follow each, as tapes and block devices leave them."""
    from isal import igzip_lib, isal_zlib

    member, packed, inside = isal_zlib.decompressobj(_GZIP_FORMAT), b"", False
    while packed or (packed := data.read(_READ)):
        if not inside and not (packed := packed.lstrip(b"\0")):
            continue
        try:
            part = member.decompress(packed, _PART)
        except igzip_lib.IsalError as error:  # type: ignore[misc]  # its stub names an instance
            raise Damaged(f"it is no valid gzip file: {error}") from error
        inside, packed = not member.eof, member.unconsumed_tail
        if part:
            yield part
        if member.eof:
            packed, member = member.unused_data, isal_zlib.decompressobj(_GZIP_FORMAT)
    if inside:
        raise Damaged("it is no valid gzip file: it ends too early")


def _unbzip2(data: Stream) -> Iterator[bytes]:
    """Of one or more streams, as the tools that use several cores write them."""
    stream, packed, inside = bz2.BZ2Decompressor(), b"", False
    while packed or (inside and not stream.needs_input) or (packed := data.read(_READ)):
        try:
            part = stream.decompress(packed, _PART)
        except (OSError, ValueError) as error:
            raise Damaged(f"it is no valid bzip2 file: {error}") from error
        inside, packed = not stream.eof, b""
        if part:
            yield part
        if stream.eof:
            packed, stream = stream.unused_data, bz2.BZ2Decompressor()
    if inside:
        raise Damaged("it is no valid bzip2 file: it ends too early")


def _unzstd(data: Stream) -> Iterator[bytes]:
    """Of one or more frames."""
    import pyarrow as pa

    from holdfast.formats._compression import LeftOpen

    stream = pa.CompressedInputStream(pa.PythonFile(LeftOpen(data), mode="r"), "zstd")
    while True:
        try:
            part = stream.read(_PART)
        except OSError as error:
            if error.errno is not None:
                raise
            raise Damaged(f"it is no valid zstd file: {error}") from error
        if not part:
            return
        yield part


def _unsnappy(data: Stream) -> Iterator[bytes]:
    from holdfast.sources.objects.snappy import unpacked_snappy

    return unpacked_snappy(data, SNAPPY_MAGIC)
