"""MariaDB 10.6 or later, and MySQL 8, through PyMySQL."""
# ruff: noqa: S608 - names are quoted, and values are parameters

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit

import pymysql
from pymysql.constants import CR, ER, FIELD_TYPE

from holdfast.config.sql_tls import TLS_HINT, is_encrypted, pymysql_tls
from holdfast.errors import BatchError, Refused, SourceUnavailable
from holdfast.leases.lease import Json
from holdfast.sources.database.dialect import COUNTING_TIMEOUT, UNITS, Column, Condition, Connection, Dialect, Kind, Row

_INTEGERS = (FIELD_TYPE.TINY, FIELD_TYPE.SHORT, FIELD_TYPE.INT24, FIELD_TYPE.LONG, FIELD_TYPE.LONGLONG, FIELD_TYPE.YEAR)
_KINDS = dict.fromkeys(_INTEGERS, Kind.INTEGER) | {
    FIELD_TYPE.DECIMAL: Kind.NUMBER, FIELD_TYPE.NEWDECIMAL: Kind.NUMBER, FIELD_TYPE.FLOAT: Kind.NUMBER,
    FIELD_TYPE.DOUBLE: Kind.NUMBER, FIELD_TYPE.TIMESTAMP: Kind.TIME, FIELD_TYPE.DATETIME: Kind.TIME,
    FIELD_TYPE.DATE: Kind.TIME, FIELD_TYPE.JSON: Kind.JSON,
}  # fmt: skip
_TEXTS = (FIELD_TYPE.VARCHAR, FIELD_TYPE.VAR_STRING, FIELD_TYPE.STRING, FIELD_TYPE.BLOB, FIELD_TYPE.TINY_BLOB,
          FIELD_TYPE.MEDIUM_BLOB, FIELD_TYPE.LONG_BLOB)  # fmt: skip
_BINARY_CHARSET = 63
_AWAY = (
    0, CR.CR_SERVER_GONE_ERROR, CR.CR_SERVER_LOST, CR.CR_CONN_HOST_ERROR, 1927, ER.SERVER_SHUTDOWN, 4031,
    ER.CON_COUNT_ERROR, ER.TOO_MANY_USER_CONNECTIONS, ER.LOCK_DEADLOCK, ER.LOCK_WAIT_TIMEOUT, 1969, 3024, 1317,
)  # fmt: skip
"""Errors that may pass: no connection, a shutdown, a timeout, too many clients."""
_REFUSED = (ER.ACCESS_DENIED_ERROR, ER.DBACCESS_DENIED_ERROR, ER.BAD_DB_ERROR, 1698, ER.UNKNOWN_TIME_ZONE)
_NO_PRIVILEGE = ER.SPECIFIC_ACCESS_DENIED_ERROR
_NOW = "UNIX_TIMESTAMP(NOW(6))"
_STALE = 1.0
"""Seconds for which a list of transactions may be out of date: the server keeps it for a moment."""


class _Server(NamedTuple):
    host: str
    port: int
    user: str
    password: str
    database: str


class MysqlConnection(Connection):
    """A connection that commits every statement."""

    def __init__(self, connection: pymysql.connections.Connection[Any], server: str) -> None:
        self._connection: Any = connection
        self._server = server

    def rows(self, text: str, values: Sequence[Any] = ()) -> list[Row]:
        return list(self._executed(text, values).fetchall())

    def describe(self, text: str) -> list[Column]:
        cursor = self._executed(text)
        result = cursor._result  # noqa: SLF001 - only the fields know the character set
        return [_column(field) for field in result.fields] if result is not None else []

    @contextmanager
    def snapshot(self) -> Iterator[None]:
        self._executed("SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        self._executed("START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY")
        # PyMySQL has no public way to wait longer for once.
        patience = self._connection._read_timeout  # noqa: SLF001
        self._connection._read_timeout = COUNTING_TIMEOUT  # noqa: SLF001
        try:
            yield
        finally:
            self._connection._read_timeout = patience  # noqa: SLF001
            with suppress(pymysql.Error, OSError):
                self._connection.rollback()

    def _executed(self, text: str, values: Sequence[Any] = ()) -> Any:
        cursor = self._connection.cursor()
        try:
            cursor.execute(text, tuple(values))
        except (pymysql.Error, OSError) as error:
            raise _translated(self._server, error) from error
        return cursor

    def close(self) -> None:
        with suppress(pymysql.Error, OSError):
            self._connection.close()


class Mysql(Dialect):
    """The SQL of MariaDB and MySQL."""

    quote = "`"

    @cached_property
    def _server(self) -> _Server:
        try:
            url = urlsplit(self.config.url.reveal())
            port = url.port or 3306
        except ValueError:
            url, port = urlsplit(""), 0
        if not url.hostname or url.query:
            # It is not repeated: it may hold the password.
            raise Refused("the url of the database cannot be read; write mysql://user:password@host:port/database")
        user, password = unquote(url.username or "holdfast"), unquote(url.password or "")
        return _Server(url.hostname, port, user, password, unquote(url.path.strip("/")))

    @property
    def server(self) -> str:
        server = self._server
        return f"mysql at {server.host}:{server.port}/{server.database}"

    def connect(self) -> MysqlConnection:
        config = self.config
        patience = math.ceil(config.statement_timeout)
        try:
            tls = pymysql_tls(self._server.host, config.tls, is_given=bool(config.tls.model_fields_set))
            connection = pymysql.connect(
                **self._server._asdict(),
                charset="utf8mb4",
                autocommit=True,
                connect_timeout=math.ceil(config.connect_timeout),
                read_timeout=patience + 1,
                write_timeout=patience + 1,
                **tls,
            )
            if "ssl" in tls and not is_encrypted(connection):
                connection.close()
                raise Refused(f"{self.server} does not offer TLS{TLS_HINT}")
            zone = "+00:00" if config.time_zone == "UTC" else config.time_zone
            connection.cursor().execute("SET SESSION time_zone = %s", (zone,))
        except (pymysql.Error, OSError) as error:
            raise _not_connected(self.server, error) from error
        return MysqlConnection(connection, self.server)

    # --- conditions and expressions ----------------------------------------------------------------------------

    def compared(self, columns: Sequence[Column], operator: str, values: Sequence[Any]) -> Condition:
        """As a series of ORs: MariaDB does not search an index for `(a, b) > (x, y)`."""
        if len(columns) == 1:
            return super().compared(columns, operator, values)
        strict, names = operator[0], [column.quoted for column in columns]
        parts: list[str] = []
        bound: list[Any] = []
        for depth, name in enumerate(names):
            last = operator if depth == len(names) - 1 else strict
            parts.append(" AND ".join([*(f"{earlier} = %s" for earlier in names[:depth]), f"{name} {last} %s"]))
            bound += values[: depth + 1]
        # The first condition is what the index is searched by.
        return Condition(f"{names[0]} {strict}= %s AND (({') OR ('.join(parts)}))", [values[0], *bound])

    def can_be_bound(self, value: Any) -> bool:
        return not isinstance(value, int) or -(1 << 63) <= value < 1 << 64  # unsigned

    def key_value(self, column: Column) -> str:
        return f"CAST({column.quoted} AS CHAR)" if column.kind is Kind.TIME else column.quoted

    def as_text(self, column: Column) -> str:
        return f"LOWER(HEX({column.quoted}))" if column.kind is Kind.BINARY else f"CAST({column.quoted} AS CHAR)"

    def version(self, column: Column, unit: str) -> str:  # noqa: ARG002 - integers are versions as they are
        if column.kind is Kind.INTEGER:
            return column.quoted
        if column.kind is not Kind.TIME:
            raise Refused(f"column {column.name} must be an integer or a time to be the version of a row")
        return f"CAST(FLOOR(UNIX_TIMESTAMP({column.quoted}) * 1000) AS SIGNED)"

    def changed_since(self, column: Column, unit: str, time: float) -> Condition | None:
        if column.kind is Kind.INTEGER:
            return Condition(f"{column.quoted} >= %s", [math.floor(time * UNITS[unit])])
        return Condition(f"{column.quoted} >= FROM_UNIXTIME(%s)", [time])

    def is_deleted(self, column: Column) -> str:
        if column.kind in (Kind.INTEGER, Kind.NUMBER, Kind.BOOLEAN):
            return f"COALESCE({column.quoted}, 0) <> 0"
        return f"{column.quoted} IS NOT NULL"

    def document(self, fields: Mapping[str, Column]) -> str:
        pairs = (f"{_text(self.literal_text(name))}, {self._field(column)}" for name, column in fields.items())
        return f"JSON_OBJECT({', '.join(pairs)})"

    def _field(self, column: Column) -> str:
        if column.kind is Kind.BINARY:
            # It is broken into lines of 76 characters.
            return f"REPLACE(TO_BASE64({column.quoted}), CHAR(10), '')"
        if column.kind is Kind.TIME and column.form != "date":
            # Times of JSON_OBJECT have a space in the middle and no zone.
            return f"DATE_FORMAT({column.quoted}, '%%Y-%%m-%%dT%%H:%%i:%%s.%%f{self._offset}')"
        return column.quoted

    @property
    def _offset(self) -> str:
        zone = self.config.time_zone
        return "Z" if zone == "UTC" else zone if zone[:1] in "+-" else ""

    def has_valid_json(self, column: Column) -> bool:
        return column.kind is Kind.JSON

    # --- transactions and statistics ---------------------------------------------------------------------------

    def watermark(self, connection: Connection) -> dict[str, Json]:
        ((now,),) = connection.rows(f"SELECT {_NOW}")
        age = self._oldest_age(connection, "TRUE")
        return {"time": None if age is None else float(now) - max(age, _STALE), "now": float(now)}

    def settled(self, connection: Connection, mark: Mapping[str, Json]) -> bool:
        ((now,),) = connection.rows(f"SELECT {_NOW}")
        # One that has changed nothing and runs no statement has not read the clock for a change either.
        age = self._oldest_age(connection, "trx_rows_modified > 0 OR trx_query IS NOT NULL")
        if age is None:
            raise Refused(
                f"{self.server}: whether changes are still open can be seen with the privilege PROCESS only; grant it "
                f"to {self._server.user}"
            )
        return float(now) - max(age, _STALE) > float(mark["now"])

    def _oldest_age(self, connection: Connection, which: str) -> float | None:
        """Seconds since the oldest open transaction began, rounded up; 0 if there is none, None if that is hidden."""
        # Starts are shown in the zone of the server, whole seconds.
        now = "CONVERT_TZ(NOW(), @@session.time_zone, 'SYSTEM')"
        try:
            ((age,),) = connection.rows(
                f"SELECT MAX(TIMESTAMPDIFF(SECOND, trx_started, {now})) + 1 FROM information_schema.innodb_trx "
                f"WHERE ({which}) AND trx_mysql_thread_id <> CONNECTION_ID()"
            )
        except BatchError as error:
            if getattr(error.__cause__, "args", (None,))[0] == _NO_PRIVILEGE:
                return None
            raise
        return float(age or 0)

    def estimated_rows(self, connection: Connection, table: Sequence[str]) -> int | None:
        found = connection.rows(
            "SELECT table_rows FROM information_schema.tables WHERE table_schema = COALESCE(%s, DATABASE()) "
            "AND table_name = %s",
            [table[-2] if len(table) > 1 else None, table[-1]],
        )
        return int(found[0][0]) if found and found[0][0] else None

    def nullable(self, connection: Connection, table: Sequence[str]) -> set[str]:
        found = connection.rows(
            "SELECT column_name FROM information_schema.columns WHERE is_nullable = 'YES' AND "
            "table_schema = COALESCE(%s, DATABASE()) AND table_name = %s",
            [table[-2] if len(table) > 1 else None, table[-1]],
        )
        return {str(name) for (name,) in found}

    def unique_keys(self, connection: Connection, table: Sequence[str]) -> list[frozenset[str]]:
        found = connection.rows(
            "SELECT index_name, column_name FROM information_schema.statistics WHERE non_unique = 0 AND "
            "sub_part IS NULL AND table_schema = COALESCE(%s, DATABASE()) AND table_name = %s",
            [table[-2] if len(table) > 1 else None, table[-1]],
        )
        return [
            frozenset(str(column) for index, column in found if index == each) for each in {row[0] for row in found}
        ]


def _column(field: Any) -> Column:
    kind = _KINDS.get(field.type_code, Kind.OTHER)
    if field.type_code in _TEXTS:
        kind = Kind.BINARY if field.charsetnr == _BINARY_CHARSET else Kind.TEXT
    return Column(field.name, kind, "", "date" if field.type_code == FIELD_TYPE.DATE else "")


def _text(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "''")
    return f"'{escaped}'"


def _translated(server: str, error: Exception) -> SourceUnavailable | BatchError:
    code = error.args[0] if error.args else None
    message = f"{server}: {error.args[-1] if error.args else error}"
    # Without a code it is the driver itself that has lost the connection.
    is_away = isinstance(error, OSError | pymysql.InterfaceError) or code in _AWAY
    return SourceUnavailable(message) if is_away else BatchError(message)


def _not_connected(server: str, error: Exception) -> SourceUnavailable | Refused:
    hint = TLS_HINT if "SSL" in str(error) else ""
    is_refused = bool(error.args) and error.args[0] in _REFUSED
    message = f"{server} cannot be used: {error.args[-1] if error.args else error}{hint}"
    return (Refused if is_refused else SourceUnavailable)(message)
