"""JSON lines: one record a line, as text or compressed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, BinaryIO

from holdfast.flow.format import Format, FormatWriter, RawWriter
from holdfast.formats._lines import chained, split
from holdfast.formats._messages import VALUE, portions
from holdfast.formats._streams import SUFFIXES, CompressedOptions, Compression, Stream, compressed
from holdfast.formats._unpacking import decompressed
from holdfast.registry import Plugin

LINE_BREAK = b"\n"


class JsonlConfig(CompressedOptions):
    """How lines are written."""


class Jsonl(Format):
    """Writes a column `value` of bytes, or one of text that is the only column, as it is: it is JSON already.

    Else the columns become one JSON object. `read` gives the lines back, in the column `value`: line breaks within a
    value are spaces then, and a value that was null is the JSON `null`.
    """

    keeps = frozenset({VALUE})

    def __init__(self, compression: Compression = "none", level: int | None = None) -> None:
        self.extension = f"jsonl{SUFFIXES[compression]}"
        self._compression: Compression = compression
        self._level = level

    def columns(self, fields: Any) -> Mapping[str, Any]:
        from pyspark.sql import functions as sql
        from pyspark.sql.types import BinaryType, StringType

        kind = fields[VALUE].dataType if VALUE in fields.names else None
        if isinstance(kind, BinaryType) or (isinstance(kind, StringType) and len(fields.names) == 1):
            return {VALUE: None}
        return {VALUE: sql.to_json(sql.struct(*(sql.col(f"`{_escaped(name)}`") for name in fields.names)))}

    def open(self, raw: RawWriter, schema: Any) -> FormatWriter:
        return JsonlFile(compressed(raw, self._compression, self._level), is_json=_is_json(schema))

    def read(self, data: BinaryIO) -> Iterator[Any]:
        import pyarrow as pa

        for lines in split(decompressed(data, self._compression), LINE_BREAK):
            yield pa.record_batch([lines], names=[VALUE])


class JsonlFile(FormatWriter):
    """Joins the lines of a record batch in Arrow's own buffers; no Python code runs per row that is JSON already."""

    def __init__(self, stream: Stream, *, is_json: bool) -> None:
        self._stream = stream
        self._is_json = is_json

    @property
    def buffered(self) -> int:
        return self._stream.waiting

    def write(self, rows: Any) -> None:
        from holdfast.formats._arrays import binary
        from holdfast.formats._objects import json_objects

        for part in portions(rows):
            self._stream.write(_joined(binary(part.column(VALUE) if self._is_json else json_objects(part))))
            self._stream.write(LINE_BREAK)

    def close(self) -> None:
        self._stream.close()


def _is_json(schema: Any) -> bool:
    import pyarrow as pa

    from holdfast.formats._arrays import is_bytes

    if VALUE not in schema.names:
        return False
    kind = schema.field(VALUE).type
    holds_bytes = bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))
    return holds_bytes or (schema.names == [VALUE] and is_bytes(kind))


def _joined(lines: Any) -> Any:
    """All lines in one buffer, with a line break between each two."""
    import numpy as np
    import pyarrow.compute as pc

    if lines.null_count:
        lines = lines.fill_null(b"null")
    joined = chained(lines, LINE_BREAK)
    if np.count_nonzero(np.frombuffer(joined, np.uint8) == ord(LINE_BREAK)) == len(lines) - 1:
        return joined
    # A line break inside a record is white space between its tokens, or it would be no JSON.
    return _joined(pc.replace_substring(lines, LINE_BREAK, b" "))


def _escaped(name: str) -> str:
    return name.replace("`", "``")


PLUGIN = Plugin(
    "jsonl", JsonlConfig, lambda config: Jsonl(config.compression, config.level), "JSON lines, plain or compressed."
)
