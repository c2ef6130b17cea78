"""Connections to PostgreSQL, and the classification of their errors."""

from __future__ import annotations

import math
import select
from collections.abc import Sequence
from typing import Any, TypeVar

import psycopg
from psycopg import generators
from psycopg.abc import PQGen
from psycopg.abc import Transformer as AbstractTransformer
from psycopg.adapt import Transformer
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.pq import ExecStatus, Format, TransactionStatus
from psycopg.pq.abc import PGresult
from psycopg.rows import TupleRow, tuple_row

from holdfast.config.sql_tls import TLS_HINT, libpq_tls
from holdfast.errors import AnswerLost, SchemaMismatch, StoreError, StoreUnavailable
from holdfast.stores._sql import Connections
from holdfast.stores.postgresql import PostgresqlConfig

T = TypeVar("T")

PLANNING = {
    # Every statement of ours is served by an index. A plan that was made while the table was small is kept for as
    # long as the connection lives, so the planner must not choose one that is good for small tables only.
    "plan_cache_mode": "force_generic_plan",
    "enable_seqscan": "off",
    "enable_bitmapscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
    "jit": "off",
    "default_transaction_isolation": "read\\ committed",
}
KEEPALIVES = {"keepalives_idle": 10, "keepalives_interval": 5, "keepalives_count": 3}

# A commit that is lost with the power would let tokens go back.
_COMMITS_LAST = (
    "SELECT set_config('synchronous_commit', 'on', false) WHERE current_setting('synchronous_commit') = 'off'"
)

_NO_ANSWER = ("08", "57P", "40003")
"""The session ended; its last statement may have been applied or not."""
READ_ONLY = "25006"
_PASSING = ("40001", "40P01", "55P03", "57014", "53", "58", READ_ONLY)
"""The statement was rolled back and may succeed later: conflicts, timeouts, a full disk, a read-only server."""
_OTHER_TABLES = ("42P01", "42703", "42883", "3F000", "42804")
CLASHES = ("40001", "40P01")
"""A deadlock: the server has rolled back this statement."""


class PatientConnection(psycopg.Connection[TupleRow]):
    """A connection on which no call waits for ever: a server that hangs counts as gone."""

    patience: float = 60.0

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self._listener = select.poll()
        self._listener.register(self.fileno(), select.POLLIN)
        self._statements: dict[str, tuple[bytes, AbstractTransformer]] = {}

    def wait(self, gen: PQGen[T], interval: float = 0.1, timeout: float | None = None) -> T:
        """Like the inherited method, but always with a timeout, after which the connection cannot be used any more."""
        return super().wait(gen, interval, self.patience if timeout is None else timeout)

    def usable(self, idle_for: float) -> bool:
        """Whether no statement is running and the server has not closed the connection."""
        # A connection that is closed or broken has no status.
        if self.pgconn.transaction_status != TransactionStatus.IDLE:
            return False
        # An idle server says nothing, unless it is going.
        return not idle_for or not self._listener.poll(0)

    def run_prepared(self, text: str, parameters: Sequence[bytes | None]) -> list[TupleRow]:
        """Rows of a statement with `$1` and so on, prepared on first use. Takes half the time of a cursor."""
        name, rows = self._statements.get(text) or self._prepare_statement(text)
        self.pgconn.send_query_prepared(name, parameters, None, Format.BINARY)
        result = self._result(ExecStatus.TUPLES_OK)
        rows.set_pgresult(result)
        return rows.load_rows(0, result.ntuples, tuple)

    def _prepare_statement(self, text: str) -> tuple[bytes, AbstractTransformer]:
        name = b"holdfast_%d" % len(self._statements)
        self.pgconn.send_prepare(name, text.encode())
        self._result(ExecStatus.COMMAND_OK)
        self._statements[text] = name, Transformer(self)
        return self._statements[text]

    def _result(self, wanted: ExecStatus) -> PGresult:
        results: list[PGresult] = self.wait(generators.execute(self.pgconn))
        for result in results:
            # The rows come before the commit: a commit that fails is reported in a second result.
            if result.status != wanted:
                raise psycopg.errors.error_from_result(result)
        return results[0]


def connections(config: PostgresqlConfig) -> Connections[PatientConnection]:
    """Connections as the settings describe them. Raises `StoreError` if the URL cannot be read."""
    conninfo = _conninfo(config)
    return Connections(lambda: _connect(conninfo, config), PatientConnection.usable, PatientConnection.close)


def server_name(config: PostgresqlConfig) -> str:
    """The server's name in messages, without any secret."""
    if config.url is None:
        return f"postgresql at {config.host}:{config.port}/{config.database}"
    parts = _url_parts(config.url.reveal())
    return f"postgresql at {parts.get('host', 'localhost')}:{parts.get('port', 5432)}/{parts.get('dbname', '')}"


def translated(where: str, error: psycopg.Error, *, writing: bool) -> StoreError | StoreUnavailable:
    """The error as an error of a store. `writing`: the statement that failed might have changed rows."""
    code = error.sqlstate or ""
    silent = not code and isinstance(error, psycopg.OperationalError)
    # The server's own hints may quote rows; its first line says what is wrong.
    message = f"{where}: {str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__}"
    if silent or code.startswith(_NO_ANSWER):
        return AnswerLost(f"{message} (no response)") if writing else StoreUnavailable(message)
    if code.startswith(_PASSING) or isinstance(error, psycopg.InterfaceError):
        return StoreUnavailable(message)
    if code.startswith(_OTHER_TABLES):
        return SchemaMismatch(f"{where}: its tables are not those of holdfast: {error.diag.message_primary}")
    return StoreError(message)


def _connect(conninfo: str, config: PostgresqlConfig) -> PatientConnection:
    try:
        connection = PatientConnection.connect(conninfo, autocommit=True, row_factory=tuple_row)
    except psycopg.Error as error:
        hint = TLS_HINT if any(word in str(error) for word in ("SSL", "certificate")) else ""
        raise StoreUnavailable(f"{server_name(config)} cannot be reached: {error}{hint}") from error
    connection.patience = 1.0 + 1.5 * config.statement_timeout
    # Everything we run we run often; so that preparing always pays.
    connection.prepare_threshold = 0
    try:
        connection.execute(_COMMITS_LAST)
    except psycopg.Error as error:
        connection.close()
        raise StoreUnavailable(f"{server_name(config)}: {error}") from error
    return connection


def _conninfo(config: PostgresqlConfig) -> str:
    patience = str(math.ceil(config.statement_timeout * 1000))
    # A client that is frozen in a transaction, or while it is sent rows, does not keep what it has locked.
    timeouts = dict.fromkeys(("statement_timeout", "idle_in_transaction_session_timeout", "tcp_user_timeout"), patience)
    options = " ".join(f"-c {name}={value}" for name, value in (PLANNING | timeouts).items())
    given = _server(config) if config.url is None else _url_parts(config.url.reveal())
    fixed = {
        "options": f"{given.pop('options', '')} {options}".strip(),
        "connect_timeout": math.ceil(config.connect_timeout),
        "client_encoding": "UTF8",
        "application_name": given.pop("application_name", "holdfast"),
        # A standby would return rows of the past.
        "target_session_attrs": "read-write",
    }
    return make_conninfo("", **{**KEEPALIVES, **given, **libpq_tls(given, config.tls), **fixed})


def _server(config: PostgresqlConfig) -> dict[str, Any]:
    password = {} if config.password is None else {"password": config.password.reveal()}
    return {"host": config.host, "port": config.port, "dbname": config.database, "user": config.user, **password}


def _url_parts(url: str) -> dict[str, Any]:
    try:
        return dict(conninfo_to_dict(url))
    except psycopg.Error:
        # Neither the URL nor the driver's message is repeated: both may hold the password.
        raise StoreError("the url of the postgresql store cannot be read; write postgresql://…") from None
