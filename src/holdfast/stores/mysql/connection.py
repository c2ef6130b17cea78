"""Connections to MariaDB and MySQL, and the classification of their errors."""

from __future__ import annotations

import math
from contextlib import suppress
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit

import pymysql
from pymysql.connections import Connection
from pymysql.constants import CLIENT, CR, ER

from holdfast.config.sql_tls import TLS_HINT, is_encrypted, pymysql_tls
from holdfast.errors import SchemaMismatch, StoreError, StoreUnavailable
from holdfast.leases.store import SMALLEST_BODY
from holdfast.stores._sql import Connections
from holdfast.stores.mysql import MysqlConfig

TRIES = 5
CLASHES = (ER.LOCK_DEADLOCK, ER.LOCK_WAIT_TIMEOUT, ER.CHECKREAD)
"""Conflicts with another transaction. The whole transaction is rolled back and repeated: 1205 undoes only the last
statement."""
NO_TABLE = ER.NO_SUCH_TABLE
DUPLICATE = ER.DUP_ENTRY

_LOST = (0, CR.CR_SERVER_GONE_ERROR, CR.CR_SERVER_LOST, CR.CR_CONN_HOST_ERROR, 1927, ER.SERVER_SHUTDOWN, 4031)
READ_ONLY = (ER.OPTION_PREVENTS_STATEMENT, 1792, 1836)
_FULL = (ER.CON_COUNT_ERROR, ER.TOO_MANY_USER_CONNECTIONS, ER.DISK_FULL, ER.RECORD_FILE_FULL)
_PASSING = (*CLASHES, *_LOST, *READ_ONLY, *_FULL)
"""Errors that may pass with time."""
_OTHER_TABLES = (NO_TABLE, ER.BAD_FIELD_ERROR, ER.BAD_TABLE_ERROR)
_REFUSED = (ER.ACCESS_DENIED_ERROR, ER.DBACCESS_DENIED_ERROR, ER.BAD_DB_ERROR, 1698)

_PINGED_AFTER = 1.0
"""Idle seconds after which a connection is tested before it is used."""


class _Server(NamedTuple):
    host: str
    port: int
    user: str
    password: str
    database: str


def connections(config: MysqlConfig) -> Connections[Connection[Any]]:
    """Connections as the settings describe them. Raises `StoreError` if the URL cannot be read."""
    server = _server(config)
    return Connections(lambda: _connect(server, config), _usable, close)


def server_name(config: MysqlConfig) -> str:
    """The server's name in messages, without any secret."""
    server = _server(config)
    return f"mysql at {server.host}:{server.port}/{server.database}"


def code_of(error: pymysql.Error) -> int:
    return error.args[0] if error.args and isinstance(error.args[0], int) else -1


def in_words(where: str, error: pymysql.Error) -> StoreError | StoreUnavailable:
    """The store's error for a statement that was not applied."""
    code = code_of(error)
    message = f"{where}: {error.args[-1] if error.args else error}"
    if code in _PASSING:
        return StoreUnavailable(message)
    if code in _OTHER_TABLES:
        return SchemaMismatch(f"{where}: its tables are not those of holdfast: {error.args[-1]}")
    return StoreError(message)


def largest_body(db: Connection[Any], where: str) -> int:
    """The largest body that surely fits into one packet of this server. Raises `StoreError` if that is too little."""
    cursor = db.cursor()
    cursor.execute("SELECT @@max_allowed_packet")
    (packet,) = cursor.fetchone() or (0,)
    # Any byte may be escaped by a second one, and the rest of the row and the statement come on top.
    most = (int(packet) - 64 * 1024) // 2
    if most < SMALLEST_BODY:
        raise StoreError(f"{where}: max_allowed_packet is {packet} bytes; rows of holdfast need 1M, better 16M or more")
    return most


def roll_back(db: Connection[Any]) -> None:
    """Roll back the transaction; close the connection if that fails."""
    try:
        db.rollback()
    except (pymysql.Error, OSError):
        # The server ends the transaction of a connection that is gone.
        close(db)


def close(db: Connection[Any]) -> None:
    with suppress(pymysql.Error, OSError):
        db.close()


def _usable(db: Connection[Any], idle_for: float) -> bool:
    if not db.open:
        return False
    if idle_for < _PINGED_AFTER:
        return True
    try:
        db.ping(reconnect=False)
    except (pymysql.Error, OSError):
        return False
    return True


def _connect(server: _Server, config: MysqlConfig) -> Connection[Any]:
    patience = math.ceil(config.statement_timeout)
    # All tries together wait no longer than one statement may.
    lock_wait = max(1, patience // TRIES)
    tls = _tls(server.host, config)
    try:
        db = pymysql.connect(
            **server._asdict(),
            charset="utf8mb4",
            autocommit=True,
            # An UPDATE returns how many rows it met, not how many it changed.
            client_flag=CLIENT.FOUND_ROWS,
            connect_timeout=math.ceil(config.connect_timeout),
            read_timeout=patience + 1,
            write_timeout=patience + 1,
            init_command=(
                "SET SESSION sql_mode = 'ANSI_QUOTES,STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION', "
                f"time_zone = '+00:00', innodb_lock_wait_timeout = {lock_wait}, {_limits_of_silence(patience)}"
            ),
            **tls,
        )
        if "ssl" in tls and not is_encrypted(db):
            close(db)
            raise StoreError(f"mysql at {server.host}:{server.port} does not offer TLS{TLS_HINT}")
        db.cursor().execute("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED")
        return db
    except pymysql.Error as error:
        hint = TLS_HINT if "SSL" in str(error.args[-1:]) else ""
        message = f"mysql at {server.host}:{server.port}/{server.database} cannot be reached: {error.args[-1]}{hint}"
        # Waiting changes neither a password nor a right.
        raise (StoreError if code_of(error) in _REFUSED else StoreUnavailable)(message) from error


def _limits_of_silence(patience: int) -> str:
    """How long the server waits for the client, so that a client that hangs in a transaction loses its locks.

    MariaDB has a limit for transactions. MySQL has only a limit for idle connections, which is longer than a heartbeat
    here, because reconnecting takes time.
    """
    of_transactions = f" /*M!100300 , idle_transaction_timeout = {patience} */"
    of_packets = f"net_read_timeout = {patience}, net_write_timeout = {patience}"
    return f"wait_timeout = {math.ceil(1.5 * patience)}, {of_packets}{of_transactions}"


def _tls(host: str, config: MysqlConfig) -> dict[str, Any]:
    tls = config.tls
    try:
        return pymysql_tls(host, tls, is_given=bool(tls.model_fields_set), check_host=tls.check_host)
    except OSError as error:
        files = ", ".join(str(path) for path in (tls.ca, tls.cert, tls.key) if path is not None)
        raise StoreError(f"the mysql store's tls: {files} cannot be used: {error.strerror or error}") from None


def _server(config: MysqlConfig) -> _Server:
    if config.url is not None:
        return _server_of_url(config.url.reveal())
    password = "" if config.password is None else config.password.reveal()
    return _Server(config.host, config.port, config.user, password, config.database)


def _server_of_url(text: str) -> _Server:
    try:
        url = urlsplit(text)
        port = url.port or 3306
    except ValueError:
        url, port = urlsplit(""), 0
    if url.scheme not in {"mysql", "mariadb"} or not url.hostname or url.query:
        # It is not repeated: it may hold the password.
        usage = "write mysql://user:password@host:port/database"
        raise StoreError(f"the url of the mysql store cannot be read; {usage}")
    user, password = unquote(url.username or "holdfast"), unquote(url.password or "")
    return _Server(url.hostname, port, user, password, unquote(url.path.strip("/")))
