"""JSON lines: one record a line, as text or compressed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field

from holdfast.config import Options
from holdfast.flow.format import Format, FormatWriter, RawWriter
from holdfast.registry import Plugin

VALUE = "value"
"""A column of this name that is the only one is written as it is; else a record is the object of its columns."""
COMPRESSED_BLOCK = 1 << 20
GZIP_FORMAT = 31

Compression = Literal["none", "gzip", "zstd"]
_SUFFIXES: dict[Compression, str] = {"none": "", "gzip": ".gz", "zstd": ".zst"}
_FAST_LEVELS: dict[Compression, int] = {"none": 0, "gzip": 1, "zstd": 1}


class JsonlConfig(Options):
    """How lines are written."""

    compression: Compression = Field("none", description="Compression of the files.")
    level: Annotated[int, Field(ge=1, le=9)] | None = Field(
        None, description="Compression level; the fastest unless given."
    )


class Jsonl(Format):
    """Writes a column `value` that is the only one as it is; else the columns become one JSON object."""

    def __init__(self, compression: Compression = "none", level: int | None = None) -> None:
        self.extension = f"jsonl{_SUFFIXES[compression]}"
        self._compression = compression
        self._level = level or _FAST_LEVELS[compression]

    def columns(self, fields: Any) -> Mapping[str, Any]:
        from pyspark.sql import functions as sql
        from pyspark.sql.types import BinaryType, StringType

        if fields.names == [VALUE] and isinstance(fields[VALUE].dataType, StringType | BinaryType):
            return {VALUE: None}
        return {VALUE: sql.to_json(sql.struct(*(sql.col(f"`{_escaped(name)}`") for name in fields.names)))}

    def open(self, raw: RawWriter, schema: Any) -> FormatWriter:  # noqa: ARG002 - lines have none
        if self._compression == "gzip":
            return LineWriter(_Gzip(raw, self._level))
        if self._compression == "zstd":
            return LineWriter(_Zstd(raw, self._level))
        return LineWriter(_Plain(raw))


class LineWriter(FormatWriter):
    """Joins the lines of a record batch in Arrow's own buffers; no Python code runs per row."""

    def __init__(self, stream: _Plain) -> None:
        self._stream = stream

    def write(self, rows: Any) -> None:
        lines = rows.column(VALUE)
        if len(lines):
            self._stream.write(_joined(lines))
            self._stream.write(b"\n")

    def close(self) -> None:
        self._stream.close()


class _Plain:
    """Bytes as they are."""

    def __init__(self, raw: RawWriter) -> None:
        self._raw = raw

    def write(self, data: Any) -> None:
        self._raw.write(data)

    def close(self) -> None:
        """Nothing follows."""


class _Gzip(_Plain):
    """One gzip stream without a time stamp in its header."""

    def __init__(self, raw: RawWriter, level: int) -> None:
        import zlib

        super().__init__(raw)
        self._deflate = zlib.compressobj(level, zlib.DEFLATED, GZIP_FORMAT)

    def write(self, data: Any) -> None:
        self._raw.write(self._deflate.compress(data))

    def close(self) -> None:
        self._raw.write(self._deflate.flush())


class _Zstd(_Plain):
    """Frames of a fixed amount of data each, one behind the other, as every zstd reader takes them."""

    def __init__(self, raw: RawWriter, level: int) -> None:
        import pyarrow as pa

        super().__init__(raw)
        self._codec = pa.Codec("zstd", level)
        self._waiting = bytearray()

    def write(self, data: Any) -> None:
        self._waiting += data
        while len(self._waiting) >= COMPRESSED_BLOCK:
            self._frame(COMPRESSED_BLOCK)

    def close(self) -> None:
        if self._waiting:
            self._frame(len(self._waiting))

    def _frame(self, size: int) -> None:
        self._raw.write(self._codec.compress(bytes(self._waiting[:size]), asbytes=True))
        del self._waiting[:size]


def _joined(lines: Any) -> Any:
    """All lines in one buffer, with a line break between each two."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    if lines.null_count:
        lines = lines.fill_null(pa.scalar(b"null").cast(lines.type))
    whole = pa.ListArray.from_arrays(pa.array([0, len(lines)], pa.int32()), lines)
    joined = pc.binary_join(whole, pa.scalar(b"\n").cast(lines.type))[0].as_buffer()
    if np.count_nonzero(np.frombuffer(joined, np.uint8) == ord("\n")) == len(lines) - 1:
        return joined
    # A line break inside a record is white space between its tokens, or it would be no JSON.
    return _joined(pc.replace_substring(lines, "\n", " "))


def _escaped(name: str) -> str:
    return name.replace("`", "``")


PLUGIN = Plugin(
    "jsonl", JsonlConfig, lambda config: Jsonl(config.compression, config.level), "JSON lines, plain or compressed."
)
