"""Durations and sizes in words, and paths of this host, as pydantic types."""

from __future__ import annotations

import re
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    PlainSerializer,
    PlainValidator,
    ValidationInfo,
    WithJsonSchema,
)
from pydantic_core import PydanticCustomError

# `{value} {message}`: the loader puts the value as written in the file in front of the message.
VALUE_ERROR = "holdfast.value"

_SECONDS = {
    "ms": Decimal("0.001"),
    "s": Decimal(1),
    "m": Decimal(60),
    "h": Decimal(3600),
    "d": Decimal(86400),
}
_SPELLINGS = {"sec": "s", "secs": "s", "min": "m", "mins": "m"}
_BYTES = {"": 1, "b": 1} | {
    f"{prefix}{middle}b": base**power
    for middle, base in (("", 1000), ("i", 1024))
    for power, prefix in enumerate("kmgt", start=1)
}
_NUMBER = r"[0-9]+(?:\.[0-9]+)?"
_UNIT = "mins?|secs?|ms|s|m|h|d"
_WORDS = rf"(?:{_NUMBER} ?(?:{_UNIT}))+"
_ISO = (
    rf"[Pp](?=.)(?:({_NUMBER})[Dd])?"
    rf"(?:[Tt](?=.)(?:({_NUMBER})[Hh])?(?:({_NUMBER})[Mm])?(?:({_NUMBER})[Ss])?)?"
)
_SIZE = rf"({_NUMBER}) ?((?:[KkMmGgTt][Ii]?)?[Bb]|)"
_Number = TypeVar("_Number", int, float)
_LONGEST = Decimal(100 * 366 * 86400)
_LARGEST = 2**63 - 1
# No sensible value is longer; Decimal is slow with a million digits.
_MAX_CHARACTERS = 40
_LONG_UNITS = {"millisecond": "ms", "milli": "ms", "second": "s", "minute": "m", "hour": "h", "hr": "h", "day": "d"}
_LONG_DURATION = re.compile(rf"({_NUMBER}) *({'|'.join(_LONG_UNITS)})s?", re.IGNORECASE)
_HOW_TO_WRITE_DURATIONS = "write 30s, 5m, 1h or PT30S"
_SMALLEST_SIZE_LIMIT = 1 << 18
_HOW_TO_WRITE_SIZES = "write 512KB, 64MB or 1GiB"


def parse_duration(text: str) -> float:
    """Return the seconds of `30s`, `1h30m`, `P7D` or `PT10M`. Raises `ValueError` for anything else."""
    parts: list[tuple[str, str]] = []
    if len(text) <= _MAX_CHARACTERS and re.fullmatch(_WORDS, text):
        parts = re.findall(rf"({_NUMBER}) ?({_UNIT})", text)
    elif len(text) <= _MAX_CHARACTERS and (iso := re.fullmatch(_ISO, text)):
        parts = [(number, unit) for number, unit in zip(iso.groups(), "dhms", strict=True) if number]
    if not parts:
        long = _LONG_DURATION.fullmatch(text) if len(text) <= _MAX_CHARACTERS else None
        written = f"write {long[1]}{_LONG_UNITS[long[2].lower()]}" if long else _HOW_TO_WRITE_DURATIONS
        raise ValueError(f"is not a duration; {written}")
    seconds = sum((Decimal(number) * _SECONDS[_SPELLINGS.get(unit, unit)] for number, unit in parts), Decimal(0))
    if seconds > _LONGEST:
        raise ValueError("is longer than 100 years")
    return float(seconds)


def format_duration(seconds: float) -> str:
    """Return the shortest text that `parse_duration` turns into these seconds."""
    exact = Decimal(str(seconds))
    if not exact:
        return "0s"
    for unit in ("d", "h", "m", "s", "ms"):
        count = exact / _SECONDS[unit]
        if count == count.to_integral_value():
            return f"{int(count)}{unit}"
    return f"{exact:f}s"


def format_like(written: object, limit: object) -> object:
    """Return a limit in the way in which the value that exceeds it is written: as a duration, a size or a number."""
    if not limit or not isinstance(limit, int | float) or not isinstance(written, str):
        return limit
    if re.fullmatch(f"{_WORDS}|{_ISO}", written):
        return format_duration(limit)
    # Bare numbers are sizes if the limit is one.
    whole = not limit % 1024 and limit >= _SMALLEST_SIZE_LIMIT
    if whole or (re.fullmatch(_SIZE, written) and not written.isdigit()):
        return format_size(int(limit))
    return f"{limit:g}" if isinstance(limit, float) else limit


def format_size(size: int) -> str:
    """Return the shortest text that `parse_size` turns into these bytes."""
    texts = [f"{size // unit}{name.upper().replace('I', 'i')}" for name, unit in _BYTES.items() if not size % unit]
    return min(texts[1:], key=len) if size else "0B"


def parse_size(text: str) -> int:
    """Return the bytes of `64MB` (millions), `1GiB` (1024³) or `4096`. Raises `ValueError` for anything else."""
    match = re.fullmatch(_SIZE, text) if len(text) <= _MAX_CHARACTERS else None
    if match is None:
        raise ValueError(f"is not a size; {_HOW_TO_WRITE_SIZES}")
    size = int(Decimal(match[1]) * _BYTES[match[2].lower()])
    if size > _LARGEST:
        raise ValueError("is more than 8 EiB")
    return size


def _duration(value: Any, info: ValidationInfo) -> float:
    # Code may pass seconds; in a file a bare number would be ambiguous.
    in_code = info.context is None and isinstance(value, int | float)
    if in_code and 0 <= value <= _LONGEST:
        return float(value)
    return _or_explain(parse_duration, value)


def _size(value: Any) -> int:
    return _or_explain(parse_size, str(value) if isinstance(value, int) else value)


def _or_explain(parse: Callable[[str], _Number], value: Any) -> _Number:
    try:
        return parse(value if isinstance(value, str) else "?")
    except ValueError as error:
        raise PydanticCustomError(VALUE_ERROR, str(error)) from None


def _not_bool(value: Any) -> Any:
    # pydantic would read true as 1.
    if isinstance(value, bool):
        raise PydanticCustomError(VALUE_ERROR, "is not a whole number")
    return value


def _text(pattern: str, how_to: str, *examples: str) -> dict[str, Any]:
    # patternErrorMessage is what editors show instead of the pattern.
    return {"type": "string", "pattern": pattern, "patternErrorMessage": how_to, "examples": list(examples)}


Duration = Annotated[
    float,
    PlainValidator(_duration),
    PlainSerializer(format_duration, return_type=str, when_used="json"),
    WithJsonSchema(_text(f"^(?:{_WORDS}|{_ISO})$", _HOW_TO_WRITE_DURATIONS, "30s", "5m", "PT1H")),
]
"""A time span of at least 0, in seconds."""

ByteSize = Annotated[
    int,
    PlainValidator(_size),
    WithJsonSchema(_text(f"^{_SIZE}$", _HOW_TO_WRITE_SIZES, "64MB", "1GiB") | {"type": ["string", "integer"]}),
]
"""A number of bytes, at least 0."""

Count = Annotated[int, Field(ge=0), BeforeValidator(_not_bool)]
"""A whole number, at least 0."""

PositiveCount = Annotated[int, Field(ge=1), BeforeValidator(_not_bool)]
"""A whole number, at least 1."""

Port = Annotated[int, Field(ge=1, le=65535), BeforeValidator(_not_bool)]
"""Number of a TCP port."""

LocalPath = Annotated[Path, AfterValidator(Path.expanduser)]
"""A path of this host; `~` is the home of the user that runs the process."""
