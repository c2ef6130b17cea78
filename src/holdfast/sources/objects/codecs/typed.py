"""Casts rows that already have types to the types of the schema; columns are matched by name.

A column that the file lacks is null; a column that the schema lacks is dropped. A row with a value that does not fit
becomes a dead letter and does not affect the others; a type that never fits is an error of the whole object.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.errors import BatchError
from holdfast.flow.fault import COLUMNS, Fault, record_fault
from holdfast.formats._json_objects import json_objects
from holdfast.sources.objects.codecs.codec import Portion


def cast_rows(rows: Any, items: Any, schema: pa.Schema) -> Portion:
    """A record batch in the types of the schema."""
    return _sifted(rows, items, schema, lambda some: [_column(some, field) for field in schema], _row_text)


def typed_rows(rows: list[Any], items: Any, schema: pa.Schema) -> Portion:
    """Mappings of Python values in the types of the schema."""
    return _sifted(rows, items, schema, lambda some: _made(some, schema), _mapping_text)


def _sifted(
    rows: Any, items: Any, schema: pa.Schema, make: Callable[[Any], list[Any]], text: Callable[[Any], bytes]
) -> Portion:
    chunks: list[tuple[Any, list[Any]]] = []
    faults: list[tuple[int, Fault]] = []
    # Not a function that calls itself: its closure would keep the rows until the garbage collector runs.
    left = [(0, len(items))] if len(items) else []
    while left:
        start, end = left.pop()
        some = rows[start:end]
        try:
            chunks.append((items[start:end], make(some)))
        except ValueError as error:
            if end - start == 1:
                fault = record_fault(str(error).removesuffix("."), text(some))
                faults.append((int(items[start]), replace(fault, form=COLUMNS)))
            else:
                middle = (start + end) // 2
                left += [(middle, end), (start, middle)]
    if len(chunks) == 1:
        return Portion(*chunks[0], faults)
    if not chunks:
        return Portion([], [pa.array([], field.type) for field in schema], faults)
    made = [pa.concat_arrays(columns) for columns in zip(*(columns for _, columns in chunks), strict=True)]
    return Portion(np.concatenate([kept for kept, _ in chunks]), made, faults)


def _column(rows: Any, field: pa.Field) -> Any:
    index = rows.schema.get_field_index(field.name)
    if index < 0:
        return pa.nulls(len(rows), field.type)
    column = rows.column(index)
    if column.type.equals(field.type):
        # Arrow's readers do not check the text of a file; invalid UTF-8 would fail in every later step.
        column.validate(full=True)
        return column
    if pa.types.is_integer(column.type) and pa.types.is_binary(field.type):
        column = column.cast(pa.string())
    try:
        # Spark has microseconds; finer times are truncated.
        return pc.cast(column, options=pc.CastOptions(field.type, allow_time_truncate=True))
    except (pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
        raise BatchError(
            f"column {field.name} is {column.type} in the file and cannot be read as {field.type}"
        ) from error


def _made(rows: list[Any], schema: pa.Schema) -> list[Any]:
    try:
        whole = pa.array(rows, pa.struct(list(schema)))
    except (pa.ArrowTypeError, OverflowError, TypeError):
        return [_from_values([row.get(field.name) for row in rows], field.type) for field in schema]
    return [whole.field(number) for number in range(len(schema))]


def _from_values(values: list[Any], kind: Any) -> Any:
    try:
        return pa.array(values, kind)
    except (pa.ArrowTypeError, OverflowError, TypeError) as error:
        if not pa.types.is_string(kind):
            raise ValueError(str(error)) from None
        return pa.array([None if value is None else _text(value) for value in values], kind)


def _text(value: Any) -> str:
    """Any value as text; lists and mappings as JSON."""
    if isinstance(value, bytes):
        return value.decode()
    if isinstance(value, bool | dict | list):
        return json.dumps(value, default=str, ensure_ascii=False)
    return str(value)


def _row_text(rows: Any) -> bytes:
    return bytes(json_objects(rows)[0].cast(pa.binary()).as_py())


def _mapping_text(rows: list[Any]) -> bytes:
    return json.dumps(rows[0], default=str, ensure_ascii=False).encode("utf-8", "backslashreplace")
