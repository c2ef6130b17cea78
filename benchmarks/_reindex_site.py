"""A table in PostgreSQL, OpenSearch and a Spark session, and a whole node that carries out a reindex run."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from benchmarks._process_cpu import cpu_seconds
from benchmarks.scan import RoomyServer
from holdfast.assemble import StoredPipeline, coordinator_of, new_session
from holdfast.config import load_text
from holdfast.events import BatchCommitted, Event
from holdfast.flow.node import Node
from holdfast.flow.run import Run, RunStatus
from holdfast.flow.runs import Runs
from holdfast.leases.world import host_world
from holdfast.registry import Registry
from holdfast.runs.execution import NewRun, RunCommand, engine_beside
from holdfast.runs.reindex_configuration import ReindexConfiguration
from holdfast.runs.reindex_pipeline import run_pipeline
from holdfast.service import open_pipelines
from holdfast.spark.session import start_session, stop_session
from holdfast.stores.sqlite import SqliteStore
from tests.servers.databases import Postgresql
from tests.servers.live_tables import ServerTables
from tests.servers.processes import PostgresqlServer, cache_folder, running

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BODY = """json_build_object('id', n, 'name', 'product ' || n, 'price', n % 1000 + 0.5, 'text', (
    SELECT string_agg('word' || (n * 7919 + k * 104729) % 1009, ' ') FROM generate_series(1, 115) AS k))"""
FILE = """\
source_coordination: {{store: {{in_memory: {{}}}}}}
pipelines:
  catalog:
    source:
      database:
        url: ${{env:BENCH_DATABASE}}
        entities:
          {table}: {{table: {table}, key: id, updated_at: changed, json: doc, index: {table}}}
    sinks:
      - opensearch: {{hosts: ["{endpoint}"], mode: staged}}
"""


@dataclass(frozen=True)
class Site:
    """What the cases share."""

    spark: SparkSession
    database: PostgresqlServer
    tables: ServerTables
    search: RoomyServer
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

    def cpu(self, *, with_spark: bool = True) -> Cpu:
        """What all processes have used by now. Without Spark: its idle workers end in between."""
        gateway: Any = self.spark.sparkContext._gateway  # noqa: SLF001 - only it knows the process
        spark = cpu_seconds(gateway.proc.pid) if with_spark else 0.0
        return Cpu(time.process_time() + spark, cpu_seconds(self.database.pid), cpu_seconds(self.search.pid))


@dataclass(frozen=True)
class Cpu:
    """CPU seconds of client, database and search server."""

    client: float
    database: float
    search: float

    @property
    def total(self) -> float:
        return self.client + self.database + self.search

    def since(self, before: Cpu) -> Cpu:
        return Cpu(self.client - before.client, self.database - before.database, self.search - before.search)


@contextmanager
def site(*, with_jars: bool = True) -> Iterator[Site]:
    jars = peer_jars() if with_jars else []
    with running(PostgresqlServer) as database, running(RoomyServer) as search:
        spark = start_session("bench", {"spark.driver.memory": "2g"}, "local[2]", jars)
        try:
            yield Site(spark, database, ServerTables(Postgresql(database)), search, bool(jars))
        finally:
            stop_session(spark)


def peer_jars() -> list[Path]:
    """The jars of the peers, which come by Maven; none if they cannot be had."""
    folder = cache_folder() / "reindex-peers-1"
    script = Path(__file__).parents[1] / "scripts/fetch_jars.sh"
    if subprocess.run(["sh", str(script), "reindex-peers", str(folder)], check=False).returncode:
        print("reindex: without Spark JDBC and opensearch-spark: their jars cannot be had", file=sys.stderr)
        return []
    return sorted(folder.glob("*.jar"))


class Reindexed(NamedTuple):
    """A run that is COMPLETED."""

    copied: float
    """Seconds until the last row is copied."""
    whole: float
    """Seconds until the run ends."""
    cpu: Cpu
    """Of the copy."""


def reindexed(where: Site, table: str, rows: int, **configuration: Any) -> Reindexed:
    """Carry out a run by a whole node in this process."""
    os.environ["BENCH_DATABASE"] = where.tables.url
    settings = load_text(FILE.format(table=table, endpoint=where.search.endpoint), "bench.yaml", Registry.installed())
    progress, before = _Progress(where, rows), where.cpu()
    with tempfile.TemporaryDirectory() as leases:
        store = SqliteStore(Path(leases, "leases.db"))
        store.open()
        stored = StoredPipeline(settings, store, "catalog")
        began = time.perf_counter()
        run = _carried_out(stored, ReindexConfiguration(entities=(table,), **configuration).encode(), progress)
        ended = time.perf_counter()
        store.close()
    if run.status is not RunStatus.COMPLETED:
        raise RuntimeError(f"the run is {run.status}: {run.error}")
    return Reindexed(progress.copied_at - began, ended - began, progress.cpu.since(before))


def _carried_out(stored: StoredPipeline, configuration: Any, note: Callable[[Event], None]) -> Run:
    pipeline, world = run_pipeline(stored, configuration), host_world(note)
    open_pipelines(stored.settings, stored.store, {stored.name: pipeline.built}, world)
    session = new_session(stored.settings, stored.store, world, pipelines=())
    live, engine = coordinator_of(stored, world, session), engine_beside(pipeline)
    run_id = f"bench-{uuid.uuid4().hex[:8]}"
    work = RunCommand(live, run_id, pipeline, engine)
    work.new = NewRun(configuration, "bench")
    Node(session, (), engine, world, companions=[work]).run()
    pipeline.built.close()
    return Runs(live).show(run_id)


class _Progress:
    """Knows when as many rows were committed as there are."""

    def __init__(self, where: Site, rows: int) -> None:
        self.copied_at = 0.0
        self.cpu = where.cpu()
        self._where = where
        self._left = rows

    def __call__(self, event: Event) -> None:
        if isinstance(event, BatchCommitted):
            self._left -= event.records
            if self._left <= 0 and not self.copied_at:
                self.copied_at = time.perf_counter()
                self.cpu = self._where.cpu()


def new_index(client: Any, name: str, body: Mapping[str, Any] | None = None) -> None:
    """An empty index with the settings that a staged index has."""
    client.indices.delete(index=name, ignore_unavailable=True)
    settings = {"number_of_shards": 1, "number_of_replicas": 0, "refresh_interval": "-1"}
    client.indices.create(index=name, body={"settings": settings, **(body or {})})
