"""The real stores that a soak runs on: how nodes reach them, what can go wrong with them, and plain SQL beside them."""

from __future__ import annotations

import random
import sqlite3
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import psycopg
import pymysql

from tests.servers.processes import MariadbServer, PostgresqlServer, Server, running
from tests.soak import history
from tests.soak.proxy import BadNetwork

Fault = Callable[[random.Random], None]
PATIENCE = {"connect_timeout": "1s", "statement_timeout": "2s"}
SOAK_USER = "soak"


class Ground(ABC):
    """One store. `prepare` is called when its tables are there."""

    plugin: str
    table = '"holdfast_lease"'
    versions = '"holdfast_schema_version"'

    @abstractmethod
    def settings(self) -> dict[str, Any]:
        """What the plugin is configured with, on a node."""

    @abstractmethod
    def run(self, *statements: str) -> list[tuple[Any, ...]]:
        """Run plain statements past all faults; answers the rows of the last one."""

    @abstractmethod
    def prepare(self) -> None:
        """Keep a history from now on."""

    @abstractmethod
    def faults(self) -> Mapping[str, Fault]:
        """What can go wrong with the store or the way to it. Each may block for some seconds."""

    def calm(self) -> None:
        """Nothing is wrong any more."""

    def history(self) -> list[history.Version]:
        return history.versions(self.run(history.READ))

    def open_rows(self) -> tuple[int, int]:
        """How many partitions there are, and how many of them are not completed."""
        ((total,),) = self.run(history.ALL_ROWS.format(table=self.table))
        ((unfinished,),) = self.run(history.OPEN_ROWS.format(table=self.table))
        return int(total), int(unfinished)


class SqliteGround(Ground):
    plugin = "sqlite"
    table = "lease"
    versions = "schema_version"

    def __init__(self, folder: Path) -> None:
        self._path = folder / "leases.db"

    def settings(self) -> dict[str, Any]:
        return {"path": str(self._path), "busy_timeout": 2.0}

    def run(self, *statements: str) -> list[tuple[Any, ...]]:
        with closing(sqlite3.connect(self._path, timeout=60.0)) as db, db:
            answers = [db.execute(text).fetchall() for text in statements]
        return answers[-1]

    def prepare(self) -> None:
        self.run(*history.for_sqlite(self.table))

    def faults(self) -> Mapping[str, Fault]:
        return {"somebody locks the file": self._lock}

    def _lock(self, dice: random.Random) -> None:
        db = sqlite3.connect(self._path, timeout=1.0, isolation_level=None)
        # A frozen node may have the lock, and it is not woken before this returns.
        with closing(db), suppress(sqlite3.OperationalError):
            db.execute("BEGIN IMMEDIATE")
            time.sleep(4.0 * dice.random())


class ServerGround(Ground):
    """A server of its own, and a bad network before it."""

    def __init__(self, server: Server, network: BadNetwork) -> None:
        self.server = server
        self.network = network

    @abstractmethod
    def connect(self) -> Any:
        """A connection past the network, which commits by itself."""

    def settings(self) -> dict[str, Any]:
        return {"host": "127.0.0.1", "port": self.network.port, **PATIENCE}

    def run(self, *statements: str) -> list[tuple[Any, ...]]:
        with closing(self.connect()) as connection, connection.cursor() as cursor:
            for text in statements:
                cursor.execute(text)
            return list(cursor.fetchall()) if cursor.description else []

    def faults(self) -> Mapping[str, Fault]:
        network = self.network
        return {
            "server stops and starts": self._restart,
            "server crashes and starts": self._crash,
            "network holds everything": lambda dice: network.hold(5.0 * dice.random() ** 2),
            "network holds requests": lambda dice: network.hold_requests(5.0 * dice.random() ** 2),
            "network holds answers": lambda dice: network.hold_answers(5.0 * dice.random() ** 2),
            "network breaks connections": lambda _: network.drop(),
            "network refuses connections": lambda dice: network.refuse(3.0 * dice.random() ** 2),
            "network loses answers": lambda dice: network.lose_answers(dice.randint(1, 8)),
            "network repeats connections": lambda dice: network.repeat(dice.randint(1, 6)),
        }

    def calm(self) -> None:
        self.network.lose_answers(0)

    def _restart(self, dice: random.Random) -> None:
        self.server.stop()
        time.sleep(2.0 * dice.random() ** 2)
        self.server.start()

    def _crash(self, dice: random.Random) -> None:
        self.server.crash()
        time.sleep(2.0 * dice.random() ** 2)
        self.server.start()


class PostgresqlGround(ServerGround):
    plugin = "postgresql"

    def settings(self) -> dict[str, Any]:
        return {**super().settings(), "database": "postgres", "user": "postgres", "tls": {"mode": "disable"}}

    def connect(self) -> psycopg.Connection[Any]:
        address = {"host": "127.0.0.1", "port": self.server.port, "dbname": "postgres", "user": "postgres"}
        return psycopg.connect(**address, autocommit=True)  # type: ignore[arg-type]

    def prepare(self) -> None:
        self.run(*history.for_postgresql(self.table))


class MariadbGround(ServerGround):
    plugin = "mysql"

    def settings(self) -> dict[str, Any]:
        return {**super().settings(), "database": "tests", "user": SOAK_USER}

    def connect(self) -> pymysql.connections.Connection[Any]:
        return pymysql.connect(
            host="127.0.0.1",
            port=self.server.port,
            user=SOAK_USER,
            database="tests",
            autocommit=True,
            init_command="SET SESSION sql_mode = 'ANSI_QUOTES'",
        )

    def prepare(self) -> None:
        self.run(*history.for_mariadb(self.table))


class OpenPostgresql(PostgresqlServer):
    """Lets everybody of this host in without a password, so that a connection can be repeated."""

    def initialise(self) -> None:
        super().initialise()
        (self.folder / "data" / "pg_hba.conf").write_text("host all all 127.0.0.1/32 trust\n")


class OpenMariadb(MariadbServer):
    """Has a user without a password, so that a connection can be repeated."""

    def initialise(self) -> None:
        super().initialise()
        with (self.folder / "users.sql").open("a") as users:
            users.write(f"CREATE USER IF NOT EXISTS '{SOAK_USER}'@'127.0.0.1';\n")
            users.write(f"GRANT ALL ON *.* TO '{SOAK_USER}'@'127.0.0.1';\n")


@contextmanager
def ground(store: str, folder: Path, seed: int) -> Iterator[Ground]:
    """The store of that name, running; ended when it is left."""
    if store == "sqlite":
        yield SqliteGround(folder)
    elif store == "postgresql":
        with running(OpenPostgresql, max_connections="400") as postgresql, BadNetwork(postgresql.port, seed) as network:
            yield PostgresqlGround(postgresql, network)
    elif store == "object":
        from tests.soak.object_ground import ObjectGround, VersioningS3

        with running(VersioningS3) as s3, BadNetwork(s3.port, seed) as network:
            objects = ObjectGround(s3, network)
            objects.make_bucket()
            yield objects
    else:
        with running(OpenMariadb, **{"max-connections": "400"}) as mariadb, BadNetwork(mariadb.port, seed) as network:
            yield MariadbGround(mariadb, network)
