"""Where values are found: one portion of messages, and what is read from it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.errors import BatchError, UsageError
from holdfast.flow.kafka_columns import TIMESTAMP, VALUE
from holdfast.processors.parse.cells import Cells, Ticks, Unreadable

if TYPE_CHECKING:
    from holdfast.processors.parse.json_fields import JsonFields, Path

NO_VALUE = "the message has no value"


class Portion:
    """Rows of one topic. Fields of JSON are read once for all who ask."""

    def __init__(self, rows: Any, fields: JsonFields | None) -> None:
        self.rows = rows
        self._fields = fields
        self._read: dict[Path, Cells] | None = None
        self._decoded: dict[Any, list[Any]] = {}
        self._values: Any = None

    @property
    def values(self) -> Any:
        """The messages as a binary array."""
        if self._values is None:
            values = column_of(self.rows, VALUE)
            self._values = values if pa.types.is_binary(values.type) else values.cast(pa.binary())
        return self._values

    def field(self, path: Path) -> Cells:
        """A field of every message; it must be among those that the rule has announced."""
        if self._read is None:
            assert self._fields is not None
            self._read = self._fields.read(self.values)
        return self._read[path]

    def decoded(self, key: Any, decode: Callable[[bytes], Any]) -> list[Any]:
        """What a decoder makes of each message, or the `Unreadable` that it raised; done once for each key."""
        if key not in self._decoded:
            found = self._decoded[key] = list[Any]()
            for message in self.values.to_pylist():
                try:
                    found.append(Unreadable(NO_VALUE) if message is None else decode(message))
                except Unreadable as wrong:
                    found.append(wrong)
        return self._decoded[key]


def column_of(rows: Any, name: str) -> Any:
    """A column of the rows. Raises `BatchError` if the source has none."""
    place = rows.schema.get_field_index(name)
    if place < 0:
        raise BatchError(f"parse needs the column {name}, and there is none among {', '.join(rows.schema.names)}")
    return rows.column(place)


class Origin(ABC):
    """Reads one value of every message."""

    columns: ClassVar[frozenset[str]] = frozenset({VALUE})
    """What it reads."""

    @abstractmethod
    def read(self, portion: Portion) -> Cells | Ticks:
        """The values, and why some have none."""


class JsonOrigin(Origin):
    """A field of JSON."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self, portion: Portion) -> Cells:
        return portion.field(self.path)


class KafkaTimestamp(Origin):
    """The column `timestamp`."""

    columns = frozenset({TIMESTAMP})

    def read(self, portion: Portion) -> Ticks:
        stamps = column_of(portion.rows, TIMESTAMP)
        if not pa.types.is_timestamp(stamps.type):
            raise BatchError(f"the column {TIMESTAMP} is of type {stamps.type}, not of a time")
        numbers = stamps.cast(pa.timestamp("us", stamps.type.tz)).cast(pa.int64())
        ticks = Ticks(numbers.fill_null(0).to_numpy(zero_copy_only=False), 10**6)
        if numbers.null_count:
            empty = np.flatnonzero(numbers.is_null().to_numpy(zero_copy_only=False))
            ticks.bad |= dict.fromkeys(empty.tolist(), "the message has no Kafka timestamp")
        return ticks


class RegexOrigin(Origin):
    """What a group of a regular expression matches, by RE2. Raises `UsageError` for what RE2 does not know."""

    def __init__(self, pattern: str, group: str) -> None:
        self._pattern, self._group = pattern, group
        try:
            pc.extract_regex(pa.array([b""]), pattern)
        except pa.ArrowInvalid as error:
            raise UsageError(f"parse: the regular expression {pattern!r} is not understood: {error}") from None

    def read(self, portion: Portion) -> Cells:
        found = pc.extract_regex(portion.values, self._pattern)
        texts = pc.struct_field(found, self._group)
        bad = {}
        if found.null_count:
            for row in np.flatnonzero(found.is_null().to_numpy(zero_copy_only=False)).tolist():
                bad[row] = "the regular expression finds nothing" if portion.values[row].is_valid else NO_VALUE
        return _as_text(texts, bad)


def _as_text(found: Any, bad: dict[int, str]) -> Cells:
    try:
        return Cells(found.cast(pa.string()), bad)
    except pa.ArrowInvalid:
        values: list[str | None] = []
        for row, one in enumerate(found.to_pylist()):
            try:
                values.append(None if one is None else one.decode())
            except UnicodeDecodeError:
                values.append(None)
                bad[row] = "what the regular expression finds is no UTF-8"
        return Cells(pa.array(values, pa.string()), bad)
