"""Values of key columns as JSON, and ids of documents made from them. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from typing import Any

from holdfast.errors import BatchError
from holdfast.leases.lease import Json

_SEPARATOR = ":"
_ESCAPES = (("%", "%25"), (_SEPARATOR, "%3A"))


def to_json(values: Sequence[Any]) -> list[Json]:
    """The values of the key columns of one row as JSON. Raises `BatchError` for values that cannot be compared."""
    return [_to_json(value) for value in values]


def from_json(stored: Sequence[Json]) -> list[Any]:
    """The values, exactly as they were. Raises `BatchError` if `stored` does not come from `to_json`."""
    return [_from_json(value) for value in stored]


def document_id(parts: Sequence[str]) -> str:
    """The id of a row with these texts of its key columns; different keys have different ids."""
    return parts[0] if len(parts) == 1 else _SEPARATOR.join(map(_escaped, parts))


def key_of(id_: str, columns: int) -> list[str] | None:
    """The texts of the key columns that an id was made from; None if it was not made by `document_id`."""
    if columns == 1:
        return [id_]
    parts = id_.split(_SEPARATOR)
    return [_plain(part) for part in parts] if len(parts) == columns else None


def _to_json(value: Any) -> Json:
    if isinstance(value, bytes | bytearray | memoryview):
        return {"bytes": bytes(value).hex()}
    if isinstance(value, Decimal):
        return {"decimal": str(value)}
    if isinstance(value, int | float | str):
        return value
    reason = "a key is NULL" if value is None else f"a key has the type {type(value).__name__}"
    raise BatchError(f"{reason}, which has no place in the order of keys")


def _from_json(stored: Json) -> Any:
    match stored:
        case {"bytes": str(text)}:
            return bytes.fromhex(text)
        case {"decimal": str(text)}:
            return Decimal(text)
        case int() | float() | str():
            return stored
    raise BatchError(f"{stored!r} is not a value of a key")


def _escaped(text: str) -> str:
    for character, escape in _ESCAPES:
        text = text.replace(character, escape)
    return text


def _plain(text: str) -> str:
    for character, escape in reversed(_ESCAPES):
        text = text.replace(escape, character)
    return text
