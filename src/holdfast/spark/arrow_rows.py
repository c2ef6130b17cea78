"""Arrow rows of a task, divided by batch, into good and faulty ones, by output folder, and where a batch is full.

Uses Arrow and numpy; no Python code runs per row.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.errors import BatchError
from holdfast.flow.fault import Fault, decode_fault, record_fault
from holdfast.flow.kafka_columns import VALUE
from holdfast.flow.source import (
    BATCH_COLUMN,
    FAULT_COLUMN,
    ITEM_COLUMN,
    OPTIONAL_COLUMNS,
    OUTPUT_FOLDER_COLUMN,
    SYSTEM_COLUMNS,
)
from holdfast.flow.staging import Room, StagedBatch

NO_FOLDER = f"{OUTPUT_FOLDER_COLUMN} is null: a processor has named no output folder for it"


def by_batch(rows: Any, batch_ids: Sequence[str]) -> Iterator[tuple[str, Any]]:
    """The rows of each batch. `batch_ids`: those of the round, in order, if rows have the index of their batch."""
    column = rows.column(BATCH_COLUMN)
    if not len(column):
        return
    encoded = column if pa.types.is_dictionary(column.type) else column.dictionary_encode()
    if encoded.null_count:
        raise BatchError(f"a row has lost its {BATCH_COLUMN}; processors must keep the system columns")
    ids = encoded.dictionary.to_pylist()
    if pa.types.is_integer(encoded.dictionary.type):
        ids = [batch_ids[number] for number in ids]
    if len(ids) == 1:
        yield ids[0], rows
        return
    indices = np.asarray(encoded.indices)
    borders = [0, *(np.flatnonzero(np.diff(indices)) + 1).tolist(), len(indices)]
    if len(borders) <= len(ids) + 1 and len(set(indices[borders[:-1]].tolist())) == len(borders) - 1:
        # The rows of each batch are next to each other.
        for start, end in pairwise(borders):
            yield ids[indices[start]], rows.slice(start, end - start)
        return
    for index, batch_id in enumerate(ids):
        batch_rows = rows.filter(pc.equal(encoded.indices, index))
        if batch_rows.num_rows:
            yield batch_id, batch_rows


def with_faults(rows: Any) -> Any:
    """The rows with a column of faults, which a source without faults may leave out."""
    if FAULT_COLUMN in rows.schema.names:
        return rows
    return rows.append_column(FAULT_COLUMN, pa.nulls(rows.num_rows, pa.string()))


def divided(rows: Any) -> tuple[Any, list[tuple[int, Fault]]]:
    """The good rows, and the faults of the others with their items."""
    faults = rows.column(FAULT_COLUMN)
    if faults.null_count == len(faults):
        return rows, []
    bad = rows.filter(faults.is_valid())
    items, texts = bad.column(ITEM_COLUMN).to_pylist(), bad.column(FAULT_COLUMN).to_pylist()
    decoded = [(item or 0, decode_fault(text)) for item, text in zip(items, texts, strict=True)]
    return rows.filter(faults.is_null()), decoded


def by_output_folder(rows: Any) -> Iterator[tuple[str, Any]]:
    """The rows of each output folder, in the order in which they came; all in "" if no parser named folders."""
    if OUTPUT_FOLDER_COLUMN not in rows.schema.names:
        yield "", rows
        return
    encoded = _encoded(rows.column(OUTPUT_FOLDER_COLUMN))
    folders = encoded.dictionary.to_pylist()
    if len(folders) == 1:
        yield folders[0], rows
        return
    indices = np.asarray(encoded.indices)
    order = np.argsort(indices, kind="stable")
    ordered, borders = rows.take(pa.array(order)), np.searchsorted(indices[order], np.arange(len(folders) + 1))
    for folder, start, end in zip(folders, borders[:-1], borders[1:], strict=True):
        if end > start:
            yield folder, ordered.slice(int(start), int(end - start))


def rows_by_route(rows: Any, routes: Collection[str | None]) -> dict[str | None, Any]:
    """By route, the rows for which its column is true, in the order in which they came; None: all rows."""
    return {route: rows if route is None else rows.filter(rows.column(route)) for route in routes}


def count_routed(rows: Any, routes: Collection[str | None]) -> int:
    """How many rows belong to at least one of these routes, given by their columns; all rows if `routes` is None."""
    if None in routes:
        return int(rows.num_rows)
    matching = [np.asarray(rows.column(route).to_numpy(zero_copy_only=False), bool) for route in routes]
    return int(np.count_nonzero(np.logical_or.reduce(matching)))


def output_folders_of(rows: Any) -> set[str]:
    """The output folders of these rows."""
    if OUTPUT_FOLDER_COLUMN not in rows.schema.names:
        return {""}
    return set(_dictionary(rows.column(OUTPUT_FOLDER_COLUMN)).dictionary.to_pylist())


def rows_within(rows: Any, room: Room, route: str | None = None) -> int:
    """How many rows come before the first row that needs a file for which there is no room.

    `route` is the column that is true for the rows that count; None: all do.
    """
    number, encoded = int(rows.num_rows), None
    counts = rows.column(FAULT_COLUMN).is_null().to_numpy(zero_copy_only=False)
    if route is not None:
        counts = counts & np.asarray(rows.column(route).to_numpy(zero_copy_only=False), bool)
    if OUTPUT_FOLDER_COLUMN in rows.schema.names:
        encoded = _dictionary(rows.column(OUTPUT_FOLDER_COLUMN))
        counts = counts & encoded.is_valid().to_numpy(zero_copy_only=False)
    counted = np.flatnonzero(counts)
    if not len(counted):
        return number
    if encoded is None:
        firsts = [(int(counted[0]), "")]
    else:
        numbers, at = np.unique(encoded.indices.take(pa.array(counted)).to_numpy(), return_index=True)
        folders = encoded.dictionary.to_pylist()
        firsts = sorted((int(counted[first]), folders[index]) for index, first in zip(numbers, at, strict=True))
    files, size = room.files, room.size
    for first, folder in firsts:
        if not room.is_open(folder):
            files -= 1
            size = None if size is None else size - room.entry_size(folder)
            if files < 0 or (size is not None and size < 0):
                return first
    return number


def items_of(rows: Any) -> Any:
    """The items as numbers. A row without one, which can only be a fault, gets the item of the row before it."""
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
    """One portion with the rows of several."""
    if len(portions) == 1:
        return portions[0]
    return pa.Table.from_batches(portions).unify_dictionaries().combine_chunks().to_batches()[0]


def with_first_refused(batch: StagedBatch, rows: Any, count: int, reason: str) -> Any:
    """The rows with one fault in place of the first `count`, which are those of one record."""
    return _with_refused(batch, rows.take(pa.array([0, *range(count, rows.num_rows)])), [0], reason)


def with_folderless_refused(batch: StagedBatch, rows: Any) -> Any:
    """The rows, with a fault where a processor has named no output folder but has named one for other rows."""
    if OUTPUT_FOLDER_COLUMN not in rows.schema.names or not rows.column(OUTPUT_FOLDER_COLUMN).null_count:
        return rows
    without = pc.and_(rows.column(OUTPUT_FOLDER_COLUMN).is_null(), rows.column(FAULT_COLUMN).is_null())
    return _with_refused(batch, rows, np.flatnonzero(np.asarray(without)).tolist(), NO_FOLDER)


def _with_refused(batch: StagedBatch, rows: Any, indices: Sequence[int], reason: str) -> Any:
    """The rows with a fault at these indices."""
    if not indices:
        return rows
    faults, data = rows.column(FAULT_COLUMN).to_pylist(), data_of(rows)
    for index in indices:
        value: Any = data.column(VALUE)[index].as_py() if VALUE in data.schema.names else None
        is_value = isinstance(value, str | bytes)
        if not is_value:
            (columns,) = data.slice(index, 1).to_pylist()
            value = json.dumps(columns, default=str, ensure_ascii=False)
        raw: bytes = value.encode(errors="surrogatepass") if isinstance(value, str) else value
        faults[index] = replace(record_fault(reason, raw), form=batch.raw_form(is_value=is_value)).encode()
    return rows.set_column(rows.schema.get_field_index(FAULT_COLUMN), FAULT_COLUMN, pa.array(faults, pa.string()))


def rows_of_size(sizes: Any, room: int) -> int:
    """How many rows, from the first on, fit into `room` bytes."""
    ends = np.cumsum(np.asarray(sizes.fill_null(0)))
    return int(np.searchsorted(ends, room, side="right"))


def data_of(rows: Any) -> Any:
    """The rows without holdfast's own columns."""
    ours = {*SYSTEM_COLUMNS, *OPTIONAL_COLUMNS}
    return rows.select([name for name in rows.schema.names if name not in ours])


def _dictionary(folders: Any) -> Any:
    return folders if pa.types.is_dictionary(folders.type) else folders.dictionary_encode()


def _encoded(folders: Any) -> Any:
    encoded = _dictionary(folders)
    if encoded.null_count:
        raise BatchError(f"a row without a fault has no {OUTPUT_FOLDER_COLUMN}, but other rows have one")
    return encoded
