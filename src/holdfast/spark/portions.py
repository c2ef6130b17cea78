"""Rows of a task, taken apart: by batch, into good and faulty ones, by place; and cut where a batch is full.

All of it on Arrow and numpy; nothing runs per row.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.errors import BatchError
from holdfast.flow.fault import Fault, decode_fault
from holdfast.flow.source import BATCH_COLUMN, FAULT_COLUMN, ITEM_COLUMN, OPTIONAL_COLUMNS, PLACE_COLUMN, SYSTEM_COLUMNS
from holdfast.flow.staging import Room


def by_batch(rows: Any, order: Sequence[str]) -> Iterator[tuple[str, Any]]:
    """Rows of each batch. `order`: ids of the round's batches, for rows that tell their number."""
    column = rows.column(BATCH_COLUMN)
    if not len(column):
        return
    encoded = column if pa.types.is_dictionary(column.type) else column.dictionary_encode()
    if encoded.null_count:
        raise BatchError(f"a row has lost its {BATCH_COLUMN}; processors must keep the system columns")
    told = encoded.dictionary.to_pylist()
    ids = [order[one] for one in told] if pa.types.is_integer(encoded.dictionary.type) else told
    if len(ids) == 1:
        yield ids[0], rows
        return
    indices = np.asarray(encoded.indices)
    borders = [0, *(np.flatnonzero(np.diff(indices)) + 1).tolist(), len(indices)]
    if len(borders) <= len(ids) + 1 and len(set(indices[borders[:-1]].tolist())) == len(borders) - 1:
        # The rows of each batch lie together.
        for start, end in pairwise(borders):
            yield ids[indices[start]], rows.slice(start, end - start)
        return
    for index, batch_id in enumerate(ids):
        own = rows.filter(pc.equal(encoded.indices, index))
        if own.num_rows:
            yield batch_id, own


def with_faults(rows: Any) -> Any:
    """The rows with a column of faults: a source whose rows never have one need not send it."""
    if FAULT_COLUMN in rows.schema.names:
        return rows
    return rows.append_column(FAULT_COLUMN, pa.nulls(rows.num_rows, pa.string()))


def parted(rows: Any) -> tuple[Any, list[tuple[int, Fault]]]:
    """Good rows, and faults with their items."""
    faults = rows.column(FAULT_COLUMN)
    if faults.null_count == len(faults):
        return rows, []
    bad = rows.filter(faults.is_valid())
    items, texts = bad.column(ITEM_COLUMN).to_pylist(), bad.column(FAULT_COLUMN).to_pylist()
    told = [(item or 0, decode_fault(text)) for item, text in zip(items, texts, strict=True)]
    return rows.filter(faults.is_null()), told


def by_place(rows: Any) -> Iterator[tuple[str, Any]]:
    """Rows of each place, in the order in which they came; one place without a name if no parser gave any."""
    if PLACE_COLUMN not in rows.schema.names:
        yield "", rows
        return
    encoded = _encoded(rows.column(PLACE_COLUMN))
    places = encoded.dictionary.to_pylist()
    if len(places) == 1:
        yield places[0], rows
        return
    indices = np.asarray(encoded.indices)
    order = np.argsort(indices, kind="stable")
    ordered, borders = rows.take(pa.array(order)), np.searchsorted(indices[order], np.arange(len(places) + 1))
    for place, start, end in zip(places, borders[:-1], borders[1:], strict=True):
        if end > start:
            yield place, ordered.slice(int(start), int(end - start))


def shares_of(rows: Any, columns: Collection[str | None]) -> dict[str | None, Any]:
    """By the column that is true for a sink's rows these rows, in the order in which they came; None: all rows."""
    return {name: rows if name is None else rows.filter(rows.column(name)) for name in columns}


def number_taken(rows: Any, columns: Collection[str | None]) -> int:
    """How many rows there are for which one of the columns is true; None: all."""
    if None in columns:
        return int(rows.num_rows)
    taken = [np.asarray(rows.column(name).to_numpy(zero_copy_only=False), bool) for name in columns]
    return int(np.count_nonzero(np.logical_or.reduce(taken)))


def places_of(rows: Any) -> set[str]:
    """The places of these rows."""
    if PLACE_COLUMN not in rows.schema.names:
        return {""}
    return set(_dictionary(rows.column(PLACE_COLUMN)).dictionary.to_pylist())


def rows_within(rows: Any, room: Room, taken: str | None = None) -> int:
    """How many rows there are before the first that needs a file for which there is no room.

    `taken` is the column that is true for the rows that count.
    """
    number, encoded = int(rows.num_rows), None
    counts = rows.column(FAULT_COLUMN).is_null().to_numpy(zero_copy_only=False)
    if taken is not None:
        counts = counts & np.asarray(rows.column(taken).to_numpy(zero_copy_only=False), bool)
    if PLACE_COLUMN in rows.schema.names:
        encoded = _dictionary(rows.column(PLACE_COLUMN))
        counts = counts & encoded.is_valid().to_numpy(zero_copy_only=False)
    counted = np.flatnonzero(counts)
    if not len(counted):
        return number
    if encoded is None:
        firsts = [(int(counted[0]), "")]
    else:
        numbers, at = np.unique(encoded.indices.take(pa.array(counted)).to_numpy(), return_index=True)
        places = encoded.dictionary.to_pylist()
        firsts = sorted((int(counted[first]), places[index]) for index, first in zip(numbers, at, strict=True))
    files, size = room.files, room.size
    for first, place in firsts:
        if not room.is_open(place):
            files -= 1
            size = None if size is None else size - room.entry_size(place)
            if files < 0 or (size is not None and size < 0):
                return first
    return number


def items_of(rows: Any) -> Any:
    """The items as numbers; a row without one, which can only have a fault, goes with the row before it."""
    column = rows.column(ITEM_COLUMN)
    return np.asarray(pc.fill_null_forward(column).fill_null(0) if column.null_count else column)


def last_record(items: Any) -> int:
    """Where the rows of the last record begin."""
    others = np.flatnonzero(items != items[-1])
    return int(others[-1]) + 1 if len(others) else 0


def first_record(items: Any) -> int:
    """How many rows the first record has."""
    others = np.flatnonzero(items != items[0])
    return int(others[0]) if len(others) else len(items)


def joined(portions: Sequence[Any]) -> Any:
    """The rows of several portions in one."""
    if len(portions) == 1:
        return portions[0]
    return pa.Table.from_batches(portions).unify_dictionaries().combine_chunks().to_batches()[0]


def rows_of_size(sizes: Any, room: int) -> int:
    """How many rows fit: those before the one with which they would be more than `room` bytes."""
    ends = np.cumsum(np.asarray(sizes.fill_null(0)))
    return int(np.searchsorted(ends, room, side="right"))


def data_of(rows: Any) -> Any:
    """The rows without any column of ours."""
    ours = {*SYSTEM_COLUMNS, *OPTIONAL_COLUMNS}
    return rows.select([name for name in rows.schema.names if name not in ours])


def _dictionary(places: Any) -> Any:
    return places if pa.types.is_dictionary(places.type) else places.dictionary_encode()


def _encoded(places: Any) -> Any:
    encoded = _dictionary(places)
    if encoded.null_count:
        raise BatchError(f"a row without a fault has no {PLACE_COLUMN}, and others have one")
    return encoded
