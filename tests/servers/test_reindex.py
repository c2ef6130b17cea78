"""A reindex run from a real database into a real OpenSearch, whose driver dies at every step, while rows change.

The driver, the steps of the promotion, the reading of rows and their staging are the product's own; only Spark and the
run's row are left out.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from holdfast.assemble import build_pipeline
from holdfast.config import load_text
from holdfast.flow.batch import Batch, Cut, Limits
from holdfast.flow.fault import decode_fault
from holdfast.flow.run import GroupStats, Run, RunStatus
from holdfast.flow.run_driver import End, Extend, Wait
from holdfast.flow.source import FAULT_COLUMN, ITEM_COLUMN
from holdfast.flow.staging import staged_batch
from holdfast.flow.tables import TABLE_COLUMNS
from holdfast.leases.lease import Json, Partition, new_lease
from holdfast.registry import Registry
from holdfast.runs.index_check import IndexCheck
from holdfast.runs.reindex import ReindexDriver
from holdfast.runs.reindex_configuration import ReindexConfiguration
from holdfast.runs.reindex_pipeline import promotion_of
from tests.servers.opensearch import OpenSearchServer
from tests.servers.search_traffic import Reader, Writer, create_users

FILE = """\
source_coordination: {{store: {{in_memory: {{}}}}}}
pipelines:
  catalog:
    source:
      database:
        url: sqlite:///{folder}/app.db
        clock_skew: 1s
        entities:
          users: {{table: users, key: id, updated_at: changed, index: people}}
    sinks:
      - opensearch: {{hosts: ["{endpoint}"], mode: staged}}
"""


class Killed(BaseException):
    """The node is gone."""


class CrashPoints:
    """Passes calls on, and kills the caller the first time that a method is called, and when it returns."""

    def __init__(self, target: object, passed: set[tuple[str, str]]) -> None:
        self._target = target
        self._passed = passed

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._target, name)

        def call(*args: Any, **options: Any) -> Any:
            self._die_once(name, "before")
            result = found(*args, **options)
            self._die_once(name, "after")
            return result

        return call if callable(found) else found

    def _die_once(self, name: str, when: str) -> None:
        if (name, when) not in self._passed:
            self._passed.add((name, when))
            raise Killed


class Site:
    """The pipeline, and a run that one driver after the other carries out."""

    def __init__(self, folder: Path, server: OpenSearchServer) -> None:
        create_users(folder / "app.db")
        text = FILE.format(folder=folder, endpoint=server.endpoint)
        settings = load_text(text, "catalog.yaml", Registry.installed())
        self.built = build_pipeline(settings.pipelines["catalog"], Registry.installed())
        self.source: Any = self.built.source
        self.source.open()
        (self.sink,) = self.built.sinks.values()
        self.sink.open("catalog", durable=True)
        self.promotion = promotion_of("catalog", self.built)
        self.runs: dict[str, Run] = {}

    def new_run(self, run_id: str) -> None:
        configuration = ReindexConfiguration(entities=("users",), partition_size=100).encode()
        self.run = Run(run_id, RunStatus.RUNNING, configuration, created_at=float(len(self.runs)))
        self.store()

    def goes_on(self) -> bool:
        return self.run.status is RunStatus.RUNNING

    def store(self, **changes: Any) -> Run:
        self.run = self.runs[self.run.id] = replace(self.run, **changes)
        return self.run

    def drive(self, passed: set[tuple[str, str]] | None = None) -> None:
        """One driver drives the run. With `passed`, it dies at the next step that is not one of these."""
        promotion, keep = self.promotion, self.keep
        if passed is not None:
            wrapped: Callable[[object], Any] = lambda target: CrashPoints(target, passed)  # noqa: E731
            promotion = replace(promotion, tables=wrapped(promotion.tables), indexes=wrapped(promotion.indexes))
            keep = wrapped(self).keep
        driver = ReindexDriver(promotion, self.runs.values)
        if self.run.state is None:
            self.store(state=driver.prepare(self.run))
        if not self.run.groups:
            self.carry(list(driver.partitions(self.run)))
        while self.goes_on():
            step = driver.advance(self.run, keep)
            if isinstance(step, End):
                self.store(status=step.status, error=step.error)
            elif isinstance(step, Wait):
                time.sleep(min(step.seconds, 0.1))
            elif isinstance(step, Extend):
                partitions = list(step.partitions)
                self.store(phase=step.phase, state=step.state)
                self.carry(partitions)

    def keep(self, state: Json) -> Run:
        return self.store(state=state)

    def carry(self, partitions: list[Partition]) -> None:
        for partition in partitions:
            lease, position = new_lease("catalog", partition, "w", run=self.run.id, now=0.0), None
            for number in range(1000):
                lease = replace(lease, progress=replace(lease.progress, position=position))
                (cut,) = self.source.plan([lease], Limits())
                if not isinstance(cut, Cut):
                    break
                batch = Batch(f"{partition.key}.{number}", lease, self.source.name(lease), cut)
                position = self.stage(batch)
        group = self.run.groups.get("users", GroupStats())
        self.store(groups={"users": replace(group, partitions=group.partitions + len(partitions))})

    def stage(self, batch: Batch) -> Json:
        """Read and stage a batch. Returns the position after it."""
        sink: Any = self.sink
        staging, staged, end = sink.stager_for([batch]).begin(), staged_batch(batch), batch.cut.end
        try:
            for rows in self.source.read(None, [batch]).rows(0):
                marked = [decode_fault(text) for text in rows.column(FAULT_COLUMN).to_pylist() if text is not None]
                if marked:
                    end = json.loads(marked[0].raw or "null") or end
                    continue
                assert staging.write(staged, rows.column(ITEM_COLUMN), rows.select(list(TABLE_COLUMNS))) == 0
            staging.finish(staged)
        finally:
            staging.close()
        return end


def test_the_driver_dies_at_every_step_and_neither_a_search_nor_a_change_is_lost(
    opensearch_server: OpenSearchServer, tmp_path: Path
) -> None:
    site = Site(tmp_path, opensearch_server)
    site.new_run("first")
    site.drive()
    assert site.run.status is RunStatus.COMPLETED, site.run.error

    reader, writer = Reader(opensearch_server), Writer(tmp_path / "app.db", opensearch_server)
    passed: set[tuple[str, str]] = set()
    site.new_run("second")
    with reader, writer:
        while site.goes_on():
            with suppress(Killed):
                site.drive(passed)
    assert site.run.status is RunStatus.COMPLETED, site.run.error
    steps = {name for name, _ in passed}
    assert {
        "watermark",
        "create",
        "restore",
        "counts",
        "count",
        "swap",
        "settled",
        "present",
        "finish",
        "keep",
    } <= steps
    assert not reader.misses
    assert reader.searches > 10
    assert writer.changes > 10
    assert site.promotion.indexes.alias("people").indexes == ("staged_people_second",)
    found = IndexCheck(site.promotion).compare("users")
    assert found.agrees, found
    assert found.rows == found.documents
