"""Letters as rows with the system columns, made on the node."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa

from holdfast.errors import BatchError
from holdfast.flow.fault import RECORD, Fault, batch_fault
from holdfast.flow.letter import Letter, Rebuilder
from holdfast.flow.source import BATCH_COLUMN, FAULT_COLUMN, ITEM_COLUMN

SYSTEM = pa.schema([(BATCH_COLUMN, pa.string()), (ITEM_COLUMN, pa.int64()), (FAULT_COLUMN, pa.string())])


class LettersRead:
    """A direct read: one task for each batch, which carries its rows. Picklable."""

    def __init__(self, batches: Sequence[Any], fields: Any) -> None:
        from pyspark.sql import types as kinds

        system = [
            kinds.StructField(BATCH_COLUMN, kinds.StringType()),
            kinds.StructField(ITEM_COLUMN, kinds.LongType()),
            kinds.StructField(FAULT_COLUMN, kinds.StringType()),
        ]
        self._batches = list(batches)
        self.schema = kinds.StructType([*system, *fields.fields])

    @property
    def tasks(self) -> int:
        return len(self._batches)

    def rows(self, task: int) -> Iterator[Any]:
        yield from self._batches[task].to_batches()


def rows_of(batch_id: str, letters: Sequence[Letter] | BatchError, rebuilder: Rebuilder, fields: Any) -> Any:
    """The letters of one batch as an Arrow table. A record that is still none has a fault once more."""
    from pyspark.sql.pandas.types import to_arrow_schema

    data = to_arrow_schema(fields, timezone="UTC")
    if isinstance(letters, BatchError):
        return _table(batch_id, [(0, batch_fault(str(letters)).encode(), _nothing(data))], data)
    return _table(batch_id, [(letter.item, *_tried(letter, rebuilder, data)) for letter in letters], data)


def _tried(letter: Letter, rebuilder: Rebuilder, data: Any) -> tuple[str | None, Any]:
    try:
        return None, rebuilder.row(letter)
    except ValueError as wrong:
        fault = Fault(RECORD, str(wrong), letter.raw, letter.encoding == "base64", letter.size, letter.form)
        return fault.encode(), _nothing(data)


def _nothing(data: Any) -> Any:
    return pa.RecordBatch.from_arrays([pa.nulls(1, field.type) for field in data], schema=data)


def _table(batch_id: str, rows: Sequence[tuple[int, str | None, Any]], data: Any) -> Any:
    own = pa.Table.from_batches([row.cast(data) for _, _, row in rows], data)
    columns = [
        pa.array([batch_id] * len(rows), pa.string()),
        pa.array([item for item, _, _ in rows], pa.int64()),
        pa.array([fault for _, fault, _ in rows], pa.string()),
    ]
    return pa.Table.from_arrays([*columns, *own.columns], schema=pa.schema([*SYSTEM, *data]))
