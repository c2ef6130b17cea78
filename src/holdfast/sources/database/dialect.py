"""What differs between databases: connecting, kinds of columns, expressions, and what is known about open transactions.

All ordering and comparing of keys is done by the database, in the collation of the column, so that the order of pages
is the order of their conditions. No key is ever compared by this program.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import StrEnum
from typing import Any, NamedTuple

from holdfast.leases.lease import Json
from holdfast.sources.database.config import DatabaseConfig

Row = tuple[Any, ...]
COUNTING_TIMEOUT = 3600
"""Seconds that counting the rows of a table may take."""
UNITS = {"s": 1, "ms": 1000, "us": 1_000_000}
"""Units of an integer time, per second."""


class Kind(StrEnum):
    """What holdfast must know of a column's type."""

    INTEGER = "integer"
    TEXT = "text"
    UUID = "uuid"
    BINARY = "binary"
    BOOLEAN = "boolean"
    NUMBER = "number"
    TIME = "time"
    JSON = "json"
    OTHER = "other"


class Column(NamedTuple):
    """A column of a table or query. `quoted` is its name in SQL."""

    name: str
    kind: Kind
    quoted: str
    form: str = ""
    """More about its values that only the dialect understands."""


class Condition(NamedTuple):
    """A part of WHERE, and the values of its parameters."""

    text: str
    values: Sequence[Any] = ()


class Connection(ABC):
    """A connection that is used by one thread. Every call raises `SourceUnavailable` or `BatchError`."""

    @abstractmethod
    def rows(self, text: str, values: Sequence[Any] = ()) -> list[Row]:
        """The rows of a statement, in a transaction of its own unless inside `snapshot`."""

    @abstractmethod
    def describe(self, text: str) -> list[Column]:
        """The columns of a statement's result; the statement must be one that reads no rows."""

    @abstractmethod
    @contextmanager
    def snapshot(self) -> Iterator[None]:
        """All statements inside see the same moment, and may take longer than a page: they count rows."""

    @abstractmethod
    def close(self) -> None:
        """Close the connection. Never raises."""


class Dialect(ABC):
    """The SQL of one kind of database. Picklable."""

    parameter = "%s"
    quote = '"'

    def __init__(self, config: DatabaseConfig) -> None:
        self.config = config

    @property
    @abstractmethod
    def server(self) -> str:
        """The server's name in messages, without any secret."""

    @abstractmethod
    def connect(self) -> Connection:
        """Open a connection.

        Raises `SourceUnavailable`, or `Refused` for a login or database that the server refuses.
        """

    @contextmanager
    def connected(self) -> Iterator[Connection]:
        connection = self.connect()
        try:
            yield connection
        finally:
            connection.close()

    # --- names and conditions ----------------------------------------------------------------------------------

    def quoted(self, name: str) -> str:
        """The name in SQL."""
        return self.literal_text(self.quote + name.replace(self.quote, self.quote * 2) + self.quote)

    def literal_text(self, text: str) -> str:
        """Text of the user as a part of a statement: drivers that write parameters as `%s` need `%` twice."""
        return text.replace("%", "%%") if self.parameter == "%s" else text

    def compared(self, columns: Sequence[Column], operator: str, values: Sequence[Any]) -> Condition:
        """The condition that the columns, taken together, are before or after the values."""
        if len(columns) == 1:
            return Condition(f"{columns[0].quoted} {operator} {self.parameter}", values)
        marks = ", ".join([self.parameter] * len(columns))
        return Condition(f"({', '.join(column.quoted for column in columns)}) {operator} ({marks})", values)

    def can_be_bound(self, value: Any) -> bool:
        """Whether a value can be a parameter at all; a value that cannot is in no row."""
        return not isinstance(value, int) or -(1 << 63) <= value < 1 << 63

    # --- expressions -------------------------------------------------------------------------------------------

    @abstractmethod
    def key_value(self, column: Column) -> str:
        """An expression whose value, bound as a parameter, is exactly the value of the column."""

    @abstractmethod
    def as_text(self, column: Column) -> str:
        """The column as text for document ids."""

    @abstractmethod
    def version(self, column: Column, unit: str) -> str:
        """A time or integer as a version: an integer as it is, a time in milliseconds since 1970."""

    @abstractmethod
    def changed_since(self, column: Column, unit: str, time: float) -> Condition | None:
        """The condition that a time, or an integer in this unit, is at or after `time`; None if that is impossible."""

    @abstractmethod
    def is_deleted(self, column: Column) -> str:
        """Whether the column marks a deleted row."""

    @abstractmethod
    def document(self, fields: Mapping[str, Column]) -> str:
        """A JSON object with these fields, as text."""

    def json_text(self, column: Column) -> str:
        """A column that holds JSON, as text."""
        return column.quoted

    @abstractmethod
    def has_valid_json(self, column: Column) -> bool:
        """Whether the database guarantees that the column holds JSON."""

    def changed_rows(self, mark: Json) -> Condition | None:  # noqa: ARG002 - for those whose rows tell it
        """The condition for rows that were changed since the mark; None if rows do not record when they changed."""
        return None

    # --- transactions and statistics ---------------------------------------------------------------------------

    @abstractmethod
    def watermark(self, connection: Connection) -> dict[str, Json]:
        """The mark of this moment. `time`: the start of the oldest open transaction, in seconds since 1970, or now.

        `time` is None if that cannot be known.
        """

    @abstractmethod
    def settled(self, connection: Connection, mark: Mapping[str, Json]) -> bool:
        """Whether every transaction that was open at the mark has ended."""

    @abstractmethod
    def estimated_rows(self, connection: Connection, table: Sequence[str]) -> int | None:
        """The number of rows by the statistics of the database; None if it has none."""

    @abstractmethod
    def nullable(self, connection: Connection, table: Sequence[str]) -> set[str]:
        """The columns of the table that may be NULL."""

    @abstractmethod
    def unique_keys(self, connection: Connection, table: Sequence[str]) -> list[frozenset[str]]:
        """The sets of columns that are unique in the table."""
