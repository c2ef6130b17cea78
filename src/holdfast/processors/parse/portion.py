"""A portion of messages: the values that are read from each, and the resulting rows."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.errors import BatchError, UsageError
from holdfast.flow.fault import record_fault
from holdfast.flow.kafka_columns import TIMESTAMP, VALUE
from holdfast.flow.source import FAULT_COLUMN, OPTIONAL_COLUMNS, OUTPUT_FOLDER_COLUMN, SYSTEM_COLUMNS

if TYPE_CHECKING:
    from holdfast.processors.parse.json_fields import JsonFields, Path

NO_VALUE = "the message has no value"
Bad: TypeAlias = dict[int, str]
"""By row number in the portion, the reason why there is no value."""
Numbers: TypeAlias = "np.ndarray[Any, np.dtype[np.int64]]"


class Unreadable(ValueError):
    """A message does not have the wanted value; the text is the reason."""


@dataclass
class Cells:
    """One value per row: plain Python values in a list, or texts in an Arrow array; None where the row is bad."""

    values: Any
    bad: Bad = field(default_factory=dict)


@dataclass
class Ticks:
    """One time per row, counted from 1970 in UTC; any number where the row is bad."""

    values: Numbers
    per_second: int
    bad: Bad = field(default_factory=dict)


@dataclass
class CodedTexts:
    """One text per row, as an index into the distinct texts; any index where the row is bad."""

    codes: Numbers
    texts: Sequence[str]
    bad: Bad = field(default_factory=dict)


def distinct(numbers: Numbers) -> tuple[Numbers, Numbers]:
    """The distinct numbers in order, and for each row the index of its number."""
    if not len(numbers):
        return numbers, numbers
    low, high = int(numbers.min()), int(numbers.max())
    if high - low > 4 * len(numbers) + 1000:
        found, which = np.unique(numbers, return_inverse=True)
        return found, which
    # Numbers that are close to each other need no sorting.
    indices = numbers - low
    table = np.zeros(high - low + 1, np.int64)
    table[indices] = 1
    present = np.flatnonzero(table)
    table[present] = np.arange(len(present))
    return present + low, table[indices]


def mask_without(bad: Bad, count: int) -> Any:
    """A mask that is true for the good rows."""
    good = np.ones(count, np.bool_)
    good[list(bad)] = False
    return good


class Portion:
    """Some rows of one topic. JSON fields are read once, and messages decoded once, for all readers."""

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
        """A field of every message; it must be one that the rule has declared."""
        if self._read is None:
            assert self._fields is not None
            self._read = self._fields.read(self.values)
        return self._read[path]

    def decoded(self, key: Any, decode: Callable[[bytes], Any]) -> list[Any]:
        """The result of a decoder for each message, or the `Unreadable` that it raised; computed once for each key."""
        if key not in self._decoded:
            found = self._decoded[key] = list[Any]()
            for message in self.values.to_pylist():
                try:
                    found.append(Unreadable(NO_VALUE) if message is None else decode(message))
                except Unreadable as wrong:
                    found.append(wrong)
        return self._decoded[key]


def column_of(rows: Any, name: str) -> Any:
    """A column of the rows. Raises `BatchError` if the rows do not have it."""
    index = rows.schema.get_field_index(name)
    if index < 0:
        raise BatchError(f"parse needs the column {name}; the rows have only {', '.join(rows.schema.names)}")
    return rows.column(index)


class FieldReader(ABC):
    """Reads a value of every message."""

    @abstractmethod
    def read(self, portion: Portion) -> Cells | Ticks:
        """The values, and why they are missing from some messages."""


class JsonFieldReader(FieldReader):
    """Reads a field of messages in JSON."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self, portion: Portion) -> Cells:
        return portion.field(self.path)


class KafkaTimestampReader(FieldReader):
    """Reads the column `timestamp`."""

    def read(self, portion: Portion) -> Ticks:
        stamps = column_of(portion.rows, TIMESTAMP)
        if not pa.types.is_timestamp(stamps.type):
            raise BatchError(f"the column {TIMESTAMP} is of type {stamps.type}, which is not a time")
        numbers = stamps.cast(pa.timestamp("us", stamps.type.tz)).cast(pa.int64())
        ticks = Ticks(numbers.fill_null(0).to_numpy(zero_copy_only=False), 10**6)
        if numbers.null_count:
            empty = np.flatnonzero(numbers.is_null().to_numpy(zero_copy_only=False))
            ticks.bad |= dict.fromkeys(empty.tolist(), "the message has no Kafka timestamp")
        return ticks


class RegexReader(FieldReader):
    """Reads a group of a regular expression (RE2). Raises `UsageError` for a pattern that RE2 does not support."""

    def __init__(self, pattern: str, group: str) -> None:
        self._pattern, self._group = pattern, group
        try:
            pc.extract_regex(pa.array([b""]), pattern)
        except pa.ArrowInvalid as error:
            raise UsageError(f"parse: the regular expression {pattern!r} is not supported: {error}") from None

    def read(self, portion: Portion) -> Cells:
        found = pc.extract_regex(portion.values, self._pattern)
        texts = pc.struct_field(found, self._group)
        bad = {}
        if found.null_count:
            for row in np.flatnonzero(found.is_null().to_numpy(zero_copy_only=False)).tolist():
                bad[row] = "the regular expression does not match" if portion.values[row].is_valid else NO_VALUE
        return _as_text(texts, bad)


def _as_text(found: Any, bad: dict[int, str]) -> Cells:
    try:
        return Cells(found.cast(pa.string()), bad)
    except pa.ArrowInvalid:
        values: list[str | None] = []
        for row, matched in enumerate(found.to_pylist()):
            try:
                values.append(None if matched is None else matched.decode())
            except UnicodeDecodeError:
                values.append(None)
                bad[row] = "the match of the regular expression is not UTF-8"
        return Cells(pa.array(values, pa.string()), bad)


def with_faults(rows: Any, bad: Bad) -> Any:
    """The rows with faults where a value is bad and there was no fault before."""
    faults = rows.column(FAULT_COLUMN).to_pylist()
    index = rows.schema.get_field_index(VALUE)
    for row, reason in bad.items():
        if faults[row] is None:
            raw = rows.column(index)[row].as_py() if index >= 0 else None
            # A reason may quote anything, such as a name that is not valid Unicode.
            readable = reason.encode(errors="backslashreplace").decode()
            faults[row] = record_fault(readable, raw.encode() if isinstance(raw, str) else raw or b"").encode()
    return with_column(rows, FAULT_COLUMN, pa.array(faults, pa.string()))


def with_output_folders(rows: Any, folders: Any) -> Any:
    """The rows with this column of output folders."""
    return with_column(rows, OUTPUT_FOLDER_COLUMN, folders)


def with_column(rows: Any, name: str, column: Any) -> Any:
    """The rows with this column, which replaces the column of the same name or is appended."""
    index = rows.schema.get_field_index(name)
    return rows.append_column(name, column) if index < 0 else rows.set_column(index, name, column)


def with_data(rows: Any, schema: Any, columns: Sequence[Any], kept: Sequence[str]) -> Any:
    """The rows with holdfast's columns, those that are kept, and the new ones, in this order."""
    stay = [name for name in rows.schema.names if is_ours(name)] + [name for name in kept if name in rows.schema.names]
    fields = [*(rows.schema.field(name) for name in stay), *(field.with_nullable(True) for field in schema)]
    return pa.RecordBatch.from_arrays([*(rows.column(name) for name in stay), *columns], schema=pa.schema(fields))


def is_ours(name: str) -> bool:
    """Whether a column belongs to holdfast."""
    return name in SYSTEM_COLUMNS or name in OPTIONAL_COLUMNS
