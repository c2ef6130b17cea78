"""Rounds through the Spark engine without a node: files in, reports and published files out."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from holdfast.buckets.bucket import Published, StagedFile
from holdfast.buckets.local import LocalBucket
from holdfast.flow.batch import Batch, Cut, Limits
from holdfast.flow.engine import Failed, Report, Staged
from holdfast.flow.pipeline import Pipeline, Routes
from holdfast.flow.processor import Processor
from holdfast.leases.lease import Lease, Ownership, Status
from holdfast.processors.python import PythonFunction
from holdfast.registry import Registry
from holdfast.sinks.files import PLUGIN as FILES
from holdfast.sources.objects import PLUGIN as OBJECTS
from holdfast.spark.engine import SparkEngine

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PIPELINE = "orders"
PATIENCE = 300.0


class Site:
    """A folder of objects, an engine, and one output folder per sink."""

    def __init__(self, spark: SparkSession, root: Path) -> None:
        self.spark = spark
        self.root = root
        self.engine = SparkEngine(spark, {})
        self._ids = map("batch{}".format, itertools.count(1))
        (root / "in").mkdir()
        self.reading()

    def put(self, name: str, data: bytes | str) -> None:
        (self.root / "in" / name).write_bytes(data.encode() if isinstance(data, str) else data)

    def reading(
        self,
        *functions: Callable[[Any], Any] | Processor,
        sinks: Mapping[str, Any] | None = None,
        rounds: int = 2,
        routes: Routes = Routes(),
        **settings: Any,
    ) -> None:
        """How the pipeline reads, what it does to rows, which formats it writes, and which rows go where."""
        processors = [
            function if isinstance(function, Processor) else PythonFunction(f"tests:{function.__name__}", function)
            for function in functions
        ]
        self.source = OBJECTS.build(OBJECTS.config(folder=self.root / "in", **settings))
        self.sinks = {
            name: FILES.build(name, FILES.config(root=self.root / name, format=form), Registry.installed())
            for name, form in (sinks or {"out": "parquet"}).items()
        }
        self.engine.close()
        pipeline = Pipeline(self.source, processors, self.sinks, routes)
        self.engine = SparkEngine(self.spark, {PIPELINE: pipeline}, rounds=rounds)

    def batches(self, limits: Limits = Limits()) -> list[Batch]:
        """All batches of all objects, as a node would plan them one after the other."""
        found: list[Batch] = []
        for partition in self.source.discover({}):
            lease = Lease(PIPELINE, partition.key, spec=partition.spec, ownership=Ownership(Status.ASSIGNED, "n", 7))
            (plan,) = self.source.plan([lease], limits)
            while isinstance(plan, Cut):
                found.append(Batch(next(self._ids), lease, self.source.name(lease), plan))
                lease = replace(lease, progress=replace(lease.progress, position=plan.end))
                (plan,) = self.source.plan([lease], limits)
        return found

    def run(self, batches: Sequence[Batch] | None = None) -> dict[str, Report]:
        """The report of each batch, by file name; the last one where a file has several."""
        chosen = self.batches() if batches is None else batches
        reports = self.carried(chosen)
        assert sorted(report.batch_id for report in reports) == sorted(batch.id for batch in chosen)
        names = {batch.id: str(batch.lease.spec["path"]) for batch in chosen}
        return {names[report.batch_id]: report for report in reports}

    def carried(self, batches: Sequence[Batch]) -> list[Report]:
        """Every report that comes until the engine has room again."""
        self.engine.submit(PIPELINE, batches)
        return self.reports()

    def reports(self) -> list[Report]:
        """Everything that comes until nothing is out."""
        found: list[Report] = []
        deadline = time.monotonic() + PATIENCE
        while self.engine._rounds:
            assert time.monotonic() < deadline, "the engine is stuck"
            found += self.engine.poll(0.2)
        return found + self.engine.poll(0)

    def publish(self, reports: Mapping[str, Report] | Sequence[Report], sink: str = "out") -> list[dict[str, Any]]:
        """Make visible what was staged; answers the files."""
        bucket = LocalBucket(self.root / sink)
        listed = reports.values() if isinstance(reports, Mapping) else reports
        files = [file for report in listed if isinstance(report, Staged) for file in report.receipts[sink]["files"]]
        results = bucket.publish([StagedFile(file["staged"], file["key"], file["sha256"]) for file in files])
        assert results == [Published.DONE] * len(files)
        return files

    def rows(self, sink: str = "out") -> list[dict[str, Any]]:
        """All records that a reader of the folder finds, file by file in order of names."""
        found: list[dict[str, Any]] = []
        for path in sorted((self.root / sink).rglob("*")):
            below = path.relative_to(self.root / sink)
            if path.is_file() and not any(part.startswith("_") for part in below.parts):
                found += read_file(path)
        return found

    def dead_letters(self, sink: str = "out") -> list[dict[str, Any]]:
        folder = self.root / sink / "_holdfast" / "deadletters"
        return [json.loads(line) for path in sorted(folder.rglob("*.jsonl")) for line in path.read_text().splitlines()]


def read_file(path: Path) -> list[dict[str, Any]]:
    if path.suffix == ".parquet":
        return list(pq.read_table(path).to_pylist())
    packing = {".gz": "gzip", ".zst": "zstd"}.get(path.suffix)
    with pa.input_stream(str(path), compression=packing) as stream:
        return [json.loads(line) for line in stream.read().splitlines()]


def staged(report: Report) -> Staged:
    assert isinstance(report, Staged), report
    return report


def failed(report: Report) -> Failed:
    assert isinstance(report, Failed), report
    return report


def lines(count: int, first: int = 0) -> str:
    return "".join(json.dumps({"id": first + number, "note": f"n{number}"}) + "\n" for number in range(count))
