"""Conversion of Arrow schemas to Avro schemas, and back."""

from __future__ import annotations

import re
from typing import Any

import pyarrow as pa

from holdfast.errors import BatchError

DECIMAL_BYTES = 16
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_PLAIN = {
    pa.bool_(): "boolean",
    pa.int8(): "int",
    pa.int16(): "int",
    pa.int32(): "int",
    pa.int64(): "long",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.string(): "string",
    pa.large_string(): "string",
    pa.binary(): "bytes",
    pa.large_binary(): "bytes",
}
_LOGICAL = {
    "date": pa.date32(),
    "timestamp-micros": pa.timestamp("us", "UTC"),
    "local-timestamp-micros": pa.timestamp("us"),
}
_READ = {
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "bytes": pa.binary(),
}


def avro_schema(schema: Any, name: str = "row") -> dict[str, Any]:
    """The Avro record of these columns. Raises `BatchError` for names and types that Avro does not have."""
    return {"type": "record", "name": name, "fields": [_field(field, name) for field in schema]}


def arrow_schema(record: dict[str, Any]) -> Any:
    """The columns of a record that `avro_schema` made."""
    return pa.schema([pa.field(field["name"], _arrow(field["type"])) for field in record["fields"]])


def without_times(schema: Any) -> Any:
    """The same Avro schema with dates and times as plain numbers."""
    if isinstance(schema, list):
        return [without_times(branch) for branch in schema]
    if not isinstance(schema, dict):
        return schema
    if schema.get("logicalType") in _LOGICAL:
        return schema["type"]
    inner = ("type", "items", "values", "fields")
    return {name: without_times(value) if name in inner else value for name, value in schema.items()}


def _field(field: Any, above: str) -> dict[str, Any]:
    if not _NAME.fullmatch(field.name):
        raise BatchError(
            f"Avro does not allow a column named {field.name!r}: use letters, digits and '_' only; rename it"
        )
    # Every column may be null: the same rows must give the same bytes, whatever the schema says about nulls.
    return {"name": field.name, "type": ["null", _avro(field.type, f"{above}_{field.name}")]}


def _avro(kind: Any, name: str) -> Any:
    types = pa.types
    if kind in _PLAIN:
        return _PLAIN[kind]
    if types.is_date32(kind):
        return {"type": "int", "logicalType": "date"}
    if types.is_timestamp(kind):
        return {"type": "long", "logicalType": "timestamp-micros" if kind.tz else "local-timestamp-micros"}
    if types.is_decimal128(kind):
        words = {"logicalType": "decimal", "precision": kind.precision, "scale": kind.scale}
        return {"type": "fixed", "name": name, "size": DECIMAL_BYTES, **words}
    if types.is_struct(kind):
        return avro_schema(kind, name)
    if types.is_list(kind) or types.is_large_list(kind):
        return {"type": "array", "items": ["null", _avro(kind.value_type, f"{name}_item")]}
    if types.is_map(kind) and types.is_string(kind.key_type):
        return {"type": "map", "values": ["null", _avro(kind.item_type, f"{name}_item")]}
    raise BatchError(f"Avro has no type for {kind}; change it, or use another format, such as parquet")


def _arrow(schema: Any) -> Any:
    kind = schema[1] if isinstance(schema, list) else schema
    if isinstance(kind, str):
        return _READ[kind]
    if kind.get("logicalType") == "decimal":
        return pa.decimal128(kind["precision"], kind["scale"])
    if "logicalType" in kind:
        return _LOGICAL[kind["logicalType"]]
    if kind["type"] == "record":
        return pa.struct([pa.field(field["name"], _arrow(field["type"])) for field in kind["fields"]])
    if kind["type"] == "array":
        return pa.list_(_arrow(kind["items"]))
    return pa.map_(pa.string(), _arrow(kind["values"]))
