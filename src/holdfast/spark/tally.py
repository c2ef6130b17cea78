"""Counts faults where they are read, to find processors that drop them.

A function as harmless as `orders.where("amount > 0")` drops every row with a fault, because its other columns are null.
The dead letter would be lost, or worse: an object that could not be read would pass for one that was read.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pyspark import AccumulatorParam

from holdfast.errors import BatchError
from holdfast.flow.source import FAULT_COLUMN

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class _ByTask(AccumulatorParam[dict[int, int]]):
    """Faults by task number: a task that ran twice counts once."""

    def zero(self, value: dict[int, int]) -> dict[int, int]:  # noqa: ARG002 - Spark's interface
        return {}

    def addInPlace(self, value1: dict[int, int], value2: dict[int, int]) -> dict[int, int]:  # noqa: N802 - Spark's name
        return {**value1, **value2}


class FaultTally:
    """How many rows with faults the tasks of one job have read. Picklable into these tasks."""

    def __init__(self, spark: SparkSession) -> None:
        self._read = spark.sparkContext.accumulator({}, _ByTask())

    def counted(self, task: int, portions: Iterator[Any]) -> Iterator[Any]:
        """The same rows; their faults are counted when the last was taken."""
        faults = 0
        for rows in portions:
            column = rows.column(FAULT_COLUMN)
            faults += len(column) - column.null_count
            yield rows
        if faults:
            self._read.add({task: faults})

    def counted_here(self, portions: Iterator[Any]) -> Iterator[Any]:
        """As `counted`, for the Spark task in which it is called."""
        from pyspark import TaskContext

        context = TaskContext.get()
        return self.counted(0 if context is None else context.partitionId(), portions)

    def compare(self, staged: int) -> None:
        """Raise `BatchError` if fewer faults came to the sinks than were read."""
        read = sum(self._read.value.values())
        if staged < read:
            raise BatchError(
                f"{read - staged} of {read} rows with a fault are gone: a processor must keep the rows whose "
                f"{FAULT_COLUMN} is not null, or records that cannot be read would be lost in silence"
            )
