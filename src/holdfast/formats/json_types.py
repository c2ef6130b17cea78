"""Which types Arrow's JSON parser is asked for when columns of other types are wanted."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from holdfast.errors import Refused


def parsed_schema(schema: pa.Schema) -> pa.Schema:
    """The columns as the parser gives them; each can be cast to its own type. Raises `Refused` for what it cannot."""
    return pa.schema([field.with_type(_parsed_as(field.type, field.name)) for field in schema])


def _parsed_as(kind: Any, column: str) -> Any:
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
