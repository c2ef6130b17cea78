"""Texts made from a record's fields: `logs-{tenant}-{@timestamp:%Y.%m.%d}`, and the names of indexes among them.

`{name}` is a field, with dots for nested fields; `{name:%Y.%m.%d}` is a field that holds a time, in UTC. The clock is
never used: a batch that is written twice must give the same texts.
"""

from __future__ import annotations

import datetime as dt
import fnmatch
import re
import string
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

ORIGIN_FIELDS = ("_item", "_key")
"""Fields of a template besides those of the record: its item, and the key of its partition."""
MAX_INDEX_NAME = 255
_INDEX_NAME = re.compile(r"[a-z0-9][a-z0-9._-]*")
_INDEX_PATTERN = re.compile(r"[a-z0-9][a-z0-9._*-]*")
_NOT_A_TEMPLATE = "{!r} is not a template: write {{field}} or {{field:%Y.%m.%d}}, and {{{{ for a brace"


@dataclass(frozen=True, slots=True)
class Field:
    name: str
    time_format: str = ""


@dataclass(frozen=True)
class Template:
    """A text with fields. Picklable. Raises `ValueError` for a text that is not a template."""

    text: str
    parts: tuple[str | Field, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "parts", _parts(self.text))

    @property
    def names(self) -> frozenset[str]:
        """The fields that the template uses."""
        return frozenset(part.name for part in self.parts if isinstance(part, Field))

    @property
    def times(self) -> tuple[str, ...]:
        """The fields that hold times."""
        return tuple(part.name for part in self.parts if isinstance(part, Field) and part.time_format)

    @property
    def constant(self) -> str | None:
        """The text, if it is the same for all records."""
        return None if self.names else "".join(map(str, self.parts))

    @property
    def prefix(self) -> str:
        """The beginning of every text, up to the first field."""
        return self.parts[0] if self.parts and isinstance(self.parts[0], str) else ""

    def texts(self, field: Callable[[str], Any], rows: int) -> Any:
        """The text of each record as an Arrow array; null where a field is missing or is not a time.

        `field` returns a field of all records as text.
        """
        import pyarrow as pa
        import pyarrow.compute as pc

        if self.constant is not None:
            return pa.repeat(pa.scalar(self.constant, pa.string()), rows)
        pieces = [part if isinstance(part, str) else _piece(part, field(part.name)) for part in self.parts]
        return pieces[0] if len(pieces) == 1 else pc.binary_join_element_wise(*pieces, "")


def _parts(text: str) -> tuple[str | Field, ...]:
    found: list[str | Field] = []
    for literal, name, time_format, conversion in _parsed(text):
        if literal:
            found.append(literal)
        if name is None:
            continue
        if not name or conversion or "{" in (time_format or ""):
            raise ValueError(_NOT_A_TEMPLATE.format(text))
        found.append(Field(name, time_format or ""))
    return tuple(found)


def _parsed(text: str) -> list[tuple[str, str | None, str | None, str | None]]:
    try:
        return list(string.Formatter().parse(text))
    except ValueError:
        raise ValueError(_NOT_A_TEMPLATE.format(text)) from None


def _piece(part: Field, texts: Any) -> Any:
    if not part.time_format:
        return texts
    encoded = texts.dictionary_encode()
    import pyarrow as pa

    times = [formatted_time(text, part.time_format) for text in encoded.dictionary.to_pylist()]
    return pa.array(times, pa.string()).take(encoded.indices)


def formatted_time(text: str, time_format: str) -> str | None:
    """The time that a text holds, in that format; None if it is not a time. Numbers are seconds or milliseconds."""
    try:
        return _time(text).strftime(time_format)
    except (ValueError, OverflowError, OSError):
        return None


def is_after(text: str | None, until: float) -> bool:
    """Whether the text holds a time after `until`, in seconds since 1970."""
    try:
        return text is not None and _time(text).timestamp() > until
    except (ValueError, OverflowError, OSError):
        return False


def _time(text: str) -> dt.datetime:
    plain = text.strip()
    if plain.lstrip("-").replace(".", "", 1).isdigit():
        number = float(plain)
        # As seconds this is in the year 5138, as milliseconds in 1973.
        return dt.datetime.fromtimestamp(number / 1000 if abs(number) > 1e11 else number, dt.UTC)
    moment = dt.datetime.fromisoformat(plain)
    return moment.replace(tzinfo=dt.UTC) if moment.tzinfo is None else moment.astimezone(dt.UTC)


# --- names of indexes -----------------------------------------------------------------------------------------------


def is_index_name(name: str) -> bool:
    """Whether an index may have that name. Names that begin with a dot are reserved for the server."""
    return bool(_INDEX_NAME.fullmatch(name)) and len(name) <= MAX_INDEX_NAME


def index_name_of(text: str) -> str:
    """An index name made from the text."""
    name = re.sub(r"[^a-z0-9._-]+", "-", text.lower()).lstrip("._-+")
    return name[:MAX_INDEX_NAME] or "holdfast"


@dataclass(frozen=True)
class IndexName:
    """The template of an index name. Picklable. Raises `ValueError` if records could name any index."""

    template: Template
    allowed: tuple[str, ...] = ()
    """Patterns with `*`. Without them, names must begin with the prefix of the template."""

    def __post_init__(self) -> None:
        for pattern in self.allowed:
            if not _INDEX_PATTERN.fullmatch(pattern):
                raise ValueError(f"{pattern!r} is not a pattern of index names: lower case, with * for any characters")
        name, prefix = self.template.constant, self.template.prefix
        if "%{" in self.template.text:
            raise ValueError("times are written as {FIELD:%Y.%m.%d} here, with the field that holds the time")
        if name is not None and not is_index_name(name):
            raise ValueError(f"{name!r} is not an index name: lower case letters, digits, '.', '_' and '-'")
        if name is None and prefix and not is_index_name(prefix):
            raise ValueError(f"{prefix!r} cannot begin an index name: lower case letters, digits, '.', '_' and '-'")
        if name is None and not self.allowed and not prefix:
            raise ValueError("begins with a field, so that records could name any index; set allowed_indexes")

    @property
    def constant(self) -> str | None:
        return self.template.constant

    @property
    def patterns(self) -> tuple[str, ...]:
        """Patterns of all indexes that may be written."""
        if self.constant is not None:
            return (self.constant,)
        return self.allowed or (f"{self.template.prefix}*",)

    def allows(self, name: str) -> bool:
        """Whether a record may name this index."""
        return is_index_name(name) and any(fnmatch.fnmatchcase(name, pattern) for pattern in self.patterns)
