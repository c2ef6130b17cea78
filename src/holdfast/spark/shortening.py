"""Where a batch is cut short because its commit is full: always between two records, in one attempt of one task.

A processor may make several rows of a record. The rows of the last record are kept back until the next one begins, so
that a record is staged whole or not at all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from holdfast.errors import BatchError
from holdfast.flow.staging import Room, StagedBatch
from holdfast.spark.gate import Gate
from holdfast.spark.portions import first_record, items_of, joined, last_record, rows_within

Rooms = Callable[[StagedBatch], Sequence[tuple[Room, str | None]]]
"""What every sink with a bound has left for a batch, and the column that is true for the sink's rows."""


class Shortening:
    """Lets the rows of batches through in whole records, as long as there is room for them."""

    def __init__(self, gate: Gate, rooms: Rooms, *, is_bounded: bool) -> None:
        """`is_bounded`: whether any sink has a bound."""
        self._gate = gate
        self._rooms = rooms
        self._is_bounded = is_bounded
        self._held: dict[str, list[Any]] = {}
        self._last: dict[str, int] = {}
        """By batch the highest item that was let through."""
        self._ends: dict[str, int] = {}

    def check_left(self, batch: StagedBatch, rows: Any) -> None:
        """Raise `BatchError` if the batch was cut short and one of these rows belongs before the cut."""
        if batch.id in self._ends:
            _check_order(items_of(rows), self._ends[batch.id])

    def through(self, batch: StagedBatch, rows: Any) -> Iterator[Any]:
        """Portions that may be staged now; each must be staged before the next is taken.

        Raises `BatchError` if the batch is full and cannot be cut.
        """
        if batch.max_bytes is None or not rows.num_rows or not self._is_bounded:
            yield rows
            return
        # Rows that no processor has changed are a record each.
        for portion in self._whole_records(batch.id, rows) if batch.changed else (rows,):
            admitted = self._within_room(batch, portion)
            if admitted.num_rows:
                yield admitted

    def rest(self, batch: StagedBatch) -> Iterator[Any]:
        """The last record: no more rows come."""
        if batch.id in self._held:
            yield self._within_room(batch, joined(self._held.pop(batch.id)))

    def forget(self, batch_id: str) -> None:
        """The batch has failed."""
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
        self.check_left(batch, rows)
        if batch.id in self._ends:
            return rows.slice(0, 0)
        number = min(rows_within(rows, room, taken) for room, taken in self._rooms(batch))
        items = items_of(rows)
        if number < rows.num_rows:
            number = self._cut(batch, items, int(items[number]))
        if number:
            self._last[batch.id] = max(self._last.get(batch.id, int(items[0])), int(items[:number].max()))
        return rows.slice(0, number)

    def _cut(self, batch: StagedBatch, items: Any, end: int) -> int:
        """End the batch before that item; returns how many of these rows come before it."""
        before = self._last.get(batch.id)
        if before is not None and before >= end:
            raise _not_in_order()
        number = int(np.argmax(items >= end))
        _check_order(items[number:], end)
        if before is None and number == 0:
            raise BatchError(
                f"the record at {end} alone becomes more files than one commit may have; raise max_files of the sink, "
                "or let the record have fewer partition names"
            )
        self._ends[batch.id] = end
        self._gate.cut(batch.id, end)
        return number


def _check_order(items: Any, end: int) -> None:
    if len(items) and int(items.min()) < end:
        raise _not_in_order()


def _not_in_order() -> BatchError:
    return BatchError(
        "the batch must be cut short, and its rows are not in the order of their records, so that there is no place to "
        "cut. Keep the order in processors; or raise max_files of the sink, or lower max_bytes of the source's batches"
    )
