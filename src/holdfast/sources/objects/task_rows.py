"""Reads splits in a task into Arrow record batches with the system columns.

A record that cannot be read becomes a row with a fault. A split that cannot be read becomes one row with a fault of its
batch, and the other splits of the task are still read. If damage is salvaged, that fault is a dead letter.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute

from holdfast.errors import BatchError, Unavailable, is_host_fault
from holdfast.flow.fault import Fault, batch_fault, cut_fault, damage_fault, unavailable_fault
from holdfast.flow.letter import SourceRecord
from holdfast.flow.source import BATCH_COLUMN, FAULT_COLUMN, ITEM_COLUMN
from holdfast.flow.staging import StagedBatch
from holdfast.sources.objects.codecs.codec import BlockCodec, Codec, Portion, Range, StreamCodec
from holdfast.sources.objects.codecs.lines import END_OF_STREAM
from holdfast.sources.objects.compression import Peeked, compression_of, decompressed
from holdfast.sources.objects.object_ref import Damaged, RandomBytes
from holdfast.sources.objects.read_ahead import read_ahead, read_small_objects
from holdfast.sources.objects.splits import Split

if TYPE_CHECKING:
    from holdfast.sources.objects.record_reader import ObjectRecordReader

_SYSTEM = pa.schema(
    [(BATCH_COLUMN, pa.dictionary(pa.int32(), pa.string())), (ITEM_COLUMN, pa.int64()), (FAULT_COLUMN, pa.string())]
)


@dataclass(frozen=True)
class ObjectRows:
    """The splits of a round, packed into tasks. A `TaskRows`, and a `RecordReader` of the same objects."""

    packed: Sequence[Sequence[Split]]
    codec: Codec
    compression: str
    schema: Any

    @property
    def tasks(self) -> int:
        return len(self.packed)

    def rows(self, task: int) -> Iterator[Any]:
        schema, counter = pa.schema([*_SYSTEM, *self.codec.schema]), RecordCounter()
        for group in read_ahead(self.packed[task]):
            counted = any(split.in_order for split in group)
            small = None if counted else read_small_objects(group, self.codec, self.compression)
            if small is None:
                for split in group:
                    yield from self._rows_of(split, _Frame(split.batch, schema, split.base), counter)
            elif len(small.items):
                no_faults = pa.nulls(len(small.items), pa.string())
                ids = pa.array([split.batch for split in group], pa.string())
                yield _framed(schema, ids, small.indices, pa.array(small.items), no_faults, small.columns)

    def records(self, batch: StagedBatch, faults: Sequence[tuple[int, Fault]]) -> Iterator[SourceRecord]:
        """Implements `RecordReader`."""
        return self._reader.records(batch, faults)

    @cached_property
    def _reader(self) -> ObjectRecordReader:
        from holdfast.sources.objects.record_reader import ObjectRecordReader

        return ObjectRecordReader(self)

    def _rows_of(self, split: Split, frame: _Frame, counter: RecordCounter) -> Iterator[Any]:
        if counter.has_ended(split):
            return
        if counter.ends_before(split):
            yield frame.faulty([(0, cut_fault())])
            return
        try:
            if split.drops:
                self._read_to_the_end(split)
            yield from self._read(split, frame, counter)
        except (BatchError, Unavailable, OSError) as error:
            # Where a damaged object is dropped, its first split alone reports the damage.
            if not (split.drops and split.start and isinstance(error, Damaged)):
                yield frame.faulty([(split.start, _fault(split, error))])

    def _read_to_the_end(self, split: Split) -> None:
        """Read the whole object and raise its error, if any, before any record is kept."""
        whole = replace(split, start=0, end=split.ref.size)
        with whole.ref.opened() as data:
            for _ in self._portions(whole, data):
                pass

    def _read(self, split: Split, frame: _Frame, counter: RecordCounter) -> Iterator[Any]:
        with split.ref.opened() as data:
            for found in self._portions(split, data):
                portion, cut = counter.admitted(split, found)
                if len(portion.items):
                    yield frame.of(portion.items, portion.columns)
                if portion.faults:
                    yield frame.faulty(portion.faults)
                if cut is not None:
                    yield frame.faulty([(cut, cut_fault())])
                    return

    def _portions(self, split: Split, data: RandomBytes) -> Iterator[Portion]:
        if isinstance(self.codec, BlockCodec):
            return self.codec.read(data, Range(split.start, split.end, split.ref.size))
        assert isinstance(self.codec, StreamCodec)
        stream, start, end = Peeked(data), split.start, split.end
        # A split that begins in the middle shows that the object was found not to be compressed.
        head = stream.head if start == 0 else bytes
        compression = compression_of(split.ref.path, self.compression, head)
        if compression == "none" and self.codec.splits:
            if not start:
                return self.codec.read(stream, start, end)
            data.seek(start - 1)
            return self.codec.read(data, start, end)
        if (start, end) != (0, split.ref.size):
            raise BatchError("it can only be read from its beginning to its end, but it was split")
        return self.codec.read(decompressed(stream, compression), 0, END_OF_STREAM)


class _Frame:
    """Puts the system columns in front of the data columns."""

    def __init__(self, batch: str, schema: pa.Schema, base: int) -> None:
        self._base = base
        self._batch = pa.array([batch], pa.string())
        self._schema = schema

    def of(self, items: Any, columns: Sequence[Any]) -> Any:
        return self._framed(pa.array(items, pa.int64()), pa.nulls(len(items), pa.string()), columns)

    def faulty(self, faults: Sequence[tuple[int, Fault]]) -> Any:
        items = pa.array([item for item, _ in faults], pa.int64())
        texts = pa.array([fault.encode() for _, fault in faults], pa.string())
        types = self._schema.types[len(_SYSTEM) :]
        return self._framed(items, texts, [pa.nulls(len(faults), data_type) for data_type in types])

    def _framed(self, items: Any, faults: Any, columns: Sequence[Any]) -> Any:
        if self._base:
            items = pa.compute.add(items, self._base)
        return _framed(self._schema, self._batch, np.zeros(len(items), np.int32), items, faults, columns)


def _framed(schema: pa.Schema, batches: Any, indices: Any, items: Any, faults: Any, columns: Sequence[Any]) -> Any:
    """The system columns followed by the data columns; `indices` has each row's index among `batches`."""
    batch_column = pa.DictionaryArray.from_arrays(pa.array(indices, pa.int32()), batches)
    return pa.RecordBatch.from_arrays([batch_column, items, faults, *columns], schema=schema)


def _fault(split: Split, error: Exception) -> Fault:
    """The fault of a batch whose object cannot be read."""
    path = split.ref.path
    reason = str(error) if path in str(error) else f"{path}: {error}"
    if isinstance(error, Unavailable) or is_host_fault(error):
        return unavailable_fault(reason)
    return damage_fault(reason) if split.salvage and isinstance(error, Damaged) else batch_fault(reason)


# --- counted batches -----------------------------------------------------------------------------------------------


class RecordCounter:
    """Counts the records of each batch of a task; what exceeds the limit of a batch is left for the next batch.

    A batch with a limit is read by one task, in order.
    """

    def __init__(self) -> None:
        self._taken: Counter[str] = Counter()
        self._ended: set[str] = set()

    def has_ended(self, split: Split) -> bool:
        """Whether the batch was cut short before this split."""
        return split.batch in self._ended

    def ends_before(self, split: Split) -> bool:
        """Whether the batch is cut short before this split, where another object begins."""
        full = split.whole_objects and split.max_records is not None and self._taken[split.batch] >= split.max_records
        if full:
            self._ended.add(split.batch)
        return full

    def admitted(self, split: Split, portion: Portion) -> tuple[Portion, int | None]:
        """The records that belong to the batch, and the item before which the batch is cut short, if it is."""
        portion = _between(portion, split.first, split.until)
        limit = None if split.whole_objects else split.max_records
        cut = None if limit is None else self._cut(split, limit, portion)
        if cut is not None:
            self._ended.add(split.batch)
            portion = _between(portion, 0, cut)
        self._taken[split.batch] += len(portion.items) + len(portion.faults)
        return portion, cut

    def _cut(self, split: Split, limit: int, portion: Portion) -> int | None:
        left = limit - self._taken[split.batch]
        if len(portion.items) + len(portion.faults) <= left:
            return None
        # Faults are listed beside the good records of their portion, not between them.
        items = sorted([*np.asarray(portion.items).tolist(), *(item for item, _ in portion.faults)])
        return int(items[left])


def _between(portion: Portion, first: int, until: int | None) -> Portion:
    """The records whose items are in [first, until)."""
    if not first and until is None:
        return portion
    items = np.asarray(portion.items)
    start = int(np.searchsorted(items, first))
    end = len(items) if until is None else int(np.searchsorted(items, until))
    length = max(0, end - start)
    return Portion(
        items[start : start + length],
        [column.slice(start, length) for column in portion.columns],
        [(item, fault) for item, fault in portion.faults if item >= first and (until is None or item < until)],
    )
