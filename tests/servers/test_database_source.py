"""The source `database` on real servers: PostgreSQL and MariaDB."""

from __future__ import annotations

import time
import uuid
from typing import Any

import pytest

from holdfast.errors import Refused, SourceUnavailable
from holdfast.flow.tables import Sizing
from holdfast.sources.database import PLUGIN
from holdfast.sources.database.source import DatabaseSource
from tests.servers.databases import Database, Mariadb, Postgresql
from tests.servers.live_tables import ServerTables, TableServer, changed, copied
from tests.servers.processes import MariadbServer, PostgresqlServer, free_port
from tests.servers.tombstones import TombstoneCases


@pytest.fixture(scope="module", params=["postgresql", "mariadb"])
def database(request: pytest.FixtureRequest) -> Database:
    if request.param == "postgresql":
        server: PostgresqlServer = request.getfixturevalue("postgresql_server")
        return Postgresql(server)
    mariadb: MariadbServer = request.getfixturevalue("mariadb_server")
    return Mariadb(mariadb)


def built(url: str, entity: dict[str, Any]) -> DatabaseSource:
    return DatabaseSource(PLUGIN.config.model_validate({"url": url, "entities": {"e": entity}}))


class TestServerTables(TombstoneCases):
    @pytest.fixture
    def server(self, database: Database) -> TableServer:
        return ServerTables(database)

    def test_uuid_keys(self, server: ServerTables, table: str) -> None:
        keys = [str(uuid.UUID(int=n << 90)) for n in range(1, 30)]
        server.run(f"CREATE TABLE {table} (id UUID PRIMARY KEY, v INTEGER)")
        server.fill(table, [(key, 1) for key in keys])
        source = server.source({"e": {"table": table, "key": "id"}})
        assert sorted(copied(source, "e", 4)) == sorted(keys)
        assert set(source.present("e", [*keys, "not a uuid"])) == set(keys)

    def test_a_transaction_that_commits_late_is_not_missed(self, server: ServerTables, table: str) -> None:
        server.run(
            f"CREATE TABLE {table} (id BIGINT PRIMARY KEY, updated {server.time} DEFAULT CURRENT_TIMESTAMP)",
            f"INSERT INTO {table} (id, updated) VALUES (1, '2020-01-01')",
        )
        source = server.source({"e": {"table": table, "key": "id", "updated_at": "updated"}}, clock_skew="0s")
        with server.session() as late:
            late.execute(f"INSERT INTO {table} (id) VALUES (2)")
            first = source.watermark()
            assert source.settled(first) is False
            assert sorted(copied(source, "e")) == ["1"]
            second = source.watermark()
            late.connection.commit()
        assert changed(source, "e", first) == ["2"]
        assert changed(source, "e", second, 2) == ["2"]
        for mark in (first, second):
            while not source.settled(mark):  # MariaDB shows open transactions a moment late
                time.sleep(0.1)

    def test_times_without_a_zone_are_of_the_zone_that_is_set(self, server: ServerTables, table: str) -> None:
        kind = "TIMESTAMP" if isinstance(server.database, Postgresql) else "DATETIME"
        server.run(
            f"CREATE TABLE {table} (id BIGINT PRIMARY KEY, updated {kind})",
            f"INSERT INTO {table} VALUES (1, '2026-07-01 12:00:00')",
        )
        entity = {"e": {"table": table, "key": "id", "updated_at": "updated"}}
        versions = [
            copied(server.source(entity, time_zone=zone), "e")["1"]["document_version"] for zone in ("UTC", "+02:00")
        ]
        assert versions[0] - versions[1] == 2 * 3600 * 1000

    def test_a_wrong_password_is_refused_and_a_server_that_is_away_is_waited_for(self, server: ServerTables) -> None:
        def opened(url: str) -> None:
            built(url, {"table": "t", "key": "id"}).open()

        address, name = server.url.rpartition("@")[2].split("/")
        scheme, user = server.url.partition(":")[0], server.database.server.user
        with pytest.raises(Refused, match="cannot be used"):
            opened(f"{scheme}://{user}:wrong@{address}/{name}")
        with pytest.raises(Refused, match="nowhere"):
            opened(f"{server.url.rpartition('/')[0]}/nowhere")
        with pytest.raises(SourceUnavailable):
            opened(f"{scheme}://{user}:x@127.0.0.1:{free_port()}/{name}")

    def test_a_connection_that_the_server_ends_is_one_that_is_away(self, server: ServerTables) -> None:
        is_postgresql = isinstance(server.database, Postgresql)
        end = "SELECT pg_terminate_backend(pg_backend_pid())" if is_postgresql else "KILL CONNECTION_ID()"
        source = server.source({"e": {"table": "t", "key": "id"}})
        with source._dialect.connected() as connection, pytest.raises(SourceUnavailable):
            connection.rows(end)


class TestPostgresqlRows:
    """What only PostgreSQL knows: which transaction changed a row."""

    @pytest.fixture
    def server(self, postgresql_server: PostgresqlServer) -> ServerTables:
        return ServerTables(Postgresql(postgresql_server))

    def test_changed_rows_are_found_without_a_column_of_times(self, server: ServerTables) -> None:
        server.run(
            "CREATE TABLE plain (id BIGINT PRIMARY KEY, v JSONB)", "INSERT INTO plain VALUES (1, '{}'), (2, '{}')"
        )
        source = server.source({"e": {"table": "plain", "key": "id", "json": "v"}})
        with server.session() as late:
            late.execute("UPDATE plain SET v = '{\"a\": 1}' WHERE id = 2")
            mark = source.watermark()
            late.connection.commit()
        assert changed(source, "e", mark) == ["2"]

    def test_hidden_sessions_leave_no_time_to_trust(self, server: ServerTables) -> None:
        server.run(
            "CREATE ROLE reader LOGIN PASSWORD 'r'",
            "CREATE TABLE seen (id BIGINT PRIMARY KEY, updated TIMESTAMPTZ)",
            "GRANT SELECT ON seen TO reader",
            "INSERT INTO seen VALUES (1, '2020-01-01')",
        )
        reader = built(
            f"postgresql://reader:r@{server.url.rpartition('@')[2]}",
            {"table": "seen", "key": "id", "updated_at": "updated"},
        )
        with server.session() as late:
            late.execute("UPDATE seen SET updated = '2019-01-01'")
            mark = reader.watermark()
            late.connection.commit()
        assert mark["time"] is None
        assert changed(reader, "e", mark) == ["1"]
        assert len(list(reader.copy_partitions(["e"], Sizing()))) == 1
