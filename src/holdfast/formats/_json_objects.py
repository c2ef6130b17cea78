"""Rows as JSON objects, column by column, in Arrow; only base64 and rare types run Python code per value.

Times are ISO 8601 with microseconds, bytes are base64, and numbers that JSON lacks are text, such as "NaN". Times
outside the years 1 to 9999 have no such text: they are numbers of days or microseconds since 1970.
"""

from __future__ import annotations

import datetime as dt
import json
from binascii import b2a_base64
from collections.abc import Sequence
from functools import reduce
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.flow.kafka_columns import OFFSET, VALUE
from holdfast.formats._arrays import binary, entries_of, is_bytes
from holdfast.formats._faults import DAY, FIRST_YEAR, LAST_YEAR

_ESCAPED = r'[\x00-\x1f"\\]'


def json_objects(rows: Any) -> Any:
    """Each row of a record batch as the text of a JSON object. Null members are omitted."""
    return _objects(rows.schema.names, rows.columns, rows.num_rows)


def json_texts(texts: Any) -> Any:
    """Each text as a JSON string; null for null."""
    return _texts(texts.cast(pa.string()))


def raw_records(rows: Any) -> tuple[list[bytes], bool]:
    """The bytes of each row for a dead letter, and whether they are the column `value` or JSON of all columns."""
    names = rows.schema.names
    is_value = VALUE in names and is_bytes(rows.schema.field(VALUE).type) and (OFFSET in names or names == [VALUE])
    records = binary(rows.column(VALUE)).fill_null(b"") if is_value else binary(json_objects(rows))
    return records.to_pylist(), is_value


def _objects(names: Sequence[str], columns: Sequence[Any], count: int) -> Any:
    members = [_member(name, column) for name, column in zip(names, columns, strict=True)]
    if not members:
        return pa.array(["{}"] * count, pa.string())
    if all(member.null_count for member in members):
        # Arrow returns no element at all for a row whose members are all skipped.
        empty = reduce(pc.and_, (member.is_null() for member in members))
        members[0] = pc.if_else(empty, "", members[0])
    inner = pc.binary_join_element_wise(*members, ",", null_handling="skip")
    return pc.binary_join_element_wise("{", inner, "}", "")


def _member(name: str, column: Any) -> Any:
    """`"name":value`, or null."""
    return pc.binary_join_element_wise(json.dumps(name, ensure_ascii=False) + ":", _values(column), "")


def _values(column: Any) -> Any:
    """The JSON text of each value; null for null."""
    types, kind = pa.types, column.type
    if types.is_boolean(kind) or types.is_integer(kind) or types.is_decimal(kind):
        return column.cast(pa.string())
    if types.is_string(kind) or types.is_large_string(kind):
        return json_texts(column)
    if types.is_floating(kind):
        return _fractions(column)
    if types.is_date(kind):
        days = column.cast(pa.date32())
        return _times(days.cast(pa.int32()), _quoted(days.cast(pa.string())), DAY)
    if types.is_timestamp(kind):
        moments = column.cast(pa.timestamp("us", kind.tz and "UTC"))
        texts = pc.strftime(moments, f"%Y-%m-%dT%H:%M:%S{'Z' if kind.tz else ''}")
        return _times(moments.cast(pa.int64()), _quoted(texts), 1)
    return _nested(column)


def _times(numbers: Any, texts: Any, unit: int) -> Any:
    first, last = FIRST_YEAR // unit, LAST_YEAR // unit
    span = pc.min_max(numbers)
    if span["min"].as_py() is None or (span["min"].as_py() >= first and span["max"].as_py() <= last):
        return texts
    inside = pc.and_(pc.greater_equal(numbers, first), pc.less_equal(numbers, last))
    return pc.if_else(inside, texts, numbers.cast(pa.string()))


def _nested(column: Any) -> Any:
    types, kind = pa.types, column.type
    if types.is_struct(kind):
        texts = _objects([field.name for field in kind], column.flatten(), len(column))
        return _where(column, texts)
    if types.is_list(kind) or types.is_large_list(kind):
        items = _joined(column, _values(column.flatten()).fill_null("null"))
        return _where(column, pc.binary_join_element_wise("[", items, "]", ""))
    if types.is_map(kind):
        entries = entries_of(column)
        keys, items = entries.flatten().flatten()
        pairs = pc.binary_join_element_wise(_names(keys), _values(items).fill_null("null"), ":")
        return _where(column, pc.binary_join_element_wise("{", _joined(entries, pairs), "}", ""))
    return pa.array([None if value is None else _json(value) for value in column.to_pylist()], pa.string())


def _where(column: Any, texts: Any) -> Any:
    return pc.if_else(column.is_valid(), texts, pa.scalar(None, pa.string())) if column.null_count else texts


def _joined(lists: Any, texts: Any) -> Any:
    """The texts of each list's items, with commas between them."""
    sizes = np.asarray(pc.list_value_length(lists).fill_null(0))
    borders = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32)
    return pc.binary_join(pa.ListArray.from_arrays(pa.array(borders), texts), ",")


def _names(keys: Any) -> Any:
    """Keys of a map as names of members."""
    texts = _values(keys)
    if pa.types.is_nested(keys.type):
        return pa.array(map(json.dumps, texts.to_pylist()), pa.string())
    return pc.if_else(pc.starts_with(texts, '"'), texts, _quoted(texts))


def _fractions(column: Any) -> Any:
    """Write whole numbers as `1.0`, because a search index that gets `1` first maps the field to integers."""
    texts = column.cast(pa.string())
    whole = pc.invert(pc.match_substring_regex(texts, "[.e]"))
    texts = pc.if_else(whole, pc.binary_join_element_wise(texts, ".0", ""), texts)
    if pc.all(pc.is_finite(column)).as_py() is not False:
        return texts
    infinite = pc.if_else(pc.greater(column, 0), '"Infinity"', '"-Infinity"')
    return pc.if_else(pc.is_finite(column), texts, pc.if_else(pc.is_nan(column), '"NaN"', infinite))


def _texts(column: Any) -> Any:
    odd, quoted = pc.match_substring_regex(column, _ESCAPED), _quoted(column)
    if not pc.any(odd).as_py():
        return quoted
    # Spark's text may not be UTF-8; then the JSON is not either, and nothing is lost.
    texts = (value.decode("utf-8", "surrogateescape") for value in column.filter(odd).view(pa.binary()).to_pylist())
    escaped = [json.dumps(text, ensure_ascii=False).encode("utf-8", "surrogateescape") for text in texts]
    return pc.replace_with_mask(quoted, odd.fill_null(False), pa.array(escaped, pa.binary()).view(pa.string()))


def _quoted(column: Any) -> Any:
    return pc.binary_join_element_wise('"', column, '"', "")


def _json(value: Any) -> str:
    """A value of a kind that Arrow has no text for."""
    if isinstance(value, bytes):
        return f'"{b2a_base64(value, newline=False).decode()}"'
    return json.dumps(value.isoformat() if isinstance(value, dt.time) else str(value), ensure_ascii=False)
