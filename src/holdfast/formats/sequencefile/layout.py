"""The layout of a SequenceFile: header, numbers and marks. Version 6, which Hadoop writes."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

MAGIC = b"SEQ\x06"
SYNC_BYTES = 16
SYNC_INTERVAL = 100 << 10
"""Bytes between two marks, as in Hadoop. Readers that begin in the middle of a file search for a mark."""
BLOCK_BYTES = 1_000_000
"""The default of Hadoop's `io.seqfile.compress.blocksize`."""
ESCAPE = struct.pack(">i", -1)
"""Written instead of a record's length: a sync marker follows."""

KeyKind = Literal["legacy", "messagepack"]
Compression = Literal["none", "record", "block"]
Codec = Literal["zlib", "gzip", "snappy", "lz4"]
ReadCodec = Literal[Codec, "bzip2"]
"""Hadoop's bzip2 is read, but not written."""

BYTES_CLASS = "org.apache.hadoop.io.BytesWritable"
LONG_CLASS = "org.apache.hadoop.io.LongWritable"
KEY_CLASSES: dict[KeyKind, str] = {"legacy": LONG_CLASS, "messagepack": BYTES_CLASS}
CODEC_CLASSES: dict[Codec, str] = {
    "zlib": "org.apache.hadoop.io.compress.DefaultCodec",
    "gzip": "org.apache.hadoop.io.compress.GzipCodec",
    "snappy": "org.apache.hadoop.io.compress.SnappyCodec",
    "lz4": "org.apache.hadoop.io.compress.Lz4Codec",
}
READ_CODECS: dict[str, ReadCodec] = {
    **{name: codec for codec, name in CODEC_CLASSES.items()},
    "org.apache.hadoop.io.compress.DeflateCodec": "zlib",
    "org.apache.hadoop.io.compress.BZip2Codec": "bzip2",
}
"""Codecs by Java class; `DeflateCodec` is another name of `DefaultCodec`."""


@dataclass(frozen=True)
class Header:
    """The header of a file that is written."""

    key: KeyKind
    compression: Compression
    codec: Codec

    def encode(self, sync: bytes) -> bytes:
        parts = [MAGIC, _text(KEY_CLASSES[self.key]), _text(BYTES_CLASS)]
        parts += [bytes([self.compression != "none", self.compression == "block"])]
        if self.compression != "none":
            parts.append(_text(CODEC_CLASSES[self.codec]))
        return b"".join([*parts, struct.pack(">i", 0), sync])


def decode_header(take: Callable[[int], bytes]) -> tuple[KeyKind, AnyHeader]:
    """The kind of keys, and the header. Raises `ValueError` for classes that this package does not write."""
    header = decode_any_header(take)
    keys = {name: kind for kind, name in KEY_CLASSES.items()}
    if header.key_class not in keys or header.value_class != BYTES_CLASS:
        raise ValueError(f"a SequenceFile of {header.key_class} and {header.value_class} is not supported")
    return keys[header.key_class], header


class AnyHeader(NamedTuple):
    """The header of a file with records of any classes."""

    key_class: str
    value_class: str
    compression: Compression
    codec: ReadCodec
    sync: bytes


def decode_any_header(take: Callable[[int], bytes]) -> AnyHeader:
    """The header of any file of version 6. Raises `ValueError` for other files and for codecs not supported."""
    if take(4) != MAGIC:
        raise ValueError("it is not a SequenceFile of version 6")
    key_class, value_class = _taken_text(take), _taken_text(take)
    is_compressed, in_blocks = take(2)
    codec: ReadCodec = "zlib"
    if is_compressed:
        name = _taken_text(take)
        if name not in READ_CODECS:
            raise ValueError(f"the codec {name} is not supported")
        codec = READ_CODECS[name]
    for _ in range(2 * struct.unpack(">i", take(4))[0]):
        _taken_text(take)
    compression: Compression = "block" if in_blocks else "record" if is_compressed else "none"
    return AnyHeader(key_class, value_class, compression, codec, take(SYNC_BYTES))


def mark_of(first_record: Any) -> bytes:
    """The sync marker of a file, a digest of its first record: the same rows give the same marker."""
    return hashlib.blake2b(first_record, digest_size=SYNC_BYTES, person=b"SequenceFile").digest()


def vint(number: int) -> bytes:
    """A length in the encoding of Hadoop's `WritableUtils.writeVInt`."""
    if number <= 127:
        return bytes([number])
    digits = number.to_bytes((number.bit_length() + 7) // 8, "big")
    return bytes([0x90 - len(digits)]) + digits


def vints(numbers: Any) -> bytes:
    """Many lengths, one after the other."""
    import numpy as np

    numbers = np.asarray(numbers, np.int32)
    if not len(numbers) or numbers.max() <= 127:
        return bytes(numbers.astype(np.uint8))
    table = np.zeros((len(numbers), 5), np.uint8)
    digits = (numbers > 127).astype(np.uint8) + (numbers > 0xFF) + (numbers > 0xFFFF) + (numbers > 0xFFFFFF)
    table[:, 0] = np.where(digits, 0x90 - digits, numbers)
    table[:, 1:] = numbers.astype(">i4").view(np.uint8).reshape(-1, 4)
    wanted = np.arange(5) > 4 - digits[:, None]
    wanted[:, 0] = True
    return bytes(table[wanted])


def taken_vint(take: Callable[[int], bytes]) -> int:
    """The inverse of `vint`."""
    first = take(1)[0]
    if first <= 127:
        return first
    size = 0x90 - first
    if not 1 <= size <= 4:
        raise ValueError("a length is negative or too large")
    return int.from_bytes(take(size), "big")


def taken_vints(data: bytes, count: int) -> Any:
    """The inverse of `vints`. Raises `ValueError` unless the data is that many lengths."""
    import numpy as np

    if len(data) == count:
        numbers = np.frombuffer(data, np.uint8)
        if not count or numbers.max() <= 127:
            return numbers.astype(np.int64)
    index, found = 0, []
    while index < len(data):
        first = data[index]
        size = 0 if first <= 127 else 0x90 - first
        if not 0 <= size <= 4 or index + size >= len(data):
            raise ValueError("a length is negative or too large")
        found.append(int.from_bytes(data[index + 1 : index + 1 + size], "big") if size else first)
        index += 1 + size
    if len(found) != count:
        raise ValueError(f"a block of {count} records has {len(found)} lengths")
    return np.array(found, np.int64)


def _text(words: str) -> bytes:
    data = words.encode()
    return vint(len(data)) + data


def _taken_text(take: Callable[[int], bytes]) -> str:
    return take(taken_vint(take)).decode()
