"""Rows of tables through Spark: read and staged in tasks, or through a processor, and cut short at keys."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from holdfast.flow.batch import Batch, Cut, Limits
from holdfast.flow.engine import Staged
from holdfast.flow.pipeline import Pipeline
from holdfast.flow.processor import Processor
from holdfast.flow.tables import Sizing
from holdfast.processors.sql import PLUGIN as SQL
from holdfast.registry import Registry
from holdfast.sinks.files import PLUGIN as FILES
from holdfast.spark.job import run_job
from holdfast.testing.source_setting import at
from tests.servers.live_tables import SqliteFile, leased

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

UPPER = ("entity", "document_id", "document_version", "deleted", "upper(document) AS document")


@pytest.mark.parametrize("processors", [[], [UPPER]], ids=["in tasks", "through Spark"])
def test_a_partition_is_read_in_batches_that_end_at_keys(
    spark: SparkSession, tmp_path: Path, processors: list[tuple[str, ...]]
) -> None:
    server = SqliteFile(tmp_path)
    server.run("CREATE TABLE t (a TEXT, b INTEGER, PRIMARY KEY (a, b))")
    server.fill("t", [(f"k{n % 2}", n) for n in range(25)])
    source = server.source({"e": {"table": "t", "key": ["a", "b"]}})
    config = FILES.config(root=tmp_path / "out", format="parquet")
    steps: list[Processor] = [SQL.build(SQL.config.model_validate({"select": select})) for select in processors]
    pipeline = Pipeline(source, steps, {"files": FILES.build("files", config, Registry.installed())})
    lease = leased(next(iter(source.copy_partitions(["e"], Sizing()))))
    counts, ends = [], []
    for number in range(3):
        (plan,) = source.plan([lease], Limits(max_records=10))
        assert isinstance(plan, Cut)
        (report,) = run_job(spark, pipeline, [Batch(f"b{number}", lease, source.name(lease), plan)])
        assert isinstance(report, Staged), report
        assert report.last == (number == 2)
        lease = at(lease, report.end, report.counts.processed)
        counts.append(report.counts.processed)
        ends.append(report.end)
    assert counts == [10, 10, 5]
    assert ends == [{"after": ["k0", 18], "row": 10}, {"after": ["k1", 13], "row": 20}, {"done": True}]
