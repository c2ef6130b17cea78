"""The gate: where a batch that turns out larger than planned is cut short.

Sizes are planned from means and known only when records are read. Rows of a batch come in order and in one task, or the
source would not tell sizes, so that everything from the first row that does not fit belongs to the next batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow.compute as pc
from pyspark import AccumulatorParam

from holdfast.flow.source import ITEM_COLUMN, SIZE_COLUMN
from holdfast.flow.staging import StagedBatch
from holdfast.spark.portions import by_batch, rows_of_size

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass
class Passed:
    """What came through of one batch. `end` is the first item that did not; None if all did."""

    size: int = 0
    end: int | None = None


class Gate:
    """In one attempt of one task."""

    def __init__(self, batches: Mapping[str, StagedBatch]) -> None:
        self.passed: dict[str, Passed] = {}
        self._batches = batches

    def admit(self, batch_id: str, rows: Any) -> Any:
        """The rows that still fit, without their sizes. A first row always does, however large."""
        passed = self.passed.setdefault(batch_id, Passed())
        if passed.end is not None:
            return rows.slice(0, 0)
        if SIZE_COLUMN not in rows.schema.names:
            return rows
        sizes = rows.column(SIZE_COLUMN)
        most, number = self._batches[batch_id].max_bytes, rows.num_rows
        if most is not None:
            number = max(rows_of_size(sizes, most - passed.size), 0 if passed.size else 1)
        self.stop(batch_id, rows, number)
        rows = rows.slice(0, number)
        passed.size += int(pc.sum(sizes.slice(0, number)).as_py() or 0)
        return rows.drop_columns([SIZE_COLUMN])

    def stop(self, batch_id: str, rows: Any, number: int) -> None:
        """The batch ends after so many of these rows, if there are more."""
        if number < rows.num_rows:
            self.cut(batch_id, rows.column(ITEM_COLUMN)[number].as_py())

    def cut(self, batch_id: str, end: int) -> None:
        """The batch ends before that item, or where it ends already."""
        known = self.passed[batch_id].end
        self.passed[batch_id].end = end if known is None else min(known, end)


class _ByTask(AccumulatorParam[dict[str, tuple[int, int | None]]]):
    """By batch; a task that ran twice tells the same twice."""

    def zero(self, value: Any) -> dict[str, tuple[int, int | None]]:  # noqa: ARG002 - Spark's interface
        return {}

    def addInPlace(self, value1: Any, value2: Any) -> Any:  # noqa: N802 - Spark's name
        return {**value1, **value2}


class GateBefore:
    """The gate as a step of its own, for frames that are processed before they are staged. Picklable into tasks."""

    def __init__(self, spark: SparkSession, batches: Sequence[StagedBatch]) -> None:
        self._batches = {batch.id: batch for batch in batches}
        self._told = spark.sparkContext.accumulator({}, _ByTask())

    def through(self, portions: Iterator[Any]) -> Iterator[Any]:
        """The rows that fit."""
        gate, order = Gate(self._batches), list(self._batches)
        for rows in portions:
            for batch_id, own in by_batch(rows, order):
                admitted = gate.admit(batch_id, own)
                if admitted.num_rows:
                    yield admitted
        self._told.add({batch_id: (one.size, one.end) for batch_id, one in gate.passed.items()})

    def passed(self) -> dict[str, Passed]:
        """By batch, when the job is done."""
        return {batch_id: Passed(size, end) for batch_id, (size, end) in self._told.value.items()}
