"""Text: unchanged messages, each followed by a delimiter.

A message that contains the delimiter would be read back as two, and a null message as an empty one. Settings decide how
they are handled; by default they become dead letters.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, BinaryIO, Literal, Self

from pydantic import Field, field_validator, model_validator

from holdfast.errors import BatchError
from holdfast.flow.format import Format, FormatWriter, RawWriter
from holdfast.flow.kafka_columns import VALUE
from holdfast.formats._compression import SUFFIXES, CompressedOptions, Compression, Stream, compressed
from holdfast.formats._decompression import decompressed
from holdfast.formats._framing import ESCAPE, Escapes, chained, holds, prefixed, split, without_prefix
from holdfast.formats._messages import (
    IS_NULL,
    LETTER,
    NOT_TAKEN_OUT,
    SKIP,
    TOMBSTONES,
    limit,
    portions,
    value_of,
    wants_messages,
)
from holdfast.registry import Plugin

NAME = "text"
HEX = "hex:"
HOLDS_DELIMITER = "the message contains the delimiter"
_LETTERS = {b"\n": b"n", b"\r": b"r", b"\t": b"t"}

NULL_MARK = ESCAPE + b"N"
"""A null message, where backslashes are escaped: no other message becomes this."""

Containing = Literal["dead_letter", "escape", "length_prefix", "skip"]
TextTombstones = Literal["dead_letter", "empty", "escape", "skip"]


class TextConfig(CompressedOptions):
    """How messages become text."""

    delimiter: str = Field(
        "\n", description="Delimiter after each message: text, or `hex:` and hexadecimal digits for any other bytes."
    )
    containing: Containing = Field(
        "dead_letter",
        description="What to do with a message that contains the delimiter: make it a dead letter; or escape all "
        "messages, so that a backslash becomes two, and the delimiter's first byte \\n, \\r, \\t or \\d; or write the "
        "length of each message before it in 4 bytes (big endian, -1 for null), without delimiters; or skip it: leave "
        "it out and count it in the manifest.",
    )
    tombstones: TextTombstones = Field(
        "dead_letter",
        description="What to do with a null message: make it a dead letter, or write it as an empty message, or with "
        "`containing: escape` as \\N (escape), or leave it out and count it in the manifest (skip). With "
        "length_prefix it stays null.",
    )

    @field_validator("delimiter")
    @classmethod
    def _is_not_empty(cls, text: str) -> str:
        if not delimiter_bytes(text):
            raise ValueError("a delimiter must have at least one byte")
        return text

    @model_validator(mode="after")
    def _can_be_escaped(self) -> Self:
        first = delimiter_bytes(self.delimiter)[:1]
        if self.containing == "escape" and (first.isalnum() or first == ESCAPE):
            raise ValueError("a delimiter that is escaped must not begin with a letter, a digit or a backslash")
        if self.tombstones == "escape" and self.containing != "escape":
            raise ValueError("tombstones: escape needs containing: escape, or a message \\N would be read back as null")
        return self


class Text(Format):
    """Writes the column `value`, text or bytes, and no other."""

    keeps = frozenset({"value"})

    def __init__(
        self,
        delimiter: bytes = b"\n",
        containing: Containing = "dead_letter",
        tombstones: TextTombstones = "dead_letter",
        compression: Compression = "none",
        level: int | None = None,
    ) -> None:
        self.extension = f"txt{SUFFIXES[compression]}"
        self._delimiter = delimiter
        self._containing = containing
        self._tombstones = tombstones
        skipped = {HOLDS_DELIMITER: containing == "skip", IS_NULL: tombstones == "skip"}
        self.skips = frozenset(reason for reason, is_skipped in skipped.items() if is_skipped)
        self._compression: Compression = compression
        self._level = level
        self._code = Escapes(delimiter[:1], _LETTERS.get(delimiter[:1], b"d"))

    def columns(self, fields: Any) -> Mapping[str, Any]:
        wants_messages(fields, NAME, self.keeps)
        return {VALUE: None}

    def open(self, raw: RawWriter, schema: Any) -> FormatWriter:  # noqa: ARG002 - text has none
        return TextFile(self, compressed(raw, self._compression, self._level))

    def faults(self, rows: Any) -> Any | None:
        import pyarrow as pa
        import pyarrow.compute as pc

        if self._containing == "length_prefix":
            return None
        values, reasons = value_of(rows, NAME), None
        if self._containing in {"dead_letter", "skip"} and (held := holds(values, self._delimiter)) is not None:
            reasons = pc.if_else(held, HOLDS_DELIMITER, pa.scalar(None, pa.string()))
        if self._tombstones in {"dead_letter", "skip"} and values.null_count:
            others = pa.nulls(len(values), pa.string()) if reasons is None else reasons
            reasons = pc.if_else(values.is_null(), IS_NULL, others)
        return reasons

    def limits(self) -> list[str]:
        delimiter = {**LETTER, "escape": "are escaped", "length_prefix": "keep their bytes", **SKIP}
        tombstones = {**LETTER, "empty": "are written as empty ones", "escape": "are written as \\N", **SKIP}
        if self._containing == "length_prefix":
            return []
        return [
            *limit("messages that contain the delimiter", "containing", self._containing, delimiter),
            *limit(TOMBSTONES, "tombstones", self._tombstones, tombstones),
        ]

    def encoded(self, rows: Any) -> Iterator[Any]:
        """Buffers with the messages of a record batch as the file has them."""
        if self.faults(rows) is not None:
            raise BatchError(NOT_TAKEN_OUT.format(NAME))
        for part in portions(rows.select([VALUE])):
            values = value_of(part, NAME)
            if self._containing == "length_prefix":
                yield prefixed(values)
                continue
            values = self._code.escaped(values) if self._containing == "escape" else values
            null = NULL_MARK if self._tombstones == "escape" else b""
            yield chained(values.fill_null(null) if values.null_count else values, self._delimiter)
            yield self._delimiter

    def read(self, data: BinaryIO) -> Iterator[Any]:
        import pyarrow as pa

        parts = decompressed(data, self._compression)
        is_prefixed = self._containing == "length_prefix"
        for values in without_prefix(parts) if is_prefixed else split(parts, self._delimiter):
            yield pa.record_batch([self._unescaped(values)], names=[VALUE])

    def _unescaped(self, values: Any) -> Any:
        import pyarrow as pa
        import pyarrow.compute as pc

        if self._containing != "escape":
            return values
        if self._tombstones != "escape":
            return self._code.unescaped(values)
        is_null = pc.equal(values, NULL_MARK)
        plain = self._code.unescaped(pc.if_else(is_null, b"", values))
        return pc.if_else(is_null, pa.scalar(None, pa.binary()), plain)


class TextFile(FormatWriter):
    """Joins messages and delimiters in one buffer; no Python code runs per message."""

    def __init__(self, text: Text, stream: Stream) -> None:
        self._text = text
        self._stream = stream

    @property
    def buffered(self) -> int:
        return self._stream.waiting

    def write(self, rows: Any) -> None:
        for buffer in self._text.encoded(rows):
            self._stream.write(buffer)

    def close(self) -> None:
        self._stream.close()


def delimiter_bytes(text: str) -> bytes:
    """The bytes of a delimiter in the settings. Raises `ValueError` if `hex:` has no valid digits."""
    return bytes.fromhex(text.removeprefix(HEX)) if text.startswith(HEX) else text.encode()


def _built(config: TextConfig) -> Text:
    return Text(
        delimiter_bytes(config.delimiter),
        containing=config.containing,
        tombstones=config.tombstones,
        compression=config.compression,
        level=config.level,
    )


PLUGIN = Plugin(NAME, TextConfig, _built, "Unchanged messages, with a delimiter behind each.")
