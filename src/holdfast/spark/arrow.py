"""Arrow record batches in and out of Spark."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from holdfast.flow.source import BATCH_COLUMN, TaskRows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from holdfast.spark.tally import SourceTally


def run_tasks(spark: SparkSession, tasks: int, work: Callable[[int], Iterator[Any]], schema: Any) -> DataFrame:
    """A lazy frame of what `work` yields for each task number; one Spark task each."""

    def numbered(numbers: Iterator[Any]) -> Iterator[Any]:
        for batch in numbers:
            for number in batch.column(0).to_pylist():
                yield from work(number)

    return spark.range(0, tasks, 1, tasks).mapInArrow(numbered, schema)


def frame_of(spark: SparkSession, read: TaskRows, tally: SourceTally | None = None) -> DataFrame:
    """The frame of rows that tasks make themselves; `tally` counts the rows that come out of it."""
    if not read.tasks:
        return spark.createDataFrame([], read.schema)

    def rows(task: int) -> Iterator[Any]:
        portions = map(_plain, read.rows(task))
        return portions if tally is None else tally.counted(task, portions)

    return run_tasks(spark, read.tasks, rows, read.schema)


def _plain(rows: Any) -> Any:
    """The same rows without dictionaries, which Spark does not take."""
    import pyarrow as pa

    place = rows.schema.get_field_index(BATCH_COLUMN)
    column = rows.column(place)
    if pa.types.is_dictionary(column.type):
        return rows.set_column(place, BATCH_COLUMN, column.dictionary_decode())
    return rows
