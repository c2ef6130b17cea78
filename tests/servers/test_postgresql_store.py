from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import psycopg
import pytest
from hypothesis import settings

from holdfast.config.secrets import Secret
from holdfast.leases.lease import Key
from holdfast.leases.store import Store
from holdfast.stores.postgresql import PostgresqlConfig
from holdfast.stores.postgresql.store import PostgresqlStore
from holdfast.testing.stores import StoreBehaviour, StoreMachine
from tests.servers.processes import PASSWORD, PostgresqlServer

PREFIXES = (f"t{number}_" for number in itertools.count())


@pytest.fixture(scope="module", autouse=True)
def server(postgresql_server: PostgresqlServer) -> Iterator[PostgresqlServer]:
    PostgresqlMachine.server = postgresql_server
    yield postgresql_server


def config_of(server: PostgresqlServer, **changes: Any) -> PostgresqlConfig:
    """Settings for tables that no other test uses."""
    return PostgresqlConfig.model_validate(
        {
            "host": "127.0.0.1",
            "port": server.port,
            "database": "postgres",
            "user": server.user,
            "password": Secret(PASSWORD),
            "table_prefix": next(PREFIXES),
            **changes,
        }
    )


@contextmanager
def raw(config: PostgresqlConfig) -> Iterator[psycopg.Connection[Any]]:
    """A connection of somebody else."""
    with psycopg.connect(
        host=config.host, port=config.port, dbname=config.database, user=config.user, password=PASSWORD, autocommit=True
    ) as connection:
        yield connection


class TurnableServerClock:
    """A clock in a table, which all connections see."""

    def __init__(self, config: PostgresqlConfig) -> None:
        self._config = config
        self._table = f'"{config.table_prefix}clock"'
        self.sql = f"(SELECT at FROM {self._table})"
        with raw(config) as db:
            db.execute(f"CREATE TABLE {self._table} AS SELECT 1000000::float8 AS at")

    def turn(self, seconds: float) -> None:
        with raw(self._config) as db:
            db.execute(f"UPDATE {self._table} SET at = at + %s", (seconds,))


class TestPostgresqlStore(StoreBehaviour):
    @pytest.fixture(autouse=True)
    def one_table(self, server: PostgresqlServer) -> None:
        self.config = config_of(server)
        self.clock = TurnableServerClock(self.config)

    def make_store(self) -> Store:
        return PostgresqlStore(self.config, self.clock.sql)

    def child_factory(self) -> Callable[[], Store]:
        return partial(PostgresqlStore, self.config, self.clock.sql)

    def pass_time(self, seconds: float) -> None:
        self.clock.turn(seconds)

    def corrupt(self, store: Store, key: Key) -> None:
        with raw(self.config) as db:
            db.execute(
                f"UPDATE {self.config.table_prefix}lease SET body = left(body, 20) "
                "WHERE pipeline = %s AND run = %s AND key = %s",
                key,
            )


class PostgresqlMachine(StoreMachine):
    server: PostgresqlServer

    def make_store(self) -> Store:
        config = config_of(self.server)
        self.clock = TurnableServerClock(config)
        return PostgresqlStore(config, self.clock.sql)

    def pass_time(self, seconds: float) -> None:
        self.clock.turn(seconds)


TestPostgresqlStoreAgainstTheModel = PostgresqlMachine.TestCase
TestPostgresqlStoreAgainstTheModel.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)
