"""The first tasks of a session, before there is work: what every later task finds loaded and compiled.

The first job of a JVM takes seconds, in which a node that has joined would hold leases and do nothing for them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from holdfast.errors import UsageError
from holdfast.flow.staging import Stager
from holdfast.spark.arrow import run_tasks
from holdfast.spark.failures import readable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def warm_up(spark: SparkSession, stagers: Sequence[Stager]) -> None:
    """Run a task on every core that loads what these stagers need; blocks until all are done.

    Raises `UsageError` when Spark cannot run a task at all, for example because executors have another Python.
    """
    try:
        run_tasks(spark, spark.sparkContext.defaultParallelism, partial(_prepared, stagers), "task long").collect()
    except Exception as error:
        raise UsageError(f"Spark cannot run a task of holdfast: {readable(error)}") from error


def _prepared(stagers: Sequence[Stager], _task: int) -> Iterator[Any]:
    for stager in stagers:
        stager.warm_up()
    yield from ()
