"""Rows as JSON objects, column by column.

Numbers, truth values, text and times are made in Arrow's own code; other columns go through Python, a value at a
time. Times are ISO 8601 with microseconds, bytes are in base64, and numbers that JSON lacks are text, such as "NaN".
"""

from __future__ import annotations

import base64
import datetime as dt
import json
import math
from collections.abc import Iterable
from decimal import Decimal
from functools import reduce
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

_ESCAPED = r'[\x00-\x1f"\\]'


def json_objects(rows: Any) -> Any:
    """Each row of a record batch as the text of a JSON object. Members that are null are left out."""
    members = [_member(name, rows.column(place)) for place, name in enumerate(rows.schema.names)]
    if not members:
        return pa.array(["{}"] * rows.num_rows)
    if all(member.null_count for member in members):
        # Arrow gives no element at all for a row in which everything is skipped.
        empty = reduce(pc.and_, (member.is_null() for member in members))
        members[0] = pc.if_else(empty, "", members[0])
    inner = pc.binary_join_element_wise(*members, ",", null_handling="skip")
    return pc.binary_join_element_wise("{", inner, "}", "")


def _member(name: str, column: Any) -> Any:
    """`"name":value`, or null."""
    return pc.binary_join_element_wise(json.dumps(name, ensure_ascii=False) + ":", _values(column), "")


def _values(column: Any) -> Any:
    types, kind = pa.types, column.type
    if types.is_boolean(kind) or types.is_integer(kind) or types.is_decimal(kind):
        return column.cast(pa.string())
    if types.is_string(kind) or types.is_large_string(kind):
        return _texts(column.cast(pa.string()))
    if types.is_floating(kind) and pc.all(pc.is_finite(column)).as_py() is not False:
        return _fractions(column.cast(pa.string()))
    if types.is_date(kind):
        return _quoted(column.cast(pa.string()))
    if types.is_timestamp(kind):
        moments = column.cast(pa.timestamp("us", kind.tz and "UTC"))
        return _quoted(pc.strftime(moments, f"%Y-%m-%dT%H:%M:%S{'Z' if kind.tz else ''}"))
    return pa.array([None if value is None else _json(value, kind) for value in column.to_pylist()], pa.string())


def _fractions(texts: Any) -> Any:
    """A whole one is `1.0`: an index would take `1` for the type of the whole column."""
    whole = pc.invert(pc.match_substring_regex(texts, "[.e]"))
    return pc.if_else(whole, pc.binary_join_element_wise(texts, ".0", ""), texts)


def _texts(column: Any) -> Any:
    odd, quoted = pc.match_substring_regex(column, _ESCAPED), _quoted(column)
    if not pc.any(odd).as_py():
        return quoted
    escaped = [json.dumps(value, ensure_ascii=False) for value in column.filter(odd).to_pylist()]
    return pc.replace_with_mask(quoted, odd.fill_null(False), pa.array(escaped, pa.string()))


def _quoted(column: Any) -> Any:
    return pc.binary_join_element_wise('"', column, '"', "")


def _json(value: Any, kind: Any) -> str:
    if value is None:
        return "null"
    if pa.types.is_struct(kind):
        return _object((field.name, value[field.name], field.type) for field in kind if value[field.name] is not None)
    if pa.types.is_map(kind):
        return _object((_name(key, kind.key_type), item, kind.item_type) for key, item in value)
    if isinstance(value, list):
        return f"[{','.join(_json(inner, kind.value_type) for inner in value)}]"
    return f"{value:f}" if isinstance(value, Decimal) else json.dumps(_plain(value), ensure_ascii=False)


def _object(members: Iterable[tuple[str, Any, Any]]) -> str:
    told = (f"{json.dumps(name, ensure_ascii=False)}:{_json(value, kind)}" for name, value, kind in members)
    return f"{{{','.join(told)}}}"


def _name(key: Any, kind: Any) -> str:
    return key if isinstance(key, str) else _json(key, kind).strip('"')


def _plain(value: Any) -> Any:
    """The value in terms of JSON."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, dt.datetime):
        moment = value if value.tzinfo is None else value.astimezone(dt.UTC).replace(tzinfo=None)
        return moment.isoformat(timespec="microseconds") + ("Z" if value.tzinfo else "")
    if isinstance(value, bool | int | float | str):
        return value
    return value.isoformat() if isinstance(value, dt.date | dt.time) else str(value)
