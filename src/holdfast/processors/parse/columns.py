"""Columns from messages: JSON by Arrow's own parser, other encodings from the values that their decoder gives.

A message that is no such, or does not fit the schema, is bad; the others are not touched by it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.json

from holdfast.errors import Refused
from holdfast.processors.parse.cells import Bad, Unreadable
from holdfast.processors.parse.lines import joined, look_like_objects
from holdfast.processors.parse.reading import NO_VALUE

_NO_OBJECT = "the message is no JSON object"


class MessageColumns(ABC):
    """Makes columns of messages. Decodes all or raises `ValueError`; what was refused is halved until it is alone."""

    def __init__(self, schema: pa.Schema) -> None:
        self.schema = schema

    def read(self, values: Any) -> tuple[list[Any], Bad]:
        """The columns of all messages of a binary array, null where a message is bad."""
        bad = self._refused(values)
        good = values
        if bad:
            keep = np.ones(len(values), np.bool_)
            keep[list(bad)] = False
            good = values.filter(pa.array(keep))
        chunks: list[tuple[int, list[Any] | str]] = []
        self._sift(good, chunks)
        if not bad and len(chunks) == 1 and not isinstance(chunks[0][1], str):
            return chunks[0][1], bad
        return self._laid_out(len(values), chunks, bad)

    @abstractmethod
    def _decoded(self, values: Any) -> list[Any]:
        """The columns. Raises `ValueError` if one of the messages cannot be decoded."""

    def _refused(self, values: Any) -> Bad:
        """Messages that need no try, with the reason."""
        if not values.null_count:
            return {}
        empty = values.is_null().to_numpy(zero_copy_only=False)
        return dict.fromkeys(np.flatnonzero(empty).tolist(), NO_VALUE)

    def _sift(self, values: Any, chunks: list[tuple[int, list[Any] | str]]) -> None:
        if not len(values):
            return
        try:
            columns = self._decoded(values)
            self._check_nulls(columns)
            chunks.append((len(values), columns))
        except ValueError as error:
            if len(values) == 1:
                chunks.append((1, _reason(error)))
                return
            half = len(values) // 2
            self._sift(values.slice(0, half), chunks)
            self._sift(values.slice(half), chunks)

    def _check_nulls(self, columns: list[Any]) -> None:
        for field, column in zip(self.schema, columns, strict=True):
            if not field.nullable and column.null_count:
                raise Unreadable(f"{field.name} is missing")

    def _laid_out(self, count: int, chunks: list[tuple[int, list[Any] | str]], bad: Bad) -> tuple[list[Any], Bad]:
        """All columns in the order of the rows, with nulls for the bad ones."""
        rows = np.array([row for row in range(count) if row not in bad], np.int64)
        pieces, done, kept = [list[Any]() for _ in self.schema], 0, list[int]()
        for number, made in chunks:
            own = rows[done : done + number].tolist()
            if isinstance(made, str):
                bad[own[0]] = made
            else:
                kept += own
                for column, piece in zip(made, pieces, strict=True):
                    piece.append(column)
            done += number
        places = np.full(count, -1, np.int64)
        places[kept] = np.arange(len(kept))
        which = pa.array(places, mask=places < 0)
        wholes = [
            pa.concat_arrays(piece) if piece else pa.array([], field.type)
            for field, piece in zip(self.schema, pieces, strict=True)
        ]
        return [whole.take(which) for whole in wholes], bad


class JsonMessages(MessageColumns):
    """Messages that are JSON objects. Fields that the schema does not have are left out."""

    def __init__(self, schema: pa.Schema) -> None:
        super().__init__(schema)
        self._parsed = pa.schema([field.with_type(_parsed_as(field.type, field.name)) for field in schema])

    def _refused(self, values: Any) -> Bad:
        bad = super()._refused(values)
        for row in np.flatnonzero(~look_like_objects(values)).tolist():
            bad.setdefault(row, _NO_OBJECT)
        return bad

    def _decoded(self, values: Any) -> list[Any]:
        try:
            # Arrow's parser takes any bytes for text.
            values.cast(pa.string())
        except pa.ArrowInvalid:
            raise Unreadable("the message is no UTF-8") from None
        text = joined(values)
        table = pa.json.read_json(
            pa.BufferReader(text),
            read_options=pa.json.ReadOptions(use_threads=False, block_size=text.size + 1),
            parse_options=pa.json.ParseOptions(
                explicit_schema=self._parsed, unexpected_field_behavior="ignore", newlines_in_values=True
            ),
        )
        if table.num_rows != len(values):
            raise Unreadable("there is more than one JSON object in the message")
        columns = [table.column(field.name).combine_chunks() for field in self.schema]
        return [
            column if column.type.equals(field.type) else column.cast(field.type)
            for column, field in zip(columns, self.schema, strict=True)
        ]


class DecodedMessages(MessageColumns):
    """Messages that a decoder turns into mappings. Fields that the schema does not have are left out."""

    def __init__(self, schema: pa.Schema, decode: Callable[[bytes], Any]) -> None:
        super().__init__(schema)
        self._decode = decode

    def _decoded(self, values: Any) -> list[Any]:
        records = [self._decode(message) for message in values.to_pylist()]
        if not all(isinstance(record, dict) for record in records):
            raise Unreadable("the message is no record with fields")
        try:
            whole = pa.array(records, pa.struct(list(self.schema)))
        except (pa.ArrowTypeError, OverflowError, TypeError) as error:
            raise Unreadable(str(error)) from None
        return [whole.field(number) for number in range(len(self.schema))]


def _parsed_as(kind: Any, column: str) -> Any:
    """The type that Arrow's parser is asked for, which may not be the column's own. Raises `Refused` for none."""
    types = pa.types
    if types.is_date32(kind):
        return pa.string()
    if types.is_struct(kind):
        return pa.struct([field.with_type(_parsed_as(field.type, column)) for field in kind])
    if types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_parsed_as(kind.value_type, column)))
    plain = (types.is_integer, types.is_floating, types.is_boolean, types.is_string, types.is_timestamp)
    if any(is_kind(kind) for is_kind in (*plain, types.is_decimal)):
        return kind
    raise Refused(f"schema: column {column} cannot be read from JSON as {kind}; use another type, such as STRING")


def _reason(error: Exception) -> str:
    return str(error).removesuffix(" in row 0").removesuffix(".")
