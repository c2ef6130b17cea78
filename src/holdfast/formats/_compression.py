"""Compression of whole files and of parts of them.

Compressors get their input in steps of a fixed size, so that the bytes do not depend on the portions of the rows. All
compressions are written as Spark and Hadoop read them: snappy and lz4 in Hadoop's framing, which the command line tools
of these names do not read.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import Field

from holdfast.config import Options
from holdfast.flow.format import RawWriter

STEP = 1 << 20
"""Bytes that a compressor gets at a time. With zstd each step is a frame."""
FRAMED_STEP = 128 << 10
"""Bytes of a block in Hadoop's framing; its readers have buffers of 256 KiB."""
FASTEST_ZLIB = 4
"""From this level on zlib compresses; below it ISA-L, which is many times as fast."""

Compression = Literal["none", "gzip", "zstd", "snappy", "lz4"]
SUFFIXES: dict[Compression, str] = {"none": "", "gzip": ".gz", "zstd": ".zst", "snappy": ".snappy", "lz4": ".lz4"}
GZIP_WINDOW, ZLIB_WINDOW = 31, 15
RAW_CODECS = {"snappy": "snappy", "lz4": "lz4_raw"}

Pack: TypeAlias = Callable[[Any], bytes]


class CompressedOptions(Options):
    """Compression of whole files."""

    compression: Compression = Field(
        "none", description="Compression of the files. snappy and lz4 have the framing that Spark and Hadoop read."
    )
    level: Annotated[int, Field(ge=1, le=9)] | None = Field(
        None,
        description="Level of gzip and zstd; a fast level by default. From level 4 on, gzip files are smaller and "
        "much slower to write.",
    )


class Stream:
    """Writes bytes to the file without compression."""

    waiting = 0
    """Bytes that are still buffered."""

    def __init__(self, raw: RawWriter) -> None:
        self._raw = raw

    def write(self, data: Any) -> None:
        self._raw.write(data)

    def close(self) -> None:
        """Write the rest. Nothing may be written afterwards."""


class PackedStream(Stream):
    """Compresses bytes in steps of a fixed size; the last may be smaller."""

    def __init__(self, raw: RawWriter, step: int, pack: Pack, end: Callable[[], bytes] = bytes) -> None:
        super().__init__(raw)
        self._step = step
        self._pack = pack
        self._end = end
        # One buffer for the whole file: allocating memory for each step is expensive.
        self._memory = memoryview(bytearray(step))

    def write(self, data: Any) -> None:
        view = memoryview(data).cast("B")
        while len(view):
            if not self.waiting and len(view) >= self._step:
                self._raw.write(self._pack(view[: self._step]))
                view = view[self._step :]
                continue
            taken = view[: self._step - self.waiting]
            self._memory[self.waiting : self.waiting + len(taken)] = taken
            self.waiting += len(taken)
            view = view[len(taken) :]
            if self.waiting == self._step:
                self._empty()

    def close(self) -> None:
        if self.waiting:
            self._empty()
        self._raw.write(self._end())

    def _empty(self) -> None:
        self._raw.write(self._pack(self._memory[: self.waiting]))
        self.waiting = 0


def compressed(raw: RawWriter, compression: Compression, level: int | None = None) -> Stream:
    """A stream that compresses into `raw`."""
    import pyarrow as pa

    if compression == "none":
        return Stream(raw)
    if compression == "gzip":
        deflate = _deflate(level, GZIP_WINDOW)
        return PackedStream(raw, STEP, deflate.compress, deflate.flush)
    if compression == "zstd":
        codec = pa.Codec("zstd", level or 1)
        return PackedStream(raw, STEP, lambda data: bytes(codec.compress(data, asbytes=True)))
    return PackedStream(raw, FRAMED_STEP, _framed(compression))


def packer(codec: str, level: int | None = None) -> Pack:
    """A function that compresses a block of data as Hadoop's codec of that name does: zlib, gzip, snappy or lz4."""
    from isal import isal_zlib

    if codec in RAW_CODECS:
        block = _framed(codec)
        return lambda data: b"".join(
            block(memoryview(data)[start : start + FRAMED_STEP]) for start in range(0, len(data), FRAMED_STEP)
        )

    window = GZIP_WINDOW if codec == "gzip" else ZLIB_WINDOW
    if level is not None and level >= FASTEST_ZLIB:
        return lambda data: zlib.compress(data, level, window)
    # In one call, because creating a compressor takes most of the time for little data.
    return lambda data: bytes(isal_zlib.compress(data, level or isal_zlib.ISAL_DEFAULT_COMPRESSION, window))


def _deflate(level: int | None, window: int) -> Any:
    from isal import isal_zlib

    if level is not None and level >= FASTEST_ZLIB:
        return zlib.compressobj(level, zlib.DEFLATED, window)
    return isal_zlib.compressobj(level or isal_zlib.ISAL_DEFAULT_COMPRESSION, isal_zlib.DEFLATED, window)


def _framed(compression: str) -> Pack:
    import pyarrow as pa

    codec = pa.Codec(RAW_CODECS[compression])

    def block(data: Any) -> bytes:
        packed = codec.compress(data, asbytes=True)
        return struct.pack(">ii", len(data), len(packed)) + bytes(packed)

    return block


class LeftOpen:
    """A file for Arrow that stays open when Arrow closes it."""

    closed = False

    def __init__(self, file: Any) -> None:
        self._file = file

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def flush(self) -> None:
        """The caller that opened the file flushes it."""

    def close(self) -> None:
        """The caller that opened the file closes it."""
