"""Reading in a task: pieces in, Arrow record batches with the system columns out.

A record that cannot be read is a row with a fault. A piece that cannot be read is one row with a fault of its batch;
the other pieces of the task go on. If a damaged object is to be salvaged, it is a fault that tells of the damage.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute

from holdfast.errors import BatchError, Unavailable, is_host_fault
from holdfast.flow.fault import Fault, batch_fault, cut_fault, damage_fault, unavailable_fault
from holdfast.flow.source import BATCH_COLUMN, FAULT_COLUMN, ITEM_COLUMN
from holdfast.sources.objects.ahead import fetched_ahead
from holdfast.sources.objects.codecs.codec import BlockCodec, Codec, Portion, Range, StreamCodec
from holdfast.sources.objects.compressions import Peeked, compression_of, unpacked
from holdfast.sources.objects.counting import Counting
from holdfast.sources.objects.lines import END_OF_STREAM
from holdfast.sources.objects.pieces import Piece
from holdfast.sources.objects.places import RandomBytes
from holdfast.sources.objects.streams import Damaged
from holdfast.sources.objects.together import read_together

_SYSTEM = pa.schema(
    [(BATCH_COLUMN, pa.dictionary(pa.int32(), pa.string())), (ITEM_COLUMN, pa.int64()), (FAULT_COLUMN, pa.string())]
)


@dataclass(frozen=True)
class ObjectsRead:
    """The pieces of a round, packed into tasks. A `DirectRead`."""

    packed: Sequence[Sequence[Piece]]
    codec: Codec
    compression: str
    schema: Any

    @property
    def tasks(self) -> int:
        return len(self.packed)

    def rows(self, task: int) -> Iterator[Any]:
        whole, counting = pa.schema([*_SYSTEM, *self.codec.schema]), Counting()
        for turn in fetched_ahead(self.packed[task]):
            counted = any(piece.in_order for piece in turn)
            together = None if counted else read_together(turn, self.codec, self.compression)
            if together is None:
                for piece in turn:
                    yield from self._rows_of(piece, _Frame(piece.batch, whole, piece.base), counting)
            elif len(together.items):
                no_faults = pa.nulls(len(together.items), pa.string())
                ids = pa.array([piece.batch for piece in turn], pa.string())
                yield _framed(whole, ids, together.which, pa.array(together.items), no_faults, together.columns)

    def _rows_of(self, piece: Piece, frame: _Frame, counting: Counting) -> Iterator[Any]:
        if counting.has_ended(piece):
            return
        if counting.ends_before(piece):
            yield frame.faulty([(0, cut_fault())])
            return
        try:
            if piece.drops:
                self._read_to_the_end(piece)
            yield from self._read(piece, frame, counting)
        except (BatchError, Unavailable, OSError) as error:
            if not (piece.drops and piece.start and isinstance(error, Damaged)):  # else the first piece tells of it
                yield frame.faulty([(piece.start, _fault(piece, error))])

    def _read_to_the_end(self, piece: Piece) -> None:
        """Raise what is wrong with the whole object, before any of it is kept."""
        whole = replace(piece, start=0, end=piece.place.size)
        with whole.place.opened() as data:
            for _ in self._portions(whole, data):
                pass

    def _read(self, piece: Piece, frame: _Frame, counting: Counting) -> Iterator[Any]:
        with piece.place.opened() as data:
            for found in self._portions(piece, data):
                portion, cut = counting.admitted(piece, found)
                if len(portion.items):
                    yield frame.of(portion.items, portion.columns)
                if portion.faults:
                    yield frame.faulty(portion.faults)
                if cut is not None:
                    yield frame.faulty([(cut, cut_fault())])
                    return

    def _portions(self, piece: Piece, data: RandomBytes) -> Iterator[Portion]:
        if isinstance(self.codec, BlockCodec):
            return self.codec.read(data, Range(piece.start, piece.end, piece.place.size))
        assert isinstance(self.codec, StreamCodec)
        stream, start, end = Peeked(data), piece.start, piece.end
        # That a piece begins in the middle says that the object was not found to be packed.
        head = stream.head if start == 0 else bytes
        compression = compression_of(piece.place.path, self.compression, head)
        if compression == "none" and self.codec.splits:
            if not start:
                return self.codec.read(stream, start, end)
            data.seek(start - 1)
            return self.codec.read(data, start, end)
        if (start, end) != (0, piece.place.size):
            raise BatchError("it can only be read from its beginning to its end, and was cut")
        return self.codec.read(unpacked(stream, compression), 0, END_OF_STREAM)


class _Frame:
    """Puts the system columns in front of the data columns."""

    def __init__(self, batch: str, schema: pa.Schema, base: int) -> None:
        self._base = base
        self._batch = pa.array([batch], pa.string())
        self._schema = schema

    def of(self, items: Any, columns: Sequence[Any]) -> Any:
        return self._made(pa.array(items, pa.int64()), pa.nulls(len(items), pa.string()), columns)

    def faulty(self, faults: Sequence[tuple[int, Fault]]) -> Any:
        items = pa.array([item for item, _ in faults], pa.int64())
        texts = pa.array([fault.encode() for _, fault in faults], pa.string())
        kinds = self._schema.types[len(_SYSTEM) :]
        return self._made(items, texts, [pa.nulls(len(faults), kind) for kind in kinds])

    def _made(self, items: Any, faults: Any, columns: Sequence[Any]) -> Any:
        if self._base:
            items = pa.compute.add(items, self._base)
        return _framed(self._schema, self._batch, np.zeros(len(items), np.int32), items, faults, columns)


def _fault(piece: Piece, error: Exception) -> Fault:
    """What an object that cannot be read is to its batch."""
    path = piece.place.path
    reason = str(error) if path in str(error) else f"{path}: {error}"
    if isinstance(error, Unavailable) or is_host_fault(error):
        return unavailable_fault(reason)
    return damage_fault(reason) if piece.salvage and isinstance(error, Damaged) else batch_fault(reason)


def _framed(schema: pa.Schema, batches: Any, which: Any, items: Any, faults: Any, columns: Sequence[Any]) -> Any:
    """The data columns with the system columns before them; `which` tells each row's batch among `batches`."""
    told = pa.DictionaryArray.from_arrays(pa.array(which, pa.int32()), batches)
    return pa.RecordBatch.from_arrays([told, items, faults, *columns], schema=schema)
