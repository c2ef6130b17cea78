"""A client that is stopped inside a transaction keeps its rows no longer than the statement timeout of its store."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.process import BaseProcess
from multiprocessing.queues import Queue
from typing import Any

import pytest
from pymysql.cursors import Cursor

from holdfast.errors import Unavailable
from holdfast.leases.lease import Lease
from holdfast.leases.store import ClaimRequest, Outcome, Swap
from holdfast.stores.mysql.connection import connections as mysql_connections
from holdfast.stores.mysql.store import MysqlStore
from holdfast.stores.postgresql.connection import connections as postgresql_connections
from holdfast.testing.rows import make_row, touched
from tests.servers.databases import Database, Mariadb, Postgresql, request
from tests.servers.processes import MariadbServer, PostgresqlServer


class FrozenInAClaim(MysqlStore):
    """Stops its process when the claim has written its rows and not yet committed them."""

    def _claimed(self, cursor: Cursor, request: ClaimRequest) -> list[Lease]:
        claimed = super()._claimed(cursor, request)
        os.kill(os.getpid(), signal.SIGSTOP)
        return claimed


def claim_and_freeze(settings: Any, outcomes: Queue[str]) -> None:
    try:
        FrozenInAClaim(settings).claim(request())
    except Unavailable:
        outcomes.put("away")
    else:
        outcomes.put("claimed")


def lock_and_freeze(take: Callable[[], Any], statement: str) -> None:
    cursor = take().cursor()
    cursor.execute("BEGIN")
    cursor.execute(statement)
    os.kill(os.getpid(), signal.SIGSTOP)


def take_mysql(settings: Any) -> Any:
    return mysql_connections(settings).take()


def take_postgresql(settings: Any) -> Any:
    return postgresql_connections(settings).take()


@contextmanager
def stopped(target: Callable[..., None], *arguments: Any) -> Iterator[BaseProcess]:
    """A process that has stopped itself; it goes on at the end."""
    child = multiprocessing.get_context("fork").Process(target=target, args=arguments)
    child.start()
    assert child.pid is not None
    _, status = os.waitpid(child.pid, os.WUNTRACED)
    assert os.WIFSTOPPED(status)
    try:
        yield child
    finally:
        os.kill(child.pid, signal.SIGCONT)
        child.join(20)
        assert not child.is_alive()


def added(database: Database) -> Lease:
    store, row = database.make_store(), make_row("a")
    store.add([row])
    store.close()
    return row


def written_by_another(database: Database, row: Lease) -> Outcome:
    """What a second client's write of the row comes to, which waits for whoever has locked it."""
    store = database.make_store(statement_timeout="10s")
    (outcome,) = store.swap([Swap(row.version, touched(row))])
    store.close()
    return outcome


def test_a_claim_that_is_frozen_in_mysql_keeps_its_row_for_seconds_only(mariadb_server: MariadbServer) -> None:
    database = Mariadb(mariadb_server)
    row = added(database)
    outcomes: Queue[str] = multiprocessing.get_context("fork").Queue()
    with stopped(claim_and_freeze, database.settings(statement_timeout="1s"), outcomes):
        assert written_by_another(database, row) is Outcome.OK
    assert outcomes.get(timeout=60) == "away"


@pytest.mark.parametrize("kind", ["mariadb", "postgresql"])
def test_a_transaction_that_is_frozen_keeps_its_rows_for_seconds_only(
    kind: str, mariadb_server: MariadbServer, postgresql_server: PostgresqlServer
) -> None:
    database: Database = Mariadb(mariadb_server) if kind == "mariadb" else Postgresql(postgresql_server)
    take = take_mysql if kind == "mariadb" else take_postgresql
    row = added(database)
    settings = database.settings(statement_timeout="1s")
    with stopped(lock_and_freeze, lambda: take(settings), f"SELECT 1 FROM {database.table} FOR UPDATE"):
        assert written_by_another(database, row) is Outcome.OK


def test_silence_alone_ends_a_transaction_where_the_server_knows_no_other_limit(mariadb_server: MariadbServer) -> None:
    # As on MySQL 8, which has no limit for transactions: the one for silence is all that there is.
    database = Mariadb(mariadb_server)
    row = added(database)
    locks = f"SELECT 1 FROM {database.table} FOR UPDATE"
    with take_mysql(database.settings(statement_timeout="1s")) as silent:
        silent.cursor().execute("SET SESSION idle_transaction_timeout = 0")
        silent.begin()
        silent.cursor().execute(locks)
        assert written_by_another(database, row) is Outcome.OK
