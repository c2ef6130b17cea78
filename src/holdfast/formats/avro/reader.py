"""Reads object container files that `AvroFile` wrote."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator
from io import BytesIO
from typing import Any, BinaryIO

import pyarrow as pa

from holdfast.errors import UsageError
from holdfast.formats._decompression import CUT_OFF, decompressed, exactly, unsnappy
from holdfast.formats.avro.schemas import arrow_schema, without_times
from holdfast.formats.avro.writer import CHECKSUM_BYTES, MAGIC, MARK_BYTES, RAW_DEFLATE


def read(data: BinaryIO) -> Iterator[Any]:
    """Record batches, one for each block. Raises `ValueError` for what no `AvroFile` wrote."""
    try:
        import fastavro
    except ImportError as error:
        raise UsageError("reading Avro files needs fastavro: pip install 'holdfast[archive]'") from error
    told, mark = _header(data)
    written: Any = json.loads(told["avro.schema"])
    # Times stay numbers: Python has no dates beyond the year 9999, and files of earlier versions may have them.
    parsed: Any = fastavro.parse_schema(without_times(written))
    schema, codec = arrow_schema(written), told["avro.codec"].decode()
    while (count := _number(data, first=True)) is not None:
        block = unpacked_block(codec, exactly(data, _number(data) or 0))
        if exactly(data, MARK_BYTES) != mark:
            raise ValueError("a block does not end with the file's mark")
        rows = BytesIO(block)
        yield pa.RecordBatch.from_pylist([fastavro.schemaless_reader(rows, parsed, None) for _ in range(count)], schema)


def _header(data: BinaryIO) -> tuple[dict[str, bytes], bytes]:
    if data.read(len(MAGIC)) != MAGIC:
        raise ValueError("it is no Avro file")
    told: dict[str, bytes] = {}
    while count := _number(data):
        for _ in range(count):
            name = exactly(data, _number(data) or 0).decode()
            told[name] = exactly(data, _number(data) or 0)
    return told, exactly(data, MARK_BYTES)


def unpacked_block(codec: str, block: bytes) -> bytes:
    """What a block holds. Raises `ValueError` if it is damaged, or its codec is not known here."""
    if codec == "null":
        return block
    if codec == "zstandard":
        return b"".join(decompressed(BytesIO(block), "zstd"))
    if codec == "deflate":
        return _inflated(block)
    if codec != "snappy":
        raise ValueError(f"the codec {codec} is not known here")
    data = unsnappy(block[:-CHECKSUM_BYTES])
    if zlib.crc32(data) != int.from_bytes(block[-CHECKSUM_BYTES:], "big"):
        raise ValueError("a block's checksum is wrong")
    return data


def _inflated(block: bytes) -> bytes:
    try:
        return zlib.decompress(block, RAW_DEFLATE)
    except zlib.error as error:
        raise ValueError(f"a block cannot be decompressed: {error}") from error


def _number(data: BinaryIO, *, first: bool = False) -> int | None:
    """Undoes `number`; None at the end of the file, if it may end there."""
    value, shift = 0, 0
    while True:
        byte = data.read(1)
        if not byte and first and not shift:
            return None
        if not byte or shift > 63:
            raise ValueError(CUT_OFF)
        value |= (byte[0] & 0x7F) << shift
        if byte[0] < 0x80:
            return (value >> 1) ^ -(value & 1)
        shift += 7
