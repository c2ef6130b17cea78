"""Undoes the compression of whole files and of pieces of them."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import BinaryIO

from holdfast.formats._compression import GZIP_WINDOW, RAW_CODECS, ZLIB_WINDOW, Compression, LeftOpen, Pack

READ_BYTES = 4 << 20
CUT_OFF = "the file is cut off"
MOST_EXPANSION = 64
"""Snappy never packs better than about 21 to 1; who says more is damaged, and gets no memory for it."""
# Magic number, blocks that stand alone and hold up to 4 MiB, and the checksum of these two facts.
_LZ4_FRAME = bytes.fromhex("04224d18607073")


def decompressed(data: BinaryIO, compression: Compression) -> Iterator[bytes]:
    """The pieces of an unpacked file. Raises `ValueError` when it is cut off or not so compressed."""
    unpack = {"none": _read, "gzip": _gunzipped, "zstd": _unzstd}.get(compression)
    yield from _unframed(data, compression) if unpack is None else unpack(data)


def unpacker(codec: str) -> Pack:
    """Undoes `packer`, and Hadoop's bzip2. Raises `ValueError` for what is not so packed."""
    from io import BytesIO

    if codec == "bzip2":
        return lambda data: b"".join(_unbzip2(BytesIO(data)))
    if codec in RAW_CODECS:
        return lambda data: b"".join(_unframed(BytesIO(data), codec))
    return lambda data: b"".join(_inflated(BytesIO(data), GZIP_WINDOW if codec == "gzip" else ZLIB_WINDOW))


def _read(data: BinaryIO) -> Iterator[bytes]:
    while piece := data.read(READ_BYTES):
        yield piece


def _gunzipped(data: BinaryIO) -> Iterator[bytes]:
    return _inflated(data, GZIP_WINDOW)


def _inflated(data: BinaryIO, window: int) -> Iterator[bytes]:
    from isal import igzip_lib, isal_zlib

    inflate, begun = isal_zlib.decompressobj(window), False
    try:
        for piece in _read(data):
            rest = piece
            while rest:
                begun = True
                yield inflate.decompress(rest)
                rest = inflate.unused_data
                if inflate.eof:
                    inflate, begun = isal_zlib.decompressobj(window), False
    except igzip_lib.IsalError as error:  # type: ignore[misc]  # its stub names an instance
        raise ValueError(f"it cannot be decompressed: {error}") from error
    if begun:
        raise ValueError(CUT_OFF)


def _unbzip2(data: BinaryIO) -> Iterator[bytes]:
    from bz2 import BZ2Decompressor

    unpack, begun = BZ2Decompressor(), False
    try:
        for piece in _read(data):
            rest = piece
            while rest:
                begun = True
                yield unpack.decompress(rest)
                rest = unpack.unused_data
                if unpack.eof:
                    unpack, begun = BZ2Decompressor(), False
    except OSError as error:
        raise ValueError(f"it cannot be decompressed: {error}") from error
    if begun:
        raise ValueError(CUT_OFF)


def _unzstd(data: BinaryIO) -> Iterator[bytes]:
    import pyarrow as pa

    stream = pa.CompressedInputStream(pa.PythonFile(LeftOpen(data), mode="r"), "zstd")
    while True:
        try:
            piece = stream.read(READ_BYTES)
        except OSError as error:
            if error.errno is not None:
                raise
            raise ValueError(f"it cannot be decompressed: {error}") from error
        if not piece:
            return
        yield piece


def _unframed(data: BinaryIO, compression: str) -> Iterator[bytes]:
    """A block says how much it holds, and has it in one chunk or several, each with its size when packed."""
    unpack = unsnappy if compression == "snappy" else _unlz4
    while head := data.read(4):
        missing = _number(head)
        while missing > 0:
            piece = unpack(exactly(data, _number(data.read(4))))
            missing -= len(piece)
            yield piece
        if missing < 0:
            raise ValueError("a compressed block holds more than it says")


def unsnappy(chunk: bytes) -> bytes:
    """Undoes snappy without any framing. Raises `ValueError` for what is none."""
    import pyarrow as pa

    size, shift, place = 0, 0, 0
    while place < len(chunk) and place < 5:
        size |= (chunk[place] & 0x7F) << shift
        if chunk[place] < 0x80:
            break
        shift, place = shift + 7, place + 1
    if size > MOST_EXPANSION * (len(chunk) + 1):
        raise ValueError("a compressed block says that it holds too much")
    return _sound(lambda: bytes(pa.Codec("snappy").decompress(chunk, size, asbytes=True)))


def _unlz4(chunk: bytes) -> bytes:
    """A block does not say how much it holds; a frame around it lets Arrow find out."""
    import pyarrow as pa

    frame = b"".join([_LZ4_FRAME, struct.pack("<I", len(chunk)), chunk, bytes(4)])
    return _sound(lambda: bytes(pa.CompressedInputStream(pa.BufferReader(frame), "lz4").read()))


def _sound(unpack: Callable[[], bytes]) -> bytes:
    try:
        piece = unpack()
    except OSError as error:
        raise ValueError(f"it cannot be decompressed: {error}") from error
    if not piece:
        raise ValueError("a compressed block holds less than it says")
    return piece


def _number(four: bytes) -> int:
    if len(four) != 4:
        raise ValueError(CUT_OFF)
    return int.from_bytes(four, "big")


def exactly(data: BinaryIO, size: int) -> bytes:
    """That many bytes. Raises `ValueError` if there are fewer."""
    piece = data.read(size)
    if len(piece) != size:
        raise ValueError(CUT_OFF)
    return piece
