"""Rebuilds rows from the records that dead letters keep, by the codec of the settings."""

from __future__ import annotations

import base64
import io
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from holdfast.errors import Refused
from holdfast.flow.fault import COLUMNS
from holdfast.flow.letter import Letter
from holdfast.sources.objects.codecs.lines import END_OF_STREAM
from holdfast.sources.objects.codecs.typed import cast_rows
from holdfast.sources.objects.config import LINE_CODECS, ObjectsConfig
from holdfast.sources.objects.planner import ObjectPlanner
from holdfast.sources.objects.record_reader import ARROW, HEADER

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from holdfast.sources.objects.codecs.codec import Codec

JSON_CODECS = ("jsonl", "json")


class RecordRebuilder:
    """A `Rebuilder`. A letter keeps the text of a record, or JSON of its columns."""

    keeps = None

    def __init__(self, planner: ObjectPlanner, config: ObjectsConfig) -> None:
        self._planner = planner
        self._config = config

    def fields(self) -> StructType:
        return self._planner.columns()

    def refusal(self, letter: Letter) -> str | None:
        codec = self._config.codec
        has_header = letter.spilled is not None or HEADER in (letter.source or {})
        if letter.form == COLUMNS or codec in LINE_CODECS or codec in JSON_CODECS or (codec == "csv" and has_header):
            return None
        return f"a record of the codec {codec} cannot be read without the object that it was in"

    def row(self, letter: Letter) -> Any:
        source = letter.source or {}
        try:
            if ARROW in source:
                return _row_of(base64.b64decode(source[ARROW]), self._text_codec.schema)
            codec = self._json_codec if letter.form == COLUMNS else self._text_codec
        except Refused as refused:
            raise ValueError(str(refused)) from refused
        header = f"{source[HEADER]}\n".encode() if HEADER in source else b""
        items, columns = 0, list[Any]()
        for portion in codec.read(io.BytesIO(header + letter.record() + b"\n"), 0, END_OF_STREAM):
            if portion.faults:
                raise ValueError(portion.faults[0][1].reason)
            if len(portion.items):
                items += len(portion.items)
                columns = list(portion.columns)
        if items != 1:
            raise ValueError("the record is blank" if not items else f"the letter holds {items} records")
        return pa.RecordBatch.from_arrays(columns, schema=codec.schema)

    @cached_property
    def _text_codec(self) -> Any:
        codec = self._config.codec
        return self._codec("jsonl" if codec in JSON_CODECS else codec)

    @cached_property
    def _json_codec(self) -> Any:
        return self._codec("jsonl")

    def _codec(self, name: Any) -> Codec:
        from pyspark.sql.pandas.types import to_arrow_schema

        from holdfast.sources.objects.codecs import codec_of

        schema = None if self._config.schema_ is None else to_arrow_schema(self.fields(), timezone="UTC")
        return codec_of(name, schema, self._config.max_line_bytes)


def _row_of(stream: bytes, schema: pa.Schema) -> Any:
    """The row that a letter keeps as Arrow's bytes, in the columns that the settings have now."""
    portion = cast_rows(pa.ipc.open_stream(stream).read_next_batch(), np.zeros(1, np.int64), schema)
    if portion.faults:
        raise ValueError(portion.faults[0][1].reason)
    return pa.RecordBatch.from_arrays(list(portion.columns), schema=schema)
