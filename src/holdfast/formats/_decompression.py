"""Decompression of whole files and of parts of them: gzip, zlib, zstd, bzip2, and snappy and lz4 in their framings.

A file is decompressed in parts, and all parts before damage are yielded before the damage is raised as `ValueError`.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from functools import cache
from io import BytesIO
from typing import Any, Literal, TypeAlias

from holdfast.formats._compression import GZIP_WINDOW, RAW_CODECS, ZLIB_WINDOW, Compression, LeftOpen
from holdfast.formats._forward import ENDS_TOO_EARLY, MAX_BLOCK, READ_BYTES, ForwardReader, Readable

FileCompression = Literal["none", "gzip", "zstd", "snappy", "bzip2"]
"""Compressions of files that other programs wrote."""
SNAPPY_MAGIC = b"\xff\x06\x00\x00sNaPpY"
"""The first bytes of snappy's official framing. Hadoop's framing has none."""
MAX_EXPANSION = 64
"""Snappy never compresses better than about 21 to 1: a chunk that claims more is damaged, and no memory is allocated
for it."""
_SMALL_PART = 64 << 10
"""Size of a part where damage is expected: the whole part in which damage occurs is lost."""
_SMALL_READ = 128 << 10
_MAX_FRAME = 65536
_COMPRESSED_FRAME, _PLAIN_FRAME, _PADDING_FRAME = 0x00, 0x01, 0xFE
Read: TypeAlias = Callable[[int], bytes]
"""Returns the next bytes, as many as requested; fewer only at the end."""
Unpack: TypeAlias = Callable[[Any, int], bytes]
"""Decompresses a block of data. Raises `ValueError` if it is damaged, or becomes more than that many bytes."""
# Magic number, flags (independent blocks of up to 4 MiB), and the checksum of the flags.
_LZ4_FRAME = bytes.fromhex("04224d18607073")


def decompressed(data: Readable, compression: Compression) -> Iterator[bytes]:
    """The parts of a file that `compressed` wrote.

    Raises `ValueError` if it is damaged or compressed in another way.
    """
    if compression == "none":
        return iter(lambda: data.read(READ_BYTES), b"")
    if compression == "gzip":
        return _inflated(data, GZIP_WINDOW)
    if compression == "zstd":
        return _unzstd(data, READ_BYTES)
    return _hadoop_blocks(ForwardReader(data).read, compression)


def small_parts(data: Readable, compression: FileCompression) -> Iterator[bytes]:
    """The decompressed parts of a file from any program, in little memory. Raises `ValueError` like `decompressed`.

    Zeros may follow each gzip member, as tapes and block devices leave them. Both framings of snappy are read.
    """
    if compression == "gzip":
        return _inflated(data, GZIP_WINDOW, _SMALL_PART, padding=True)
    if compression == "bzip2":
        return _unbzip2(data, _SMALL_PART)
    if compression == "zstd":
        return _unzstd(data, _SMALL_PART)
    if compression == "snappy":
        return _snappy_file(ForwardReader(data))
    return iter(lambda: data.read(_SMALL_READ), b"")


def unpacker(codec: str) -> Unpack:
    """The inverse of `packer`, and of Hadoop's bzip2."""
    if codec == "bzip2":
        return lambda data, limit: joined_within(_unbzip2(BytesIO(data), READ_BYTES), limit)
    if codec in RAW_CODECS:
        return lambda data, limit: joined_within(_hadoop_blocks(BytesIO(data).read, codec), limit)
    window = GZIP_WINDOW if codec == "gzip" else ZLIB_WINDOW
    return lambda data, limit: joined_within(_inflated(BytesIO(data), window, READ_BYTES), limit)


def joined_within(parts: Iterator[bytes], limit: int) -> bytes:
    """All parts. Raises `ValueError` as soon as they have more than `limit` bytes; the rest is not decompressed."""
    found, size = [], 0
    for part in parts:
        size += len(part)
        if size > limit:
            raise too_large(limit)
        found.append(part)
    return b"".join(found)


def too_large(limit: int) -> ValueError:
    """The error of a block that becomes more than `limit` bytes."""
    return ValueError(f"a block becomes more than {limit} bytes; at most that many are read")


def _inflated(data: Readable, window: int, part_bytes: int = 0, *, padding: bool = False) -> Iterator[bytes]:
    """One or more members, in parts of at most `part_bytes` (0: no limit). `padding`: zeros may follow each."""
    from isal import igzip_lib, isal_zlib

    read_bytes = _SMALL_READ if part_bytes else READ_BYTES
    member, packed, inside, part = isal_zlib.decompressobj(window), b"", False, b""
    # A part of the full size may have left more inside ISA-L, even if it has taken all of the input.
    while packed or (inside and part_bytes and len(part) == part_bytes) or (packed := data.read(read_bytes)):
        if padding and not inside and not (packed := packed.lstrip(b"\0")):
            continue
        try:
            part = member.decompress(packed, part_bytes)
        except igzip_lib.IsalError as error:  # type: ignore[misc]  # its stub names an instance
            raise _failed(error) from error
        inside, packed = not member.eof, member.unconsumed_tail
        if part:
            yield part
        if member.eof:
            packed, member = member.unused_data, isal_zlib.decompressobj(window)
    if inside:
        raise ValueError(ENDS_TOO_EARLY)


def _unbzip2(data: Readable, part_bytes: int = -1) -> Iterator[bytes]:
    """One or more streams, as tools that use several cores write them, in parts of at most `part_bytes`."""
    from bz2 import BZ2Decompressor

    stream, packed, inside = BZ2Decompressor(), b"", False
    while packed or (inside and not stream.needs_input) or (packed := data.read(_SMALL_READ)):
        try:
            part = stream.decompress(packed, part_bytes)
        except (OSError, ValueError) as error:
            raise _failed(error) from error
        inside, packed = not stream.eof, b""
        if part:
            yield part
        if stream.eof:
            packed, stream = stream.unused_data, BZ2Decompressor()
    if inside:
        raise ValueError(ENDS_TOO_EARLY)


def _unzstd(data: Readable, part_bytes: int) -> Iterator[bytes]:
    """One or more frames."""
    import pyarrow as pa

    stream = pa.CompressedInputStream(pa.PythonFile(LeftOpen(data), mode="r"), "zstd")
    while True:
        try:
            part = stream.read(part_bytes)
        except OSError as error:
            if error.errno is not None:
                raise
            raise _failed(error) from error
        if not part:
            return
        yield part


def _failed(error: Exception) -> ValueError:
    return ValueError(f"it cannot be decompressed: {error}")


# --- snappy and lz4 ------------------------------------------------------------------------------------------------


def _hadoop_blocks(read: Read, compression: str) -> Iterator[bytes]:
    """Hadoop's framing: a block has its size, and one or more chunks that each have their compressed size."""
    unpack = unsnappy if compression == "snappy" else _unlz4
    while head := read(4):
        missing = int.from_bytes(_whole(head, 4), "big")
        while missing > 0:
            size = int.from_bytes(_whole(read(4), 4), "big")
            if size > MAX_BLOCK:
                raise ValueError("a compressed chunk is too large")
            part = unpack(_whole(read(size), size))
            missing -= len(part)
            if missing < 0:
                raise ValueError("a compressed block holds more than its stated size")
            yield part


def _snappy_file(data: ForwardReader) -> Iterator[bytes]:
    is_framed = data.peek(len(SNAPPY_MAGIC)) == SNAPPY_MAGIC
    return _snappy_frames(data.read) if is_framed else _hadoop_blocks(data.read, "snappy")


def _snappy_frames(read: Read) -> Iterator[bytes]:
    """Snappy's official framing: chunks of up to 64 KiB with checksums."""
    while head := read(4):
        size = int.from_bytes(_whole(head, 4)[1:], "little")
        kind, body = head[0], _whole(read(size), size)
        if kind in {_COMPRESSED_FRAME, _PLAIN_FRAME}:
            part = _unsnappy(body[4:]) if kind == _COMPRESSED_FRAME else body[4:]
            if len(part) > _MAX_FRAME or _masked(crc32c(part)) != int.from_bytes(body[:4], "little"):
                raise ValueError("a checksum is wrong")
            if part:
                yield part
        elif kind != _PADDING_FRAME and head + body != SNAPPY_MAGIC:
            # No program writes other skippable chunks, and one flipped bit would turn a good chunk into one.
            raise ValueError(f"a chunk has the unknown type {kind:#x}")


def _whole(part: bytes, size: int) -> bytes:
    if len(part) < size:
        raise ValueError(ENDS_TOO_EARLY)
    return part


def unsnappy(chunk: bytes, limit: int = MAX_BLOCK) -> bytes:
    """The content of snappy data without any framing. Raises `ValueError` for anything else, and if it is empty."""
    return _not_empty(_unsnappy(chunk, limit))


def _unsnappy(chunk: bytes, limit: int = MAX_BLOCK) -> bytes:
    import pyarrow as pa

    size = 0
    for index, byte in enumerate(chunk[:5]):
        size |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            break
    if size > MAX_EXPANSION * (len(chunk) + 1):
        raise ValueError("the stated size of a compressed chunk is too large")
    if size > limit:
        raise too_large(limit)
    return _decoded(lambda: pa.Codec("snappy").decompress(chunk, size, asbytes=True))


def _unlz4(chunk: bytes) -> bytes:
    """Decompress a chunk. Its decompressed size is not stored, so a frame is put around it for Arrow's decoder."""
    import pyarrow as pa

    frame = b"".join([_LZ4_FRAME, struct.pack("<I", len(chunk)), chunk, bytes(4)])
    return _not_empty(_decoded(lambda: pa.CompressedInputStream(pa.BufferReader(frame), "lz4").read()))


def _decoded(decode: Callable[[], Any]) -> bytes:
    try:
        return bytes(decode())
    except OSError as error:
        raise _failed(error) from error


def _not_empty(part: bytes) -> bytes:
    if not part:
        raise ValueError("a compressed block holds less than its stated size")
    return part


# --- checksum ------------------------------------------------------------------------------------------------------

_CRC_MASK = 0xA282EAD8
_CRC_POLYNOMIAL = 0x82F63B78
_LANE_BYTES = 64
"""Bytes that one lane of a checksum covers."""


def crc32c(data: bytes) -> int:
    """Castagnoli's checksum in numpy: many lanes at once, combined at the end."""
    import numpy as np

    numbers = np.frombuffer(data, np.uint8)
    if len(numbers) < 4:
        register = 0xFFFFFFFF
        for number in numbers.tolist():
            register = int(_crc_table()[(register ^ number) & 0xFF]) ^ (register >> 8)
        return register ^ 0xFFFFFFFF
    lanes = np.zeros(-(-len(numbers) // _LANE_BYTES) * _LANE_BYTES, np.uint8)
    lanes[-len(numbers) :] = numbers
    # The register's initial value is the same as inverting the first bytes; zeros before them do not count.
    begin = len(lanes) - len(numbers)
    lanes[begin : begin + 4] ^= 0xFF
    sums, table = np.zeros(len(lanes) // _LANE_BYTES, np.uint32), _crc_table()
    for column in np.ascontiguousarray(lanes.reshape(-1, _LANE_BYTES).T):
        sums = table.take(sums.astype(np.uint8) ^ column) ^ (sums >> 8)
    whole, (first, second, third, fourth) = 0, _lane_shift()
    for lane in sums.tolist():
        whole = lane ^ first[whole & 0xFF] ^ second[whole >> 8 & 0xFF] ^ third[whole >> 16 & 0xFF] ^ fourth[whole >> 24]
    return whole ^ 0xFFFFFFFF


def _masked(checksum: int) -> int:
    return ((checksum >> 15 | checksum << 17) + _CRC_MASK) & 0xFFFFFFFF


@cache
def _crc_table() -> Any:
    import numpy as np

    numbers = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        numbers = np.where(numbers & 1, (numbers >> 1) ^ np.uint32(_CRC_POLYNOMIAL), numbers >> 1)
    return numbers.astype(np.uint32)


@cache
def _lane_shift() -> list[list[int]]:
    """A table: what each byte of the checksum contributes after the zeros of a whole lane were added to it."""
    import numpy as np

    numbers = np.arange(256, dtype=np.uint32)[None, :] << (8 * np.arange(4, dtype=np.uint32))[:, None]
    for _ in range(_LANE_BYTES):
        numbers = _crc_table()[numbers & 0xFF] ^ (numbers >> 8)
    shifted: list[list[int]] = numbers.tolist()
    return shifted
