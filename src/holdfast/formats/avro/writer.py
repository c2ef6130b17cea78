"""Writes object container files: a header with the schema, then blocks of rows with a mark behind each."""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa

from holdfast.flow.format import FormatWriter, RawWriter
from holdfast.formats._arrays import content, lengths
from holdfast.formats._messages import portions
from holdfast.formats.avro.encoding import encoded, number
from holdfast.formats.avro.schemas import avro_schema

MAGIC = b"Obj\x01"
MARK_BYTES = 16
CHECKSUM_BYTES = 4
CODECS = {"none": "null", "gzip": "deflate", "zstd": "zstandard", "snappy": "snappy"}
RAW_DEFLATE = -15


class AvroFile(FormatWriter):
    """Collects encoded rows until they are worth a block."""

    def __init__(self, raw: RawWriter, schema: Any, compression: str, block_bytes: int) -> None:
        self._raw = raw
        self._codec = CODECS[compression]
        self._schema = json.dumps(avro_schema(schema), separators=(",", ":")).encode()
        self._pack = _packer(self._codec)
        self._block_bytes = block_bytes
        self._waiting: list[Any] = []
        self._bytes = 0
        self._mark = b""

    @property
    def buffered(self) -> int:
        return self._bytes

    def write(self, rows: Any) -> None:
        for part in portions(rows):
            self._add(encoded(part.columns, part.num_rows))

    def close(self) -> None:
        if self._waiting:
            self._write_block()
        self._begin(b"")

    def _add(self, rows: Any) -> None:
        ends, start, before = np.cumsum(lengths(rows), dtype=np.int64), 0, 0
        while start < len(rows):
            last = int(np.searchsorted(ends, before + self._block_bytes - self._bytes))
            count = min(last + 1, len(rows)) - start
            self._waiting.append(rows.slice(start, count))
            start += count
            self._bytes += int(ends[start - 1]) - before
            before = int(ends[start - 1])
            if self._bytes >= self._block_bytes:
                self._write_block()

    def _write_block(self) -> None:
        rows = pa.concat_arrays(self._waiting)
        self._waiting, self._bytes = [], 0
        self._begin(content(rows.slice(0, 1)))
        packed = self._pack(content(rows))
        self._raw.write(number(len(rows)) + number(len(packed)) + packed + self._mark)

    def _begin(self, first_row: Any) -> None:
        """The mark is made from the schema and the first row: the same file has the same."""
        if not self._mark:
            digest = hashlib.blake2b(self._schema, digest_size=MARK_BYTES, person=b"Avro")
            digest.update(first_row)
            self._mark = digest.digest()
            told = {b"avro.schema": self._schema, b"avro.codec": self._codec.encode()}
            pairs = b"".join(_text(name) + _text(value) for name, value in told.items())
            self._raw.write(MAGIC + number(len(told)) + pairs + number(0) + self._mark)


def _packer(codec: str) -> Callable[[Any], bytes]:
    if codec == "null":
        return bytes
    if codec == "deflate":
        return _deflated
    if codec == "zstandard":
        zstd = pa.Codec("zstd", 1)
        return lambda data: bytes(zstd.compress(data, asbytes=True))
    snappy = pa.Codec("snappy")
    return lambda data: bytes(snappy.compress(data, asbytes=True)) + zlib.crc32(data).to_bytes(CHECKSUM_BYTES, "big")


def _deflated(data: Any) -> bytes:
    from isal import isal_zlib

    deflate = isal_zlib.compressobj(isal_zlib.ISAL_DEFAULT_COMPRESSION, isal_zlib.DEFLATED, RAW_DEFLATE)
    return bytes(deflate.compress(data) + deflate.flush())


def _text(data: bytes) -> bytes:
    return number(len(data)) + data
