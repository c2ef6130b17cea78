"""SQLite, for demonstrations and for files of one host."""

from __future__ import annotations

import math
import sqlite3
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

from holdfast.errors import BatchError, Refused, SourceUnavailable
from holdfast.leases.lease import Json
from holdfast.sources.database.dialect import UNITS, Column, Condition, Connection, Dialect, Kind, Row

_KINDS = {int: Kind.INTEGER, float: Kind.NUMBER, str: Kind.TEXT, bytes: Kind.BINARY}
_AWAY = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_FULL)
_FIELDS_OF_A_CALL = 60
"""A function of SQLite takes 127 arguments."""
_LENGTH_OF_DATE = len("2026-01-01")


class SqliteConnection(Connection):
    """A connection that commits every statement."""

    def __init__(self, connection: sqlite3.Connection, server: str) -> None:
        self._connection = connection
        self._server = server

    def rows(self, text: str, values: Sequence[Any] = ()) -> list[Row]:
        try:
            return self._connection.execute(text, values).fetchall()
        except sqlite3.Error as error:
            raise _translated(self._server, error) from error

    def describe(self, text: str) -> list[Column]:
        """The columns, with the kinds of the values of one row: a column may have values of any type."""
        try:
            cursor = self._connection.execute(text)
            names = [entry[0] for entry in cursor.description]
            row = cursor.fetchone() or [None] * len(names)
        except sqlite3.Error as error:
            raise _translated(self._server, error) from error
        return [_column(name, value) for name, value in zip(names, row, strict=True)]

    @contextmanager
    def snapshot(self) -> Iterator[None]:
        self.rows("BEGIN")
        try:
            yield
        finally:
            with suppress(sqlite3.Error):
                self._connection.rollback()

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """While the block runs, no other connection changes anything.

        Raises `PermissionError` if the file is read-only.
        """
        try:
            self._connection.execute("BEGIN IMMEDIATE")
        except sqlite3.Error as error:
            if error.sqlite_errorcode & 0xFF in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM):
                raise PermissionError(str(error)) from error
            raise _translated(self._server, error) from error
        try:
            yield
        finally:
            self._connection.rollback()

    def close(self) -> None:
        with suppress(sqlite3.Error):
            self._connection.close()


class Sqlite(Dialect):
    """The SQL of SQLite."""

    parameter = "?"
    quote = "`"
    """Of a name in double quotes that is not a column SQLite would make a text."""

    @property
    def path(self) -> Path:
        return Path(unquote(self.config.url.reveal().removeprefix("sqlite:///"))).absolute()

    @property
    def server(self) -> str:
        return f"sqlite at {self.path}"

    def connect(self) -> SqliteConnection:
        if self.config.time_zone != "UTC":
            raise Refused("times in SQLite have no zone and are read as UTC; leave out time_zone")
        if not self.path.is_file():
            # Opening would create it, and an empty database has no rows to miss.
            raise SourceUnavailable(f"{self.server} does not exist")
        try:
            address = f"file:{quote(str(self.path))}?mode=rw"
            connection = sqlite3.connect(
                address, timeout=self.config.connect_timeout, uri=True, isolation_level=None, check_same_thread=False
            )
        except sqlite3.Error as error:
            raise _translated(self.server, error) from error
        return SqliteConnection(connection, self.server)

    # --- expressions -------------------------------------------------------------------------------------------

    def key_value(self, column: Column) -> str:
        return column.quoted

    def as_text(self, column: Column) -> str:
        name = column.quoted
        return f"CASE typeof({name}) WHEN 'blob' THEN lower(hex({name})) ELSE CAST({name} AS TEXT) END"

    def version(self, column: Column, unit: str) -> str:  # noqa: ARG002 - integers are versions as they are
        name = column.quoted
        seconds, fraction = f"CAST(strftime('%s', {name}) AS INTEGER)", f"substr(strftime('%f', {name}), 4)"
        of_text = f"{seconds} * 1000 + CAST({fraction} AS INTEGER)"
        return f"CASE typeof({name}) WHEN 'text' THEN {of_text} ELSE CAST({name} AS INTEGER) END"

    def changed_since(self, column: Column, unit: str, time: float) -> Condition | None:
        if column.kind in (Kind.INTEGER, Kind.NUMBER):
            return Condition(f"{column.quoted} >= ?", [math.floor(time * UNITS[unit])])
        if column.kind is not Kind.TIME:
            return None
        return Condition(f"{column.quoted} >= strftime(?, ?, 'unixepoch')", [column.form, math.floor(time)])

    def is_deleted(self, column: Column) -> str:
        name = column.quoted
        return f"CASE typeof({name}) WHEN 'text' THEN 1 WHEN 'blob' THEN 1 WHEN 'null' THEN 0 ELSE {name} <> 0 END"

    def document(self, fields: Mapping[str, Column]) -> str:
        pairs = [f"{_text(name)}, {_field(column.quoted)}" for name, column in fields.items()]
        parts = [pairs[at : at + _FIELDS_OF_A_CALL] for at in range(0, len(pairs), _FIELDS_OF_A_CALL)]
        members = [f"substr(json_object({', '.join(part)}), 2)" for part in parts]
        # Each part ends with a brace, which becomes a comma where another part follows.
        return "'{' || " + " || ',' || ".join([f"rtrim({part}, '}}')" for part in members[:-1]] + members[-1:])

    def has_valid_json(self, column: Column) -> bool:  # noqa: ARG002 - it never does
        return False

    # --- transactions and statistics ---------------------------------------------------------------------------

    def watermark(self, connection: Connection) -> dict[str, Json]:
        """Takes the write lock for a moment: nobody else has a change open then.

        For a read-only file, there is no time.
        """
        assert isinstance(connection, SqliteConnection)
        try:
            with connection.exclusive():
                return {"time": time.time()}
        except PermissionError:
            return {"time": None}

    def settled(self, connection: Connection, mark: Mapping[str, Json]) -> bool:  # noqa: ARG002 - see `watermark`
        if mark["time"] is None:
            raise Refused(f"{self.server} is read-only: whether changes are still open cannot be seen")
        return True

    def estimated_rows(self, connection: Connection, table: Sequence[str]) -> int | None:  # noqa: ARG002
        return None

    def nullable(self, connection: Connection, table: Sequence[str]) -> set[str]:
        # A primary key may be NULL too, unless it is the number of the row.
        found = connection.rows(
            "SELECT name FROM pragma_table_info(?) WHERE NOT \"notnull\" AND NOT (pk AND upper(type) = 'INTEGER')",
            [table[-1]],
        )
        return {str(name) for (name,) in found}

    def unique_keys(self, connection: Connection, table: Sequence[str]) -> list[frozenset[str]]:
        name = table[-1]
        primary = frozenset(
            str(row[0]) for row in connection.rows("SELECT name FROM pragma_table_info(?) WHERE pk", [name])
        )
        found = connection.rows(
            "SELECT l.name, i.name FROM pragma_index_list(?) AS l, pragma_index_info(l.name) AS i "
            'WHERE l."unique" AND NOT l.partial',
            [name],
        )
        others = [
            frozenset(str(column) for index, column in found if index == each) for each in {row[0] for row in found}
        ]
        return [primary, *others] if primary else others


def _column(name: str, value: Any) -> Column:
    if isinstance(value, str) and _is_time(value):
        # Times are compared as text, so that the bound must have the separator of the values.
        separator = value[_LENGTH_OF_DATE : _LENGTH_OF_DATE + 1]
        return Column(name, Kind.TIME, "", f"%Y-%m-%d{separator}%H:%M:%S" if separator else "%Y-%m-%d")
    return Column(name, _KINDS.get(type(value), Kind.OTHER), "")


def _is_time(text: str) -> bool:
    date, rest = text[:_LENGTH_OF_DATE], text[_LENGTH_OF_DATE:]
    digits = date.replace("-", "")
    return date[4:5] == date[7:8] == "-" and len(digits) == 8 and digits.isdigit() and rest[:1] in ("", "T", " ")


def _field(name: str) -> str:
    return f"CASE typeof({name}) WHEN 'blob' THEN hex({name}) ELSE {name} END"


def _text(text: str) -> str:
    escaped = text.replace("'", "''")
    return f"'{escaped}'"


def _translated(server: str, error: sqlite3.Error) -> SourceUnavailable | BatchError:
    message = f"{server}: {error}"
    code = getattr(error, "sqlite_errorcode", None)
    return SourceUnavailable(message) if code is not None and code & 0xFF in _AWAY else BatchError(message)
