"""A table in PostgreSQL, OpenSearch, a Spark session for peers, and a node that carries out reindex runs."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks._reindex_node import CpuReading, NodeProcess, Reindexed, Servers
from holdfast.spark.session import start_session, stop_session
from tests.servers.databases import Postgresql
from tests.servers.live_tables import ServerTables
from tests.servers.opensearch import RoomyServer
from tests.servers.processes import PostgresqlServer, cache_folder, running

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BODY = """json_build_object('id', n, 'name', 'product ' || n, 'price', n % 1000 + 0.5, 'text', (
    SELECT string_agg('word' || (n * 7919 + k * 104729) % 1009, ' ') FROM generate_series(1, 115) AS k))"""


@dataclass(frozen=True)
class Site:
    """What the cases share."""

    spark: SparkSession
    database: PostgresqlServer
    tables: ServerTables
    search: RoomyServer
    node: NodeProcess
    has_jars: bool
    """Whether the session has PostgreSQL's JDBC driver and OpenSearch's connector."""

    def fill(self, table: str, rows: int) -> None:
        """A table of rows of about 1 KB."""
        self.tables.run(
            f"CREATE TABLE {table} (id BIGINT PRIMARY KEY, doc JSON, changed TIMESTAMPTZ)",
            f"INSERT INTO {table} SELECT n, {BODY}, now() - interval '1 day' FROM generate_series(1, {rows}) AS n",
            f"CREATE INDEX {table}_changed ON {table} (changed, id)",
            f"ANALYZE {table}",
        )

    def jdbc(self, table: str, rows: int) -> Any:
        """The table as Spark reads it by itself, in four parts."""
        options = {
            "url": f"jdbc:postgresql://127.0.0.1:{self.database.port}/{self.tables.database.name}",
            "user": self.database.user,
            "password": (self.database.folder / "password").read_text(),
            "driver": "org.postgresql.Driver",
            "dbtable": f"(SELECT id, doc::text AS doc FROM {table}) AS rows_",
            "partitionColumn": "id",
            "lowerBound": "1",
            "upperBound": str(rows),
            "numPartitions": "4",
            "fetchsize": "5000",
        }
        return self.spark.read.format("jdbc").options(**options).load()

    def cpu(self, *, with_spark: bool = True) -> CpuReading:
        """What this process, the servers and, for a peer that uses it, Spark have used by now."""
        return servers_of(self.database, self.tables, self.search).cpu(self.spark if with_spark else None)


def servers_of(database: PostgresqlServer, tables: ServerTables, search: RoomyServer) -> Servers:
    return Servers(tables.url, search.endpoint, database.pid, search.pid)


@contextmanager
def site(*, with_jars: bool = True) -> Iterator[Site]:
    jars = peer_jars() if with_jars else []
    with running(PostgresqlServer) as database, running(RoomyServer) as search:
        tables = ServerTables(Postgresql(database))
        node = NodeProcess(servers_of(database, tables, search))
        spark = start_session("bench", {"spark.driver.memory": "2g"}, "local[2]", jars)
        try:
            yield Site(spark, database, tables, search, node, bool(jars))
        finally:
            node.close()
            stop_session(spark)


def peer_jars() -> list[Path]:
    """The jars of the peers, which come by Maven; none if they cannot be had."""
    folder = cache_folder() / "reindex-peers-1"
    script = Path(__file__).parents[1] / "scripts/fetch_jars.sh"
    if subprocess.run(["sh", str(script), "reindex-peers", str(folder)], check=False).returncode:
        print("reindex: without Spark JDBC and opensearch-spark: their jars cannot be had", file=sys.stderr)
        return []
    return sorted(folder.glob("*.jar"))


def reindexed(where: Site, table: str, rows: int, **configuration: Any) -> Reindexed:
    """Carry out a run by the node."""
    return where.node.reindexed(table, rows, configuration)


def new_index(client: Any, name: str, body: Mapping[str, Any] | None = None) -> None:
    """An empty index with the settings that a staged index has."""
    client.indices.delete(index=name, ignore_unavailable=True)
    settings = {"number_of_shards": 1, "number_of_replicas": 0, "refresh_interval": "-1"}
    client.indices.create(index=name, body={"settings": settings, **(body or {})})
