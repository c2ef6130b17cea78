"""Fields of records for templates: columns as they are, or members of the JSON text that a record is."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.formats._arrays import is_bytes

VALUE = "value"
MADE = "_document"
"""The column in which Spark has put the document, made from all columns."""


def document_column(schema: Any) -> str | None:
    """The column that is the document itself: one that Spark made, or a `value` of bytes, or of text if it is alone."""
    if MADE in schema.names:
        return MADE
    if VALUE not in schema.names:
        return None
    kind = schema.field(VALUE).type
    holds_bytes = bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))
    return VALUE if holds_bytes or (schema.names == [VALUE] and is_bytes(kind)) else None


class Fields:
    """The fields of one portion of rows, each as texts; null where a record has none."""

    def __init__(self, rows: Any, own: dict[str, Any], documents: Any) -> None:
        """`own` are ours, such as `_item`; `documents` are JSON texts, looked into for what is no column."""
        self._rows = rows
        self._own = own
        self._documents = documents
        self._parsed: list[Any] | None = None

    def __call__(self, name: str) -> Any:
        if name in self._own:
            return self._own[name]
        document = document_column(self._rows.schema)
        if document in {None, MADE} or (name in self._rows.schema.names and name != document):
            return _texts(_column(self._rows, name))
        return pa.array([_told(_within(one, name)) for one in self._objects()], pa.string())

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
    for one in inner:
        kind = column.type
        if not pa.types.is_struct(kind) or kind.get_field_index(one) < 0:
            return pa.nulls(rows.num_rows, pa.string())
        column = pc.struct_field(column, one)
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
        return pa.array([None if one is None else one.decode("utf-8", "replace") for one in column.to_pylist()])
    return pa.array([_told(one) for one in column.to_pylist()], pa.string())


def _told(value: Any) -> str | None:
    if value is None or isinstance(value, dict | list):
        return None
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def _within(found: Any, name: str) -> Any:
    if isinstance(found, dict) and name in found:
        return found[name]
    for one in name.split("."):
        found = found.get(one) if isinstance(found, dict) else None
    return found


def are_objects(texts: Any) -> list[bool]:
    """Whether each text is one JSON object and nothing else."""
    parsed = _parsed_by(_decoder())
    return [isinstance(parsed(text), dict) for text in texts.to_pylist()]


def _decoder() -> Any:
    try:
        import msgspec
    except ImportError:
        return lambda text: json.loads(str(text, "utf-8"), parse_constant=_no_number)
    return msgspec.json.Decoder().decode


def _no_number(word: str) -> None:
    raise ValueError(f"{word} is not JSON")


def _parsed_by(decode: Any) -> Any:
    def parsed(text: Any) -> Any:
        try:
            return decode(text)
        except (ValueError, TypeError, RecursionError):
            return None  # the index will say what is wrong with it

    return parsed
