"""Reading in a task: pieces in, Arrow record batches with the system columns out.

A record that cannot be read is a row with a fault. A piece that cannot be read is one row with a fault of its batch;
the other pieces of the task go on.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from holdfast.errors import BatchError
from holdfast.flow.deadletter import Fault, batch_fault, record_fault
from holdfast.flow.source import BATCH_COLUMN, FAULT_COLUMN, ITEM_COLUMN
from holdfast.sources.objects.codecs import Codec, concatenated, sift
from holdfast.sources.objects.lines import END_OF_STREAM, LongLine, split
from holdfast.sources.objects.pieces import Piece
from holdfast.sources.objects.streams import GzipStream, unchanged

_BATCH_IDS = pa.dictionary(pa.int32(), pa.string())


@dataclass(frozen=True)
class ObjectsRead:
    """The pieces of a round, packed into tasks. A `DirectRead`."""

    packed: Sequence[Sequence[Piece]]
    codec: Codec
    longest: int
    schema: Any

    @property
    def tasks(self) -> int:
        return len(self.packed)

    def rows(self, task: int) -> Iterator[Any]:
        for piece in self.packed[task]:
            frame = _Frame(piece.batch, self.codec.schema)
            try:
                yield from self._read(piece, frame)
            except (BatchError, OSError) as error:
                reason = str(error) if piece.path in str(error) else f"{piece.path}: {error}"
                yield frame.faulty([(piece.start, batch_fault(reason))])

    def _read(self, piece: Piece, frame: _Frame) -> Iterator[Any]:
        with unchanged(Path(piece.path), piece.size, piece.mtime_ns) as file:
            if piece.gzipped:
                portions = split(GzipStream(file), 0, END_OF_STREAM, longest=self.longest)
            else:
                file.seek(max(piece.start - 1, 0))
                portions = split(file, piece.start, piece.end, longest=self.longest)
            for lines in portions:
                if isinstance(lines, LongLine):
                    yield frame.faulty([(lines.item, self._too_long(lines))])
                    continue
                good, bad = sift(self.codec, lines)
                if good:
                    yield frame.of(*concatenated(good))
                if bad:
                    yield frame.faulty(bad)

    def _too_long(self, line: LongLine) -> Fault:
        return record_fault(f"the line is longer than {self.longest} bytes", line.beginning, self.longest + 1)


class _Frame:
    """Puts the system columns in front of the data columns."""

    def __init__(self, batch: str, schema: pa.Schema) -> None:
        self._batch = pa.array([batch], pa.string())
        self._data = schema
        system = [(BATCH_COLUMN, _BATCH_IDS), (ITEM_COLUMN, pa.int64()), (FAULT_COLUMN, pa.string())]
        self._schema = pa.schema([*system, *schema])

    def of(self, items: Any, columns: Sequence[Any]) -> Any:
        return self._made(pa.array(items, pa.int64()), pa.nulls(len(items), pa.string()), columns)

    def faulty(self, faults: Sequence[tuple[int, Fault]]) -> Any:
        items = pa.array([item for item, _ in faults], pa.int64())
        texts = pa.array([fault.encode() for _, fault in faults], pa.string())
        return self._made(items, texts, [pa.nulls(len(faults), field.type) for field in self._data])

    def _made(self, items: Any, faults: Any, columns: Sequence[Any]) -> Any:
        which = pa.array(np.zeros(len(items), np.int32))
        batches = pa.DictionaryArray.from_arrays(which, self._batch)
        return pa.RecordBatch.from_arrays([batches, items, faults, *columns], schema=self._schema)
