"""Rows with other columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from holdfast.flow.fault import record_fault
from holdfast.flow.kafka_columns import VALUE
from holdfast.flow.source import FAULT_COLUMN, OPTIONAL_COLUMNS, OUTPUT_FOLDER_COLUMN, SYSTEM_COLUMNS
from holdfast.processors.parse.cells import Bad


def faulty(rows: Any, bad: Bad) -> Any:
    """The rows with faults where something is bad and no fault was before."""
    faults = rows.column(FAULT_COLUMN).to_pylist()
    place = rows.schema.get_field_index(VALUE)
    for row, reason in bad.items():
        if faults[row] is None:
            raw = rows.column(place)[row].as_py() if place >= 0 else None
            faults[row] = record_fault(reason, raw.encode() if isinstance(raw, str) else raw or b"").encode()
    return with_column(rows, FAULT_COLUMN, pa.array(faults, pa.string()))


def with_place(rows: Any, places: Any) -> Any:
    """The rows with this column of places."""
    return with_column(rows, OUTPUT_FOLDER_COLUMN, places)


def with_column(rows: Any, name: str, column: Any) -> Any:
    """The rows with this column instead of the one of the same name, or behind all others."""
    place = rows.schema.get_field_index(name)
    return rows.append_column(name, column) if place < 0 else rows.set_column(place, name, column)


def with_data(rows: Any, schema: Any, columns: Sequence[Any], kept: Sequence[str]) -> Any:
    """Our own columns of the rows, then those that are kept, then the new ones."""
    stay = [name for name in rows.schema.names if is_ours(name)] + [name for name in kept if name in rows.schema.names]
    fields = [*(rows.schema.field(name) for name in stay), *(field.with_nullable(True) for field in schema)]
    return pa.RecordBatch.from_arrays([*(rows.column(name) for name in stay), *columns], schema=pa.schema(fields))


def is_ours(name: str) -> bool:
    """Whether a column is one of holdfast's."""
    return name in SYSTEM_COLUMNS or name in OPTIONAL_COLUMNS
