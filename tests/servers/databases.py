"""The two kinds of database behind one set of words, for tests that are the same on both."""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import psycopg
import pymysql
from pydantic import BaseModel

from holdfast.config.secrets import Secret
from holdfast.leases.store import ClaimingStore, ClaimRequest
from holdfast.stores.mysql import MysqlConfig
from holdfast.stores.mysql.store import MysqlStore
from holdfast.stores.postgresql import PostgresqlConfig
from holdfast.stores.postgresql.store import PostgresqlStore
from holdfast.testing.rows import PIPELINE
from tests.servers.processes import PASSWORD, Server

PREFIXES = (f"t{number}_" for number in itertools.count())


class Database(ABC):
    """One running server, a set of tables on it, and connections of somebody else."""

    name: str
    store: Callable[..., ClaimingStore]
    config: type[BaseModel]

    def __init__(self, server: Server) -> None:
        self.server = server
        self.prefix = next(PREFIXES)
        self.table = f'"{self.prefix}lease"'
        self.versions = f'"{self.prefix}schema_version"'

    def settings(self, **changes: Any) -> Any:
        """Settings for tables that no other test uses."""
        return self.config.model_validate(
            {
                "host": "127.0.0.1",
                "port": self.server.port,
                "database": self.name,
                "user": self.server.user,
                "password": Secret(PASSWORD),
                "table_prefix": self.prefix,
                # A machine that stands still for a while is not what these tests are about.
                "statement_timeout": "120s",
                "connect_timeout": "60s",
                **changes,
            }
        )

    def make_store(self, *clock: str, **changes: Any) -> ClaimingStore:
        """A store on these tables, with the server's clock unless SQL for another is given."""
        return self.store(self.settings(**changes), *clock)

    def factory(self, *clock: str) -> partial[ClaimingStore]:
        """The same for another process."""
        return partial(self.store, self.settings(), *clock)

    @abstractmethod
    def connect(self) -> Any:
        """A connection of somebody else, in a transaction until it commits or is closed."""

    @contextmanager
    def session(self) -> Iterator[Any]:
        """A cursor in a transaction that is rolled back at the end, unless the test commits it."""
        connection = self.connect()
        try:
            yield connection.cursor()
        finally:
            connection.rollback()
            connection.close()

    def lock(self, cursor: Any, key: str) -> None:
        """Lock one row and no other, as the whole primary key allows."""
        row = f'{self.table} WHERE "pipeline" = %s AND "run" = %s AND "key" = %s'
        cursor.execute(f"SELECT 1 FROM {row} FOR UPDATE", (PIPELINE, "", key))

    def run(self, *statements: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Run statements and commit them; `values` are for the last one, and its rows are answered."""
        connection = self.connect()
        try:
            cursor = connection.cursor()
            for text in statements[:-1]:
                cursor.execute(text)
            cursor.execute(statements[-1], values)
            rows = list(cursor.fetchall()) if cursor.description else []
            connection.commit()
        finally:
            connection.close()
        return rows


class Postgresql(Database):
    name = "postgres"
    store = staticmethod(PostgresqlStore)
    config = PostgresqlConfig

    def connect(self) -> psycopg.Connection[Any]:
        return psycopg.connect(
            host="127.0.0.1", port=self.server.port, dbname=self.name, user=self.server.user, password=PASSWORD
        )


class Mariadb(Database):
    name = "tests"
    store = staticmethod(MysqlStore)
    config = MysqlConfig

    def connect(self) -> pymysql.connections.Connection[Any]:
        return pymysql.connect(
            host="127.0.0.1",
            port=self.server.port,
            user=self.server.user,
            password=PASSWORD,
            database=self.name,
            init_command="SET SESSION sql_mode = 'ANSI_QUOTES', innodb_lock_wait_timeout = 2",
        )


def request(limit: int = 1, **changes: Any) -> ClaimRequest:
    """A claim by "me", with these changes."""
    return replace(ClaimRequest(PIPELINE, "me", "claim", limit), **changes)


class TurnableServerClock:
    """A clock in a table, which all connections see."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._table = f'"{database.prefix}clock"'
        self.sql = f"(SELECT t FROM {self._table})"
        database.run(f"CREATE TABLE {self._table} (t double precision)", f"INSERT INTO {self._table} VALUES (1000000)")

    def turn(self, seconds: float) -> None:
        self._database.run(f"UPDATE {self._table} SET t = t + %s", values=(seconds,))
