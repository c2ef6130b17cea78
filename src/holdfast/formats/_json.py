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

_FEW = 32
"""Up to so many are judged one by one: asking Arrow's parser costs as much as a few dozen messages."""
_NOT_IN_JSON = (b"\0", b"NaN", b"Inf")
"""At a zero byte Arrow's parser stops, and it takes these numbers for JSON."""
_ANY_OBJECT = pyarrow.json.ParseOptions(
    explicit_schema=pa.schema([]), unexpected_field_behavior="ignore", newlines_in_values=True
)


def not_json(values: Any) -> Any:
    """The places of the messages that are not JSON (RFC 8259), sorted. A message that is null is."""
    places = np.flatnonzero(np.asarray(values.is_valid())) if values.null_count else np.arange(len(values))
    values = values.drop_null() if values.null_count else values
    if not len(values):
        return places
    apart = ~_look_like_objects(values)
    odd = values.filter(pa.array(apart)) if apart.any() else values.slice(0, 0)
    usual = values.filter(pa.array(~apart)) if apart.any() else values
    found = [place for place, message in zip(places[apart], odd.to_pylist(), strict=True) if not _is_json(message)]
    return np.sort(np.concatenate([np.array(found, np.int64), _faulty_objects(usual, places[~apart])]))


def _look_like_objects(values: Any) -> Any:
    """Which begin and end as objects do, and have nothing in them that Arrow's parser judges in another way."""
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


def _faulty_objects(values: Any, places: Any) -> Any:
    """The places of those that are no objects: found by halves, until few are left."""
    if _are_objects(values):
        return places[:0]
    if len(values) <= _FEW:
        pairs = zip(places, values.to_pylist(), strict=True)
        return np.array([place for place, message in pairs if not _is_json(message, _is_deep_object)], np.int64)
    half = len(values) // 2
    parts = ((values.slice(0, half), places[:half]), (values.slice(half), places[half:]))
    return np.concatenate([_faulty_objects(*part) for part in parts])


def _are_objects(values: Any) -> bool:
    """Whether each message is one JSON object, by Arrow's parser.

    Each begins with a brace and ends with one, so each holds at least one object if all of them can be parsed: no
    object reaches over a line break between two. If there are as many objects as messages, each holds exactly one.
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
    """By Python's parser, which also takes what is no object, huge numbers and halves of surrogate pairs.

    `is_deep` judges what has more levels than Python can go down.
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


# Numbers are not made: they may have more digits than Python takes.
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
