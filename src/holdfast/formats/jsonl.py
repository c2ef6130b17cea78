"""JSON lines: one record per line, plain or compressed.

A message that is JSON is written unchanged; any other message is a dead letter unless `not_json` says otherwise.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, BinaryIO, Literal

from pydantic import Field

from holdfast.config import AddedLater
from holdfast.errors import BatchError
from holdfast.flow.format import Format, FormatWriter, RawWriter
from holdfast.flow.kafka_columns import OFFSET, VALUE
from holdfast.formats._compression import SUFFIXES, CompressedOptions, Compression, Stream, compressed
from holdfast.formats._decompression import decompressed
from holdfast.formats._faults import YEARS, either, not_utf8, reasons_at, text_faults
from holdfast.formats._framing import chained, split
from holdfast.formats._messages import LETTER, NOT_TAKEN_OUT, SKIP, limit, portions
from holdfast.registry import Plugin

NAME = "jsonl"
LINE_BREAK, RETURN = b"\n", b"\r"
IS_NOT_JSON = "the message is not JSON"
IS_NOT_TEXT = "the message is neither JSON nor UTF-8 text"

NotJson = Literal["dead_letter", "string", "base64", "skip"]


class JsonlConfig(CompressedOptions):
    """How lines are written."""

    not_json: Annotated[NotJson, AddedLater] = Field(
        "dead_letter",
        description="What to do with a message that is not JSON: make it a dead letter; or write its text as a JSON "
        "string (a dead letter if it is not UTF-8); or write its bytes in base64 as a JSON string; or skip it: leave "
        "it out and count it in the manifest.",
    )


class Jsonl(Format):
    """Writes the column `value` if it has JSON: bytes, alone or beside the offset of a message; or text, alone.

    Other rows become JSON objects of their columns. `read` returns the lines in the column `value`: line breaks between
    the tokens of a message have become spaces, and a null message has become the JSON `null`.
    """

    keeps = frozenset({VALUE})

    def __init__(
        self, compression: Compression = "none", level: int | None = None, not_json: NotJson = "dead_letter"
    ) -> None:
        self.extension = f"jsonl{SUFFIXES[compression]}"
        self._compression: Compression = compression
        self._level = level
        self._not_json: NotJson = not_json
        self.skips = frozenset({IS_NOT_JSON}) if not_json == "skip" else frozenset()

    def columns(self, fields: Any) -> Mapping[str, Any]:
        from pyspark.sql.types import BinaryType, StringType

        kind = fields[VALUE].dataType if VALUE in fields.names else None
        has_json = _has_json(fields.names, bytes_=isinstance(kind, BinaryType), text=isinstance(kind, StringType))
        return {VALUE: None} if has_json else dict.fromkeys(fields.names)

    def open(self, raw: RawWriter, schema: Any) -> FormatWriter:
        stream = compressed(raw, self._compression, self._level)
        return JsonlFile(stream, self._not_json if _is_json(schema) else None)

    def faults(self, rows: Any) -> Any | None:
        import pyarrow as pa

        from holdfast.formats._arrays import binary
        from holdfast.formats._json import not_json

        if not _is_json(rows.schema):
            return either(YEARS.faults(rows), text_faults(rows))
        values = binary(rows.column(VALUE))
        if self._not_json in {"dead_letter", "skip"}:
            return reasons_at(not_json(values), len(values), IS_NOT_JSON)
        if self._not_json == "string":
            return reasons_at(not_utf8(values.view(pa.string())), len(values), IS_NOT_TEXT)
        return None

    def limits(self) -> list[str]:
        choices = {**LETTER, "string": "become JSON strings", "base64": "become JSON strings of base64", **SKIP}
        return limit("messages that are not JSON", "not_json", self._not_json, choices)

    def read(self, data: BinaryIO) -> Iterator[Any]:
        import pyarrow as pa

        for lines in split(decompressed(data, self._compression), LINE_BREAK):
            yield pa.record_batch([lines], names=[VALUE])


class JsonlFile(FormatWriter):
    """Joins the lines of a record batch in Arrow; no Python code runs for rows that are JSON already."""

    def __init__(self, stream: Stream, not_json: NotJson | None) -> None:
        """`not_json` as in the settings; None if rows are not messages, but columns."""
        self._stream = stream
        self._not_json = not_json

    @property
    def buffered(self) -> int:
        return self._stream.waiting

    def write(self, rows: Any) -> None:
        from holdfast.formats._arrays import binary
        from holdfast.formats._json_objects import json_objects

        for part in portions(rows):
            lines = binary(json_objects(part)) if self._not_json is None else self._lines(binary(part.column(VALUE)))
            self._stream.write(chained(lines, LINE_BREAK))
            self._stream.write(LINE_BREAK)

    def close(self) -> None:
        self._stream.close()

    def _lines(self, values: Any) -> Any:
        """The messages, each in one line."""
        import pyarrow.compute as pc

        from holdfast.formats._arrays import has_byte, lengths

        if self._not_json in {"string", "base64"}:
            values = _as_strings(values, base64=self._not_json == "base64")
        values = values.fill_null(b"null") if values.null_count else values
        if not lengths(values).all():
            raise BatchError(NOT_TAKEN_OUT.format(NAME))
        for byte in (LINE_BREAK, RETURN):
            if has_byte(values, byte):
                # In JSON it can only stand between two tokens, where a space means the same.
                values = pc.replace_substring(values, byte, b" ")
        return values


def _as_strings(values: Any, *, base64: bool) -> Any:
    """The messages, with JSON strings instead of those that are not JSON."""
    import json
    from binascii import b2a_base64

    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    from holdfast.formats._json import not_json

    indices = not_json(values)
    if not len(indices):
        return values
    mask = np.zeros(len(values), bool)
    mask[indices] = True
    raws = values.filter(pa.array(mask)).to_pylist()
    texts = [b2a_base64(raw, newline=False).decode() if base64 else raw.decode() for raw in raws]
    strings = pa.array([json.dumps(text, ensure_ascii=False).encode() for text in texts], pa.binary())
    return pc.replace_with_mask(values, pa.array(mask), strings)


def _is_json(schema: Any) -> bool:
    import pyarrow as pa

    if VALUE not in schema.names:
        return False
    kind, types = schema.field(VALUE).type, pa.types
    return _has_json(
        schema.names,
        bytes_=types.is_binary(kind) or types.is_large_binary(kind),
        text=types.is_string(kind) or types.is_large_string(kind),
    )


def _has_json(names: Any, *, bytes_: bool, text: bool) -> bool:
    """Whether `value` is the whole record. Beside the bytes of a message there may be columns for other sinks."""
    alone = list(names) == [VALUE]
    return (bytes_ and (alone or OFFSET in names)) or (text and alone)


PLUGIN = Plugin(
    NAME,
    JsonlConfig,
    lambda config: Jsonl(config.compression, config.level, config.not_json),
    "JSON lines, plain or compressed.",
)
