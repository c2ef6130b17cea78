"""Hadoop's SequenceFile: the value is the message, the key has its offset.

Keys: `legacy` is the offset (`LongWritable`: 8 bytes, big endian); `messagepack` is a MessagePack map
`{1: offset, 2: Kafka's key}` in a `BytesWritable`, without 2 if the message has no key. Values are `BytesWritable`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, BinaryIO

from pydantic import Field

from holdfast.config import ByteSize, Options
from holdfast.flow.format import Format, FormatWriter, RawWriter
from holdfast.flow.kafka_columns import KEY, OFFSET, VALUE
from holdfast.formats._messages import IS_NULL, LETTER, SKIP, TOMBSTONES, Tombstones, limit, null_faults, wants_messages
from holdfast.formats.sequencefile.layout import BLOCK_BYTES, Codec, Compression, Header, KeyKind
from holdfast.registry import Plugin

NAME = "sequencefile"


class SequenceFileConfig(Options):
    """How SequenceFiles are written."""

    key: KeyKind = Field(
        "legacy", description="Content of the key: the offset alone, or a MessagePack map {1: offset, 2: Kafka's key}."
    )
    compression: Compression = Field(
        "none",
        description="Compression of each value by itself (record), or of blocks of records (block). "
        "block is smaller and many times as fast.",
    )
    codec: Codec = Field(
        "zlib", description="Codec of compressed files. zlib is Hadoop's DefaultCodec, which every reader supports."
    )
    level: Annotated[int, Field(ge=1, le=9)] | None = Field(
        None,
        description="Level of zlib and gzip; a fast level by default. From level 4 on, files are smaller and much "
        "slower to write.",
    )
    block_bytes: Annotated[ByteSize, Field(gt=0)] = Field(
        BLOCK_BYTES, validate_default=True, description="Size of a compressed block: the bytes of its keys and values."
    )
    tombstones: Tombstones = Field(
        "dead_letter",
        description="What to do with a null message: make it a dead letter, or write an empty value, or leave it out "
        "and count it in the manifest (skip).",
    )


class SequenceFile(Format):
    """Writes `offset`, `value`, and with MessagePack keys also `key`."""

    extension = "seq"

    def __init__(
        self,
        key: KeyKind = "legacy",
        compression: Compression = "none",
        codec: Codec = "zlib",
        level: int | None = None,
        block_bytes: int = BLOCK_BYTES,
        tombstones: Tombstones = "dead_letter",
    ) -> None:
        self.keeps = frozenset({OFFSET, VALUE} if key == "legacy" else {OFFSET, KEY, VALUE})
        self._header = Header(key, compression, codec)
        self._level = level
        self._block_bytes = block_bytes
        self._tombstones = tombstones
        self.skips = frozenset({IS_NULL}) if tombstones == "skip" else frozenset()

    def columns(self, fields: Any) -> Mapping[str, Any]:
        wants_messages(fields, NAME, self.keeps)
        return dict.fromkeys(sorted(self.keeps))

    def open(self, raw: RawWriter, schema: Any) -> FormatWriter:  # noqa: ARG002 - always the same columns
        from holdfast.formats.sequencefile.writer import writer

        return writer(raw, self._header, self._level, self._block_bytes, nulls=self._tombstones == "empty")

    def faults(self, rows: Any) -> Any | None:
        return None if self._tombstones == "empty" else null_faults(rows, NAME)

    def limits(self) -> list[str]:
        choices = {**LETTER, "empty": "are written as empty ones", **SKIP}
        return limit(TOMBSTONES, "tombstones", self._tombstones, choices)

    def read(self, data: BinaryIO) -> Iterator[Any]:
        from holdfast.formats.sequencefile.reader import read

        return read(data)


def _built(config: SequenceFileConfig) -> SequenceFile:
    return SequenceFile(
        key=config.key,
        compression=config.compression,
        codec=config.codec,
        level=config.level,
        block_bytes=config.block_bytes,
        tombstones=config.tombstones,
    )


PLUGIN = Plugin(NAME, SequenceFileConfig, _built, "Hadoop's SequenceFile: offset as key, message as value.")
