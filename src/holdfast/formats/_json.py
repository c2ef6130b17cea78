"""JSON by Arrow's parser: which messages are JSON, many checked at once, and which types the parser can read."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json

from holdfast.errors import Refused
from holdfast.formats._arrays import content, has_byte, lengths
from holdfast.formats._framing import chained

_SMALL_BATCH = 32
"""Up to this many messages are checked one by one: a call of Arrow's parser costs as much as a few dozen messages."""
_NOT_IN_JSON = (b"\0", b"NaN", b"Inf")
"""Arrow's parser stops at a zero byte, and accepts these numbers as JSON."""
_ANY_OBJECT = pyarrow.json.ParseOptions(
    explicit_schema=pa.schema([]), unexpected_field_behavior="ignore", newlines_in_values=True
)


def not_json(values: Any) -> Any:
    """Indices of the messages that are not JSON (RFC 8259), sorted. Null counts as JSON."""
    indices = np.flatnonzero(np.asarray(values.is_valid())) if values.null_count else np.arange(len(values))
    values = values.drop_null() if values.null_count else values
    if not len(values):
        return indices
    apart = ~_look_like_objects(values)
    odd = values.filter(pa.array(apart)) if apart.any() else values.slice(0, 0)
    usual = values.filter(pa.array(~apart)) if apart.any() else values
    found = [index for index, message in zip(indices[apart], odd.to_pylist(), strict=True) if not _is_json(message)]
    return np.sort(np.concatenate([np.array(found, np.int64), _faulty_objects(usual, indices[~apart])]))


def _look_like_objects(values: Any) -> Any:
    """A mask of the messages that begin and end like objects, without anything that Arrow's parser gets wrong."""
    data, sizes = np.frombuffer(content(values), np.uint8), lengths(values)
    if not len(data):
        return np.zeros(len(values), bool)
    ends = np.cumsum(sizes)
    first, last = data[np.minimum(ends - sizes, len(data) - 1)], data[ends - 1]
    found = (sizes >= 2) & (first == ord("{")) & (last == ord("}"))
    for word in _NOT_IN_JSON:
        if has_byte(values, word[:1]):
            found &= ~np.asarray(pc.match_substring(values, word))
    return found


def _faulty_objects(values: Any, indices: Any) -> Any:
    """Indices of the messages that are not objects, found by halving."""
    if _are_objects(values):
        return indices[:0]
    if len(values) <= _SMALL_BATCH:
        pairs = zip(indices, values.to_pylist(), strict=True)
        return np.array([index for index, message in pairs if not _is_json(message, _is_deep_object)], np.int64)
    half = len(values) // 2
    parts = ((values.slice(0, half), indices[:half]), (values.slice(half), indices[half:]))
    return np.concatenate([_faulty_objects(*part) for part in parts])


def _are_objects(values: Any) -> bool:
    """Whether each message is one JSON object, by Arrow's parser.

    Every message begins and ends with a brace, and no object spans the line break between two messages. So if all can
    be parsed, each has at least one object; and if there are as many objects as messages, each has exactly one.
    """
    if not len(values):
        return True
    try:
        values.view(pa.string()).validate(full=True)
        lines = chained(values, b"\n")
        reading = pyarrow.json.ReadOptions(use_threads=False, block_size=lines.size + 1)
        found = pyarrow.json.read_json(pa.BufferReader(lines), read_options=reading, parse_options=_ANY_OBJECT)
    except pa.ArrowInvalid:
        return False
    return bool(found.num_rows == len(values))


def _is_deep_object(message: bytes) -> bool:
    return _are_objects(pa.array([message], pa.binary()))


def _is_json(message: bytes, is_deep: Callable[[bytes], bool] = lambda _: False) -> bool:
    """Whether the message is JSON, by Python's parser. It accepts any value, huge numbers and lone surrogates.

    `is_deep` checks messages with more levels than Python can recurse into.
    """
    try:
        _PYTHON.decode(message.decode())
    except ValueError:
        return False
    except RecursionError:
        return is_deep(message)
    return True


def _refused(word: str) -> NoReturn:
    raise ValueError(word)


# Numbers are not converted: they may have more digits than Python accepts.
_PYTHON = json.JSONDecoder(parse_constant=_refused, parse_int=len, parse_float=len)


# --- types ---------------------------------------------------------------------------------------------------------


def parsed_schema(schema: pa.Schema) -> pa.Schema:
    """The columns as the parser reads them; each can be cast to its type in `schema`. Raises `Refused` otherwise."""
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
