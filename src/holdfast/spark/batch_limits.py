"""Cuts short a batch that is larger than planned: in bytes of records, or in files of its commit.

Sizes are planned from means and known only when records are read. A source that gives sizes reads each batch in order
and in one task, so that everything from the first row that does not fit belongs to the next batch.

The files of a commit are known only when rows are staged. There a batch is cut between two records: a processor may
make several rows from a record, so the rows of the last record are kept back until the next record begins. A record is
staged whole or not at all. A record that no commit can hold is a dead letter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import AccumulatorParam

from holdfast.errors import BatchError
from holdfast.flow.source import ITEM_COLUMN, SIZE_COLUMN
from holdfast.flow.staging import Room, StagedBatch
from holdfast.spark.arrow_rows import (
    by_batch,
    first_record,
    items_of,
    joined,
    last_record,
    rows_of_size,
    rows_within,
    with_first_refused,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TOO_MANY_FILES = (
    "this record alone becomes more files than one commit may have; raise max_files of the sink, or let records "
    "have fewer "
    "partition names"
)
Rooms = Callable[[StagedBatch], Sequence[tuple[Room, str | None]]]
"""The room that every sink with a bound has left for a batch, and the column that is true for the sink's rows."""


@dataclass
class Admitted:
    """How much of one batch was admitted. `end` is the first item that was not; None if all were."""

    size: int = 0
    end: int | None = None


class SizeLimit:
    """Admits the rows of batches up to `max_bytes` of each batch. There is one instance per task attempt."""

    def __init__(self, batches: Mapping[str, StagedBatch]) -> None:
        self.admitted: dict[str, Admitted] = {}
        self._batches = batches

    def admit(self, batch_id: str, rows: Any) -> Any:
        """The rows that still fit, without their sizes. The first row always fits, however large."""
        admitted = self.admitted.setdefault(batch_id, Admitted())
        if admitted.end is not None:
            return rows.slice(0, 0)
        if SIZE_COLUMN not in rows.schema.names:
            return rows
        sizes = rows.column(SIZE_COLUMN)
        most, number = self._batches[batch_id].max_bytes, rows.num_rows
        if most is not None:
            number = max(rows_of_size(sizes, most - admitted.size), 0 if admitted.size else 1)
        if number < rows.num_rows:
            self.cut(batch_id, rows.column(ITEM_COLUMN)[number].as_py())
        rows = rows.slice(0, number)
        admitted.size += int(pc.sum(sizes.slice(0, number)).as_py() or 0)
        return rows.drop_columns([SIZE_COLUMN])

    def cut(self, batch_id: str, end: int) -> None:
        """End the batch before that item, unless it ends even earlier."""
        before = self.admitted[batch_id].end
        self.admitted[batch_id].end = end if before is None else min(before, end)


class _ByTask(AccumulatorParam[dict[str, tuple[int, int | None]]]):
    """By batch: size and end. A task that ran twice adds the same values twice."""

    def zero(self, value: Any) -> dict[str, tuple[int, int | None]]:  # noqa: ARG002 - Spark's interface
        return {}

    def addInPlace(self, value1: Any, value2: Any) -> Any:  # noqa: N802 - Spark's name
        return {**value1, **value2}


class SizeLimitStep:
    """The size limit as a separate step, for frames that are processed before they are staged. Picklable."""

    def __init__(self, spark: SparkSession, batches: Sequence[StagedBatch]) -> None:
        self._batches = {batch.id: batch for batch in batches}
        self._added = spark.sparkContext.accumulator({}, _ByTask())

    def admit(self, portions: Iterator[Any]) -> Iterator[Any]:
        """The rows that fit. Called in the task."""
        limit, batch_ids = SizeLimit(self._batches), list(self._batches)
        for rows in portions:
            for batch_id, batch_rows in by_batch(rows, batch_ids):
                fitting = limit.admit(batch_id, batch_rows)
                if fitting.num_rows:
                    yield fitting
        self._added.add({batch_id: (admitted.size, admitted.end) for batch_id, admitted in limit.admitted.items()})

    def admitted(self) -> dict[str, Admitted]:
        """By batch, how much was admitted; called on the node when the job is done."""
        return {batch_id: Admitted(size, end) for batch_id, (size, end) in self._added.value.items()}


class CommitLimit:
    """Admits the rows of batches in whole records, as long as their commit has room for the files."""

    def __init__(self, size_limit: SizeLimit, rooms: Rooms, *, is_bounded: bool) -> None:
        """`size_limit` records where batches are cut. `is_bounded`: whether any sink has a bound."""
        self._size_limit = size_limit
        self._rooms = rooms
        self._is_bounded = is_bounded
        self._held: dict[str, list[Any]] = {}
        self._last: dict[str, int] = {}
        """By batch, the highest item that was admitted."""
        self._ends: dict[str, int] = {}

    def check_order(self, batch: StagedBatch, rows: Any) -> None:
        """Raise `BatchError` if the batch was cut short and one of these rows belongs before the cut."""
        if batch.id in self._ends:
            _check_order(items_of(rows), self._ends[batch.id])

    def admit(self, batch: StagedBatch, rows: Any) -> Iterator[Any]:
        """The portions that may be staged now; each must be staged before the next is taken.

        Raises `BatchError` if the batch is full and cannot be cut.
        """
        may_be_cut = batch.max_bytes is not None
        if not rows.num_rows or not self._is_bounded or not (may_be_cut or batch.several_rows):
            yield rows
            return
        # Rows that no processor has changed are a record each.
        for portion in self._whole_records(batch.id, rows) if batch.changed else (rows,):
            admitted = self._within_room(batch, portion) if may_be_cut else portion
            if admitted.num_rows:
                yield admitted

    def rest(self, batch: StagedBatch) -> Iterator[Any]:
        """The rows of the last record, when no more rows come."""
        if batch.id in self._held:
            rows = joined(self._held.pop(batch.id))
            yield rows if batch.max_bytes is None else self._within_room(batch, rows)

    def forget(self, batch_id: str) -> None:
        """Drop the state of a batch that has failed."""
        self._held.pop(batch_id, None)

    def _whole_records(self, batch_id: str, rows: Any) -> Iterator[Any]:
        items = items_of(rows)
        begun = self._held.pop(batch_id, [])
        start = 0
        if begun:
            if items_of(begun[0])[0] == items[0]:
                start = first_record(items)
                begun.append(rows.slice(0, start))
            if start == rows.num_rows:
                self._held[batch_id] = begun
                return
            yield joined(begun)
        last = last_record(items)
        if last > start:
            yield rows.slice(start, last - start)
        # A copy: a slice would keep all of the portion in memory.
        self._held[batch_id] = [rows.take(pa.array(range(last, rows.num_rows)))]

    def _within_room(self, batch: StagedBatch, rows: Any) -> Any:
        self.check_order(batch, rows)
        if batch.id in self._ends:
            return rows.slice(0, 0)
        number, items = self._fitting(batch, rows), items_of(rows)
        if number < rows.num_rows and batch.id not in self._last and items[number] == items[0]:
            rows = with_first_refused(batch, rows, first_record(items), TOO_MANY_FILES)
            number, items = self._fitting(batch, rows), items_of(rows)
        if number < rows.num_rows:
            number = self._cut(batch, items, int(items[number]))
        if number:
            self._last[batch.id] = max(self._last.get(batch.id, int(items[0])), int(items[:number].max()))
        return rows.slice(0, number)

    def _fitting(self, batch: StagedBatch, rows: Any) -> int:
        return min(rows_within(rows, room, route) for room, route in self._rooms(batch))

    def _cut(self, batch: StagedBatch, items: Any, end: int) -> int:
        """End the batch before that item; returns how many of these rows come before it."""
        before = self._last.get(batch.id)
        number = int(np.argmax(items >= end))
        if number == 0 if before is None else before >= end:
            raise _not_in_order()
        _check_order(items[number:], end)
        self._ends[batch.id] = end
        self._size_limit.cut(batch.id, end)
        return number


def _check_order(items: Any, end: int) -> None:
    if len(items) and int(items.min()) < end:
        raise _not_in_order()


def _not_in_order() -> BatchError:
    return BatchError(
        "the batch must be cut short, and its rows are not in the order of their records, so that no cut "
        "is possible. Keep the order in processors; or raise max_files of the sink, or lower max_bytes of the source's "
        "batches"
    )
