"""Fields of records for templates: columns, or members of the record's JSON text."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.formats._arrays import is_bytes

VALUE = "value"
DOCUMENT = "_document"
"""The column of the document that Spark has made from all columns."""


def document_column(schema: Any) -> str | None:
    """The column that is the document: one that Spark made, a `value` of bytes, or a `value` of text if it is alone."""
    if DOCUMENT in schema.names:
        return DOCUMENT
    if VALUE not in schema.names:
        return None
    kind = schema.field(VALUE).type
    holds_bytes = bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))
    return VALUE if holds_bytes or (schema.names == [VALUE] and is_bytes(kind)) else None


class Fields:
    """The fields of one portion of rows as text; null where a record has no such field."""

    def __init__(self, rows: Any, origin_fields: dict[str, Any], documents: Any) -> None:
        """`origin_fields` are `_item` and `_key`; `documents` are JSON texts, for fields that are not columns."""
        self._rows = rows
        self._origin_fields = origin_fields
        self._documents = documents
        self._parsed: list[Any] | None = None

    def __call__(self, name: str) -> Any:
        if name in self._origin_fields:
            return self._origin_fields[name]
        document = document_column(self._rows.schema)
        if document in {None, DOCUMENT} or (name in self._rows.schema.names and name != document):
            return _texts(_column(self._rows, name))
        return pa.array([_text(_member(document, name)) for document in self._objects()], pa.string())

    def _objects(self) -> list[Any]:
        if self._parsed is None:
            self._parsed = list(map(_parsed_by(_decoder()), self._documents.to_pylist()))
        return self._parsed


def _column(rows: Any, name: str) -> Any:
    if name in rows.schema.names:
        return rows.column(name)
    first, *inner = name.split(".")
    if first not in rows.schema.names:
        return pa.nulls(rows.num_rows, pa.string())
    column = rows.column(first)
    for member in inner:
        kind = column.type
        if not pa.types.is_struct(kind) or kind.get_field_index(member) < 0:
            return pa.nulls(rows.num_rows, pa.string())
        column = pc.struct_field(column, member)
    return column


def _texts(column: Any) -> Any:
    types, kind = pa.types, column.type
    if types.is_string(kind):
        return column
    if types.is_integer(kind) or types.is_boolean(kind) or types.is_large_string(kind) or types.is_null(kind):
        return column.cast(pa.string())
    if types.is_timestamp(kind):
        return pc.strftime(column.cast(pa.timestamp("us", kind.tz and "UTC")), "%Y-%m-%dT%H:%M:%S")
    if types.is_binary(kind) or types.is_large_binary(kind):
        return pa.array([None if data is None else data.decode("utf-8", "replace") for data in column.to_pylist()])
    return pa.array([_text(value) for value in column.to_pylist()], pa.string())


def _text(value: Any) -> str | None:
    if value is None or isinstance(value, dict | list):
        return None
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def _member(document: Any, name: str) -> Any:
    if isinstance(document, dict) and name in document:
        return document[name]
    for member in name.split("."):
        document = document.get(member) if isinstance(document, dict) else None
    return document


def are_objects(texts: Any) -> list[bool]:
    """Whether each text is one JSON object and nothing else."""
    parsed = _parsed_by(_decoder())
    return [isinstance(parsed(text), dict) for text in texts.to_pylist()]


def _decoder() -> Any:
    try:
        import msgspec
    except ImportError:
        return lambda text: json.loads(str(text, "utf-8"), parse_constant=_refuse_constant)
    return msgspec.json.Decoder().decode


def _refuse_constant(word: str) -> None:
    raise ValueError(f"{word} is not JSON")


def _parsed_by(decode: Any) -> Any:
    def parsed(text: Any) -> Any:
        try:
            return decode(text)
        except (ValueError, TypeError, RecursionError):
            return None  # the index refuses it with a reason

    return parsed
