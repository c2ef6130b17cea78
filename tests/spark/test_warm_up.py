"""A session's first tasks: they load what sinks need on every core, and tell in words when Spark runs none."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from pyspark.sql import SparkSession

from holdfast.errors import UsageError
from holdfast.flow.staging import Stager, Staging
from holdfast.spark.task import run_tasks, warm_up

pytestmark = pytest.mark.spark


@dataclass(frozen=True)
class Noting(Stager):
    """Leaves a file for each time that it was asked to get ready."""

    folder: Path

    def columns(self, fields: Any) -> Mapping[str, Any]:
        raise NotImplementedError

    def begin(self) -> Staging:
        raise NotImplementedError

    def warm_up(self) -> None:
        (self.folder / uuid4().hex).touch()


class Broken(Noting):
    def warm_up(self) -> None:
        raise ModuleNotFoundError("no module named thrift")


def test_every_core_gets_ready_for_every_sink(spark: SparkSession, tmp_path: Path) -> None:
    warm_up(spark, [Noting(tmp_path), Noting(tmp_path)])
    assert len(list(tmp_path.iterdir())) == 2 * spark.sparkContext.defaultParallelism


def test_a_session_that_cannot_run_tasks_is_refused_with_its_reason(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no module named thrift"):
        warm_up(spark, [Broken(tmp_path)])


def test_tasks_with_and_without_a_frame_are_run_by_the_same_workers(spark: SparkSession, tmp_path: Path) -> None:
    # By value: workers do not have this module.
    def who(_task: int) -> Iterator[int]:
        import os

        yield os.getpid()

    def who_in_frame(numbers: Iterator[Any]) -> Iterator[Any]:
        import os

        import pyarrow as pa

        for batch in numbers:
            yield pa.RecordBatch.from_pydict({"pid": [os.getpid()] * batch.num_rows})

    warm_up(spark, [Noting(tmp_path)])
    cores = spark.sparkContext.defaultParallelism
    found = {*run_tasks(spark, cores, who).collect(), *run_tasks(spark, cores, who).collect()}
    found |= {row.pid for row in spark.range(0, cores, 1, cores).mapInArrow(who_in_frame, "pid long").collect()}
    assert len(found) <= cores
