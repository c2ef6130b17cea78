"""Counts rows and faults before and after processors, inside the job that carries them.

A function as harmless as `orders.where("amount > 0")` drops every row with a fault, because its other columns are null.
The dead letter would be lost, or worse: an object that could not be read would count as read.

The tasks that read and stage count their rows. Between two processors, Spark counts the rows in the same job if one of
the processors may drop rows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark import AccumulatorParam

from holdfast.errors import BatchError
from holdfast.flow.processor import Processor
from holdfast.flow.source import BATCH_COLUMN, FAULT_COLUMN
from holdfast.spark.failures import Planning

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

OBSERVED = "holdfast_behind_processor_"


def unnamed(*_part: str | int) -> AbstractContextManager[None]:
    """A `Planning` that does not change errors."""
    return nullcontext()


@dataclass(frozen=True, slots=True)
class RowCount:
    """How many rows there are, and how many of them have a fault."""

    rows: int = 0
    faults: int = 0

    @property
    def good(self) -> int:
        return self.rows - self.faults


def dropped_rows(name: str, before: RowCount, after: RowCount) -> int:
    """How many good rows a processor has dropped. Raises `BatchError` if it has dropped a row with a fault."""
    if after.faults < before.faults:
        raise BatchError(
            f"{before.faults - after.faults} of {before.faults} rows with a fault are lost in processor {name}: "
            f"a processor must keep the rows whose {FAULT_COLUMN} is not null, or records that cannot be read would be "
            "lost in silence"
        )
    return max(0, before.good - after.good)


class _ByTask(AccumulatorParam[dict[int, tuple[dict[str | int, int], int]]]):
    """Rows by batch, and faults, by task number: a task that ran twice counts once."""

    def zero(self, value: Any) -> dict[int, tuple[dict[str | int, int], int]]:  # noqa: ARG002 - Spark's interface
        return {}

    def addInPlace(self, value1: Any, value2: Any) -> Any:  # noqa: N802 - Spark's name
        return {**value1, **value2}


class ReadCounts:
    """How many rows the tasks of one job have read. Picklable into these tasks."""

    def __init__(self, spark: SparkSession) -> None:
        self._read = spark.sparkContext.accumulator({}, _ByTask())

    def counted(self, task: int, portions: Iterator[Any]) -> Iterator[Any]:
        """Yield the same rows, and add their count after the last row."""
        read, faults = Counter[str | int](), 0
        for rows in portions:
            read.update(_rows_by_batch(rows.column(BATCH_COLUMN)))
            faults += rows.num_rows - rows.column(FAULT_COLUMN).null_count
            yield rows
        self._read.add({task: (dict(read), faults)})

    def counted_here(self, portions: Iterator[Any]) -> Iterator[Any]:
        """Like `counted`, for the Spark task in which it is called."""
        from pyspark import TaskContext

        context = TaskContext.get()
        return self.counted(0 if context is None else context.partitionId(), portions)

    def rows_by_batch(self, batch_ids: Sequence[str]) -> dict[str, int]:
        """Rows by batch, when the job is done. `batch_ids`: in order, for rows that have the index of their batch."""
        read = Counter[str]()
        for rows, _ in self._read.value.values():
            for batch, number in rows.items():
                read[batch if isinstance(batch, str) else batch_ids[batch]] += number
        return read

    def total(self) -> RowCount:
        """Rows of all batches, when the job is done."""
        by_task = self._read.value.values()
        return RowCount(sum(sum(rows.values()) for rows, _ in by_task), sum(faults for _, faults in by_task))


class ProcessorCounts:
    """Rows before and after each processor of a frame.

    Borders are numbered from 0, before the first processor. Borders between which nothing can change have the same
    count, so that most counts follow from what was read and what was staged.
    """

    def __init__(self, spark: SparkSession, processors: Mapping[str, Processor], planning: Planning = unnamed) -> None:
        """`processors`: by name, in order."""
        self._planning = planning
        self.read = ReadCounts(spark)
        self._processors = dict(processors)
        self._rows = _last_of_same([not processor.keeps_rows for processor in self._processors.values()])
        self._faults = _last_of_same([processor.touches_faults for processor in self._processors.values()])
        self._observed = self._to_observe()

    def _to_observe(self) -> set[int]:
        needed = set[int]()
        for border, processor in enumerate(self._processors.values()):
            if not processor.keeps_rows:
                needed |= {self._rows[border], self._rows[border + 1]} - {self._rows[0], self._rows[-1]}
            if not processor.keeps_rows and processor.touches_faults:
                needed |= {self._faults[border], self._faults[border + 1]} - {self._faults[0], self._faults[-1]}
        return needed

    @property
    def may_fault(self) -> bool:
        """Whether a processor may give rows faults, for which it needs each record as it was read."""
        return any(processor.may_fault for processor in self._processors.values())

    def processed(self, frame: DataFrame) -> DataFrame:
        """The frame after all processors."""
        for border, processor in enumerate(self._processors.values(), 1):
            with self._planning("processors", border - 1):
                frame = processor.apply(frame)
            if border in self._observed:
                frame = _observing(frame, border)
        return frame

    def dropped(self, job: DataFrame, staged: RowCount) -> dict[str, int]:
        """By processor, the good rows that it has dropped in `job`, which is done.

        Raises `BatchError` if rows with a fault were lost.
        """
        read = self.read.total()
        observed = {border: _observed(job, border) for border in self._observed}
        rows = {border: count.rows for border, count in observed.items()}
        rows |= {self._rows[-1]: staged.rows, self._rows[0]: read.rows}
        faults = {border: count.faults for border, count in observed.items()}
        faults |= {self._faults[-1]: staged.faults, self._faults[0]: read.faults}
        dropped = {}
        for border, (name, processor) in enumerate(self._processors.items()):
            if not processor.keeps_rows:
                # Faults that are not counted are the same on both sides.
                before, after = (
                    RowCount(rows[self._rows[side]], faults.get(self._faults[side], 0)) for side in (border, border + 1)
                )
                dropped[name] = dropped_rows(name, before, after)
        return {name: number for name, number in dropped.items() if number}


def _rows_by_batch(batches: Any) -> dict[str | int, int]:
    """Rows by the value of the column `_batch`."""
    import pyarrow as pa

    if pa.types.is_dictionary(batches.type) and len(batches.dictionary) == 1:
        return {batches.dictionary[0].as_py(): len(batches)}
    return {entry["values"]: entry["counts"] for entry in batches.value_counts().to_pylist()}


def _last_of_same(changes: Sequence[bool]) -> list[int]:
    """For each border, the last border that has the same count. `changes`: whether each processor may change it."""
    borders = [len(changes)]
    for border in range(len(changes) - 1, -1, -1):
        borders.insert(0, border if changes[border] else borders[0])
    return borders


def _observing(frame: DataFrame, border: int) -> DataFrame:
    from pyspark.sql import functions as sql

    counted = (sql.count(sql.lit(1)).alias("rows"), sql.count(FAULT_COLUMN).alias("faults"))
    return frame.observe(f"{OBSERVED}{border}", *counted)


def _observed(job: DataFrame, border: int) -> RowCount:
    # An `Observation` would take the first query that has it, which may be a query that a user's function runs.
    metrics = job._jdf.queryExecution().observedMetrics()  # noqa: SLF001 - pyspark has no public way
    found = metrics.get(f"{OBSERVED}{border}")
    if found.isEmpty():
        raise BatchError(f"Spark has not counted the rows after processor {border}; lost rows would go unnoticed")
    return RowCount(int(found.get().getLong(0)), int(found.get().getLong(1)))
