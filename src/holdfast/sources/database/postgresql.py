"""PostgreSQL 12 or later, through psycopg in binary form."""
# ruff: noqa: S608 - names are quoted, and values are parameters

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property
from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from holdfast.config.sql_tls import TLS_HINT, libpq_tls
from holdfast.errors import BatchError, Refused, SourceUnavailable
from holdfast.leases.lease import Json
from holdfast.sources.database.dialect import COUNTING_TIMEOUT, UNITS, Column, Condition, Connection, Dialect, Kind, Row

_KINDS = {
    16: Kind.BOOLEAN, 17: Kind.BINARY, 18: Kind.TEXT, 19: Kind.TEXT, 20: Kind.INTEGER, 21: Kind.INTEGER,
    23: Kind.INTEGER, 25: Kind.TEXT, 114: Kind.JSON, 700: Kind.NUMBER, 701: Kind.NUMBER, 1042: Kind.TEXT,
    1043: Kind.TEXT, 1082: Kind.TIME, 1114: Kind.TIME, 1184: Kind.TIME, 1700: Kind.NUMBER, 2950: Kind.UUID,
    3802: Kind.JSON,
}  # fmt: skip
_AWAY = ("08", "57", "53", "40", "55P03", "58")
"""Codes of errors that may pass: no connection, a shutdown, a timeout, no resources, a conflict with recovery."""
_REFUSALS = ("password authentication failed", "does not exist", "no pg_hba.conf entry", "is not permitted to log in")
_HIDDEN = "<insufficient privilege>"
_XIDS = 1 << 32


class PostgresqlConnection(Connection):
    """A connection that commits every statement, with binary results."""

    def __init__(self, connection: psycopg.Connection[Row], server: str) -> None:
        self._connection = connection
        self._server = server
        self._cursor = connection.cursor(binary=True)

    def rows(self, text: str, values: Sequence[Any] = ()) -> list[Row]:
        try:
            # No statement is prepared: the best plan depends on how far apart the ends of the range are.
            return self._cursor.execute(text.encode(), values, prepare=False).fetchall()
        except psycopg.Error as error:
            raise _translated(self._server, error) from error

    def describe(self, text: str) -> list[Column]:
        self.rows(text)
        found = self._cursor.description or []
        return [Column(each.name, _KINDS.get(each.type_code, Kind.OTHER), "") for each in found]

    @contextmanager
    def snapshot(self) -> Iterator[None]:
        self.rows_of_nothing("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        try:
            self.rows_of_nothing(f"SET LOCAL statement_timeout = '{COUNTING_TIMEOUT}s'")
            yield
        finally:
            with suppress(psycopg.Error):
                self._connection.execute("ROLLBACK")

    def rows_of_nothing(self, text: str) -> None:
        """Run a statement that returns no rows."""
        try:
            self._cursor.execute(text.encode())
        except psycopg.Error as error:
            raise _translated(self._server, error) from error

    def close(self) -> None:
        with suppress(psycopg.Error):
            self._connection.close()


class Postgresql(Dialect):
    """The SQL of PostgreSQL. Keys that are neither integers nor text travel as text, which it parses exactly."""

    @cached_property
    def _given(self) -> dict[str, Any]:
        try:
            return dict(conninfo_to_dict(self.config.url.reveal()))
        except psycopg.Error:
            # Neither the URL nor the driver's message is repeated: both may hold the password.
            raise Refused("the url of the database cannot be read; write postgresql://user@host:port/name") from None

    @property
    def server(self) -> str:
        given = self._given
        return f"postgresql at {given.get('host', 'localhost')}:{given.get('port', 5432)}/{given.get('dbname', '')}"

    def connect(self) -> PostgresqlConnection:
        config, given = self.config, dict(self._given)
        patience = math.ceil(config.statement_timeout * 1000)
        options = f"-c statement_timeout={patience} -c idle_in_transaction_session_timeout={patience} -c jit=off"
        fixed = {
            "options": f"{given.pop('options', '')} {options}".strip(),
            "connect_timeout": math.ceil(config.connect_timeout),
            "client_encoding": "UTF8",
            "application_name": given.pop("application_name", "holdfast"),
            "tcp_user_timeout": patience,
        }
        conninfo = make_conninfo("", **{**given, **libpq_tls(given, config.tls), **fixed})
        try:
            connection = psycopg.connect(conninfo, autocommit=True)
            connection.execute("SELECT set_config('TimeZone', %s, false)", (_zone(config.time_zone),))
        except psycopg.Error as error:
            raise _not_connected(self.server, error) from error
        return PostgresqlConnection(connection, self.server)

    def can_be_bound(self, value: Any) -> bool:
        return super().can_be_bound(value) and not (isinstance(value, str) and "\0" in value)

    # --- expressions -------------------------------------------------------------------------------------------

    def key_value(self, column: Column) -> str:
        return column.quoted if column.kind in (Kind.INTEGER, Kind.TEXT) else f"{column.quoted}::text"

    def as_text(self, column: Column) -> str:
        return f"encode({column.quoted}, 'hex')" if column.kind is Kind.BINARY else f"{column.quoted}::text"

    def version(self, column: Column, unit: str) -> str:  # noqa: ARG002 - integers are versions as they are
        if column.kind is Kind.INTEGER:
            return f"{column.quoted}::bigint"
        if column.kind is not Kind.TIME:
            raise Refused(f"column {column.name} must be an integer or a time to be the version of a row")
        return f"floor(extract(epoch FROM {column.quoted}::timestamptz) * 1000)::bigint"

    def changed_since(self, column: Column, unit: str, time: float) -> Condition | None:
        if column.kind is Kind.INTEGER:
            return Condition(f"{column.quoted} >= %s", [math.floor(time * UNITS[unit])])
        return Condition(f"{column.quoted} >= to_timestamp(%s)", [time])

    def is_deleted(self, column: Column) -> str:
        if column.kind is Kind.BOOLEAN:
            return f"coalesce({column.quoted}, false)"
        if column.kind in (Kind.INTEGER, Kind.NUMBER):
            return f"coalesce({column.quoted}, 0) <> 0"
        return f"{column.quoted} IS NOT NULL"

    def document(self, fields: Mapping[str, Column]) -> str:
        # A row has no bound of fields, while json_build_object takes 50.
        columns = ", ".join(f"{column.quoted} AS {self.quoted(name)}" for name, column in fields.items())
        return f"(SELECT row_to_json(_fields) FROM (SELECT {columns}) AS _fields)::text"

    def json_text(self, column: Column) -> str:
        return f"{column.quoted}::text"

    def has_valid_json(self, column: Column) -> bool:
        return column.kind is Kind.JSON

    def changed_rows(self, mark: Json) -> Condition | None:
        # Compared by age, as ids of transactions wrap around.
        return Condition("age(_rows.xmin) <= age(%s::text::xid)", [str(int(mark["oldest"]) % _XIDS)])

    # --- transactions and statistics ---------------------------------------------------------------------------

    def watermark(self, connection: Connection) -> dict[str, Json]:
        ((is_standby,),) = connection.rows("SELECT pg_is_in_recovery()")
        if is_standby:
            raise Refused(f"{self.server} is a standby: which changes are still open can be seen at the primary only")
        # An id of our own: every transaction that has changed something by now has a lower one. It is taken before the
        # sessions are listed; a transaction that ends in between is visible.
        ((following, oldest),) = connection.rows("SELECT txid_current(), txid_snapshot_xmin(txid_current_snapshot())")
        ((time, hidden),) = connection.rows(
            "SELECT extract(epoch FROM least(now(), min(xact_start)))::float8, "
            f"coalesce(bool_or(query = '{_HIDDEN}'), false) OR EXISTS (SELECT 1 FROM pg_prepared_xacts "
            "WHERE database = current_database()) FROM pg_stat_activity WHERE datname = current_database()"
        )
        return {"time": None if hidden else time, "oldest": oldest, "next": following}

    def settled(self, connection: Connection, mark: Mapping[str, Json]) -> bool:
        ((oldest,),) = connection.rows("SELECT txid_snapshot_xmin(txid_current_snapshot())")
        return int(oldest) >= int(mark["next"])

    def estimated_rows(self, connection: Connection, table: Sequence[str]) -> int | None:
        name = ".".join(self.quoted(part) for part in table)
        ((rows,),) = connection.rows("SELECT reltuples::bigint FROM pg_class WHERE oid = %s::regclass", [name])
        return int(rows) if rows > 0 else None

    def nullable(self, connection: Connection, table: Sequence[str]) -> set[str]:
        found = connection.rows(
            "SELECT attname FROM pg_attribute WHERE attrelid = %s::regclass AND attnum > 0 AND NOT attnotnull",
            [".".join(self.quoted(part) for part in table)],
        )
        return {str(name) for (name,) in found}

    def unique_keys(self, connection: Connection, table: Sequence[str]) -> list[frozenset[str]]:
        name = ".".join(self.quoted(part) for part in table)
        found = connection.rows(
            "SELECT i.indexrelid, a.attname FROM pg_index i JOIN pg_attribute a ON a.attrelid = i.indrelid "
            "AND a.attnum = ANY (i.indkey[0:i.indnkeyatts - 1]) WHERE i.indrelid = %s::regclass AND i.indisunique "
            "AND i.indpred IS NULL AND i.indexprs IS NULL AND i.indisvalid",
            [name],
        )
        return [
            frozenset(str(column) for index, column in found if index == each) for each in {row[0] for row in found}
        ]


def _zone(name: str) -> str:
    """The zone for PostgreSQL: an offset in the form of POSIX, where the sign is reversed; a name unchanged."""
    if name[:1] not in "+-":
        return name
    return f"<{name}>{'-' if name[0] == '+' else '+'}{name[1:]}"


def _translated(server: str, error: psycopg.Error) -> SourceUnavailable | BatchError:
    code = error.sqlstate or ""
    message = f"{server}: {(str(error).strip().splitlines() or [type(error).__name__])[0]}"
    is_silent = not code and isinstance(error, psycopg.OperationalError | psycopg.InterfaceError)
    return SourceUnavailable(message) if is_silent or code.startswith(_AWAY) else BatchError(message)


def _not_connected(server: str, error: psycopg.Error) -> SourceUnavailable | Refused:
    text = str(error)
    hint = TLS_HINT if any(word in text for word in ("SSL", "certificate")) else ""
    is_refused = ("FATAL" in text and any(word in text for word in _REFUSALS)) or (error.sqlstate or "")[:2] == "22"
    return (Refused if is_refused else SourceUnavailable)(f"{server} cannot be used: {text.strip()}{hint}")
