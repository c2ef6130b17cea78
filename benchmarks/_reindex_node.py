"""A node that carries out reindex runs, in a process of its own, with a Spark session as `holdfast reindex` has it.

Peers that use Spark have another session, with none of the settings that suit a node.
"""

from __future__ import annotations

import multiprocessing
import os
import tempfile
import time
import traceback
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks._process_cpu import cpu_by_process, cpu_seconds
from holdfast.assemble import StoredPipeline, build_pipelines, coordinator_of, new_session
from holdfast.config import load_text
from holdfast.config.models import Settings
from holdfast.engines import engine_of
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
from holdfast.spark.session import stop_session
from holdfast.stores.sqlite import SqliteStore

FILE = """\
source_coordination: {{store: {{in_memory: {{}}}}}}
spark: {{conf: {{spark.driver.memory: 2g}}}}
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
PATIENCE = 60.0


@dataclass(frozen=True)
class Cpu:
    """CPU seconds of client, database and search server."""

    client: float
    database: float
    search: float

    @property
    def total(self) -> float:
        return self.client + self.database + self.search


@dataclass(frozen=True)
class CpuReading:
    """What the processes have used by now. Spark's are kept apart: it ends idle ones, and their time with them."""

    own: float
    spark: Mapping[int, float]
    database: float
    search: float

    def since(self, before: CpuReading) -> Cpu:
        spark = sum(used - before.spark.get(process, 0.0) for process, used in self.spark.items())
        return Cpu(self.own - before.own + spark, self.database - before.database, self.search - before.search)


class Reindexed(NamedTuple):
    """A run that is COMPLETED."""

    copied: float
    """Seconds until the last row is copied."""
    whole: float
    """Seconds until the run ends."""
    cpu: Cpu
    """Of the copy."""


class Servers(NamedTuple):
    """Where the servers are, and their processes."""

    database: str
    search: str
    database_process: int
    search_process: int

    def cpu(self, spark: Any = None) -> CpuReading:
        """What this process, the servers and the processes of the Spark session have used by now."""
        used = cpu_by_process(spark.sparkContext._gateway.proc.pid) if spark is not None else {}  # noqa: SLF001
        return CpuReading(
            time.process_time(), used, cpu_seconds(self.database_process), cpu_seconds(self.search_process)
        )

    def settings(self, table: str) -> Settings:
        os.environ["BENCH_DATABASE"] = self.database
        return load_text(FILE.format(table=table, endpoint=self.search), "bench.yaml", Registry.installed())


class NodeProcess:
    """The process, as the benchmark sees it."""

    def __init__(self, servers: Servers) -> None:
        context = multiprocessing.get_context("spawn")
        self._connection, other = context.Pipe()
        self._process = context.Process(target=_serve, args=(other, servers))
        self._process.start()
        other.close()

    def reindexed(self, table: str, rows: int, configuration: Mapping[str, Any]) -> Reindexed:
        """Carry out a run. Raises `RuntimeError` if it does not end COMPLETED."""
        self._connection.send((table, rows, dict(configuration)))
        found = self._connection.recv()
        if not isinstance(found, Reindexed):
            raise RuntimeError(found)  # noqa: TRY004 - it is the text of an error
        return found

    def close(self) -> None:
        self._connection.send(None)
        self._process.join(PATIENCE)


# --- in the process -------------------------------------------------------------------------------------------------


def _serve(connection: Connection, servers: Servers) -> None:
    from pyspark.sql import SparkSession

    settings = servers.settings("docs")
    engine_of(settings, build_pipelines(settings, ["catalog"], Registry.installed())).close()
    spark = SparkSession.builder.getOrCreate()
    while (wanted := connection.recv()) is not None:
        try:
            connection.send(_reindexed(servers, spark, *wanted))
        except Exception:  # noqa: BLE001 - the benchmark raises it
            connection.send(traceback.format_exc())
    stop_session(spark)


def _reindexed(servers: Servers, spark: Any, table: str, rows: int, configuration: Mapping[str, Any]) -> Reindexed:
    settings = servers.settings(table)
    progress = _Progress(lambda: servers.cpu(spark), rows)
    with tempfile.TemporaryDirectory() as leases:
        store = SqliteStore(Path(leases, "leases.db"))
        store.open()
        stored = StoredPipeline(settings, store, "catalog")
        before, began = servers.cpu(spark), time.perf_counter()
        run = _carried_out(stored, ReindexConfiguration(entities=(table,), **configuration).encode(), progress)
        ended = time.perf_counter()
        store.close()
    if run.status is not RunStatus.COMPLETED or progress.cpu is None:
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

    def __init__(self, read_cpu: Callable[[], CpuReading], rows: int) -> None:
        self.copied_at = 0.0
        self.cpu: CpuReading | None = None
        self._read_cpu = read_cpu
        self._left = rows

    def __call__(self, event: Event) -> None:
        if isinstance(event, BatchCommitted):
            self._left -= event.records
            if self._left <= 0 and self.cpu is None:
                self.copied_at, self.cpu = time.perf_counter(), self._read_cpu()
