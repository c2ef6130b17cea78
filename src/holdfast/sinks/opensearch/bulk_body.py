"""The body of a bulk request: action lines, mostly followed by a document line, in contiguous memory.

Also the ids of documents, which are derived from the origin of their records.
"""

from __future__ import annotations

import base64
import hashlib
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.errors import BatchError
from holdfast.flow.fault import Fault, record_fault
from holdfast.flow.staging import StagedBatch


@dataclass(frozen=True)
class Entries:
    """Rows of one batch as they are sent. `borders` are the offsets of rows in `data`, and the end of the last."""

    batch: StagedBatch
    data: Any
    borders: Any
    items: Any
    documents: Any
    """The documents alone, for dead letters: a binary Arrow array."""
    form: str | None = None
    """`form` of dead letters made from these documents, see `holdfast.flow.fault`."""

    def __len__(self) -> int:
        return len(self.items)

    @property
    def size(self) -> int:
        return int(self.borders[-1] - self.borders[0])

    def bytes(self) -> Any:
        """All entries, not copied."""
        return memoryview(self.data)[int(self.borders[0]) : int(self.borders[-1])]

    def part(self, start: int, end: int) -> Entries:
        """The rows from `start` to `end`, not copied."""
        if (start, end) == (0, len(self)):
            return self
        borders, items = self.borders[start : end + 1], self.items[start:end]
        return replace(self, borders=borders, items=items, documents=self.documents.slice(start, end - start))

    def fault(self, index: int, reason: str) -> Fault:
        """The fault of the row at this index, for a dead letter."""
        return replace(record_fault(reason, self.documents[index].as_py() or b""), form=self.form)

    def chosen(self, indexes: Any) -> Entries:
        """The rows at these indexes, copied."""
        view = memoryview(self.data)
        pieces = [view[self.borders[index] : self.borders[index + 1]] for index in indexes]
        borders = np.concatenate([[0], np.cumsum([len(piece) for piece in pieces])]).astype(np.int64)
        documents = self.documents.take(indexes)
        return replace(self, data=b"".join(pieces), borders=borders, items=self.items[indexes], documents=documents)

    def fitting(self, size: int, count: int) -> int:
        """How many of the first rows are within both limits; at least one."""
        if self.size <= size and len(self) <= count:
            return len(self)
        within = int(np.searchsorted(self.borders[1:] - self.borders[0], size, side="right"))
        return min(len(self), max(1, min(within, count)))


@dataclass(frozen=True)
class Body:
    """The entries of one request, for the index of the sink or for that of the dead letters."""

    parts: Sequence[Entries]
    letters: str | None = None
    """The index of dead letters, if these entries are dead letters."""

    def __len__(self) -> int:
        return sum(map(len, self.parts))

    @property
    def size(self) -> int:
        return sum(part.size for part in self.parts)

    def bytes(self) -> bytes:
        return b"".join(part.bytes() for part in self.parts)

    def halves(self) -> tuple[Body, Body]:
        """The body in two halves; each has at least one row if there are two."""
        before, middle = [], len(self) // 2
        after: list[Entries] = []
        for part in self.parts:
            cut = min(max(middle, 0), len(part))
            if cut:
                before.append(part.part(0, cut))
            if cut < len(part):
                after.append(part.part(cut, len(part)))
            middle -= len(part)
        return Body(before, self.letters), Body(after, self.letters)

    def chosen(self, indexes: Any) -> Body:
        """The rows at these indexes, which are in ascending order."""
        return Body([part.chosen(within) for part, within in self.by_part(indexes) if len(within)], self.letters)

    def by_part(self, indexes: Any) -> Iterator[tuple[Entries, Any]]:
        """Each part, and the indexes within it, counted from the beginning of the part."""
        first = 0
        wanted = np.asarray(indexes, np.int64)
        for part in self.parts:
            start, end = np.searchsorted(wanted, [first, first + len(part)])
            yield part, wanted[start:end] - first
            first += len(part)


class OpenBody:
    """Collects entries until a request is full."""

    def __init__(self, max_bytes: int, max_count: int) -> None:
        self._max_bytes = max_bytes
        self._max_count = max_count
        self._parts: list[Entries] = []
        self._size = 0
        self._count = 0

    def add(self, entries: Entries) -> Iterator[Body]:
        """Yields the bodies that are full now. All of them must be consumed before the next call."""
        while len(entries):
            room = max(0, self._max_bytes - self._size), self._max_count - self._count
            number = entries.fitting(*room)
            if self._parts and entries.part(0, number).size > room[0]:
                yield from self.rest()
                continue
            self._keep(entries.part(0, number))
            entries = entries.part(number, len(entries))
            if self._size >= self._max_bytes or self._count >= self._max_count:
                yield from self.rest()

    def rest(self) -> Iterator[Body]:
        """Yields what has been collected so far, if anything."""
        if self._parts:
            parts, self._parts, self._size, self._count = self._parts, [], 0, 0
            yield Body(parts)

    def forget(self, batch_id: str) -> None:
        """Drop what was collected of that batch."""
        kept = [part for part in self._parts if part.batch.id != batch_id]
        self._parts, self._size, self._count = [], 0, 0
        for part in kept:
            self._keep(part)

    def _keep(self, part: Entries) -> None:
        self._parts.append(part)
        self._size += part.size
        self._count += len(part)


HASH_BYTES = 15
"""120 bits: among a billion objects, two have the same hash with a probability of 10^-18."""


def origin_prefix(batch: StagedBatch) -> str:
    """The beginning of all ids of a partition: 20 letters, digits, `-` and `_`, and a dot."""
    origin = f"{batch.key}\0{batch.incarnation}".encode("utf-8", "surrogatepass")
    digest = hashlib.blake2b(origin, digest_size=HASH_BYTES).digest()
    return base64.urlsafe_b64encode(digest).decode() + "."


def check_records_together(packed: Sequence[str]) -> None:
    """Raise `BatchError` if a record had rows in two tasks. `packed` has the records of each task of one batch."""
    if len(packed) > 1:
        _check_unique(
            [np.cumsum(np.frombuffer(zlib.decompress(base64.b64decode(records)), np.int64)) for records in packed]
        )


def _check_unique(heads: Sequence[Any]) -> None:
    records = np.concatenate(heads)
    if len(np.unique(records)) < len(records):
        raise BatchError(
            "a processor has separated rows of the same record, so that ids by origin are not unique; keep the rows of "
            "a record together, or give document_id a template"
        )


class RecordNumbers:
    """The second part of the ids of one batch's rows in one task, in the order in which the rows come."""

    def __init__(self) -> None:
        self._last = -1
        self._times = 0
        self._heads: list[Any] = []
        self._in_order = True

    def of(self, items: Any) -> Any:
        """For each row its item as text, followed by `-1`, `-2` for further rows of the same record."""
        numbers = np.asarray(items)
        texts = items.cast(pa.string())
        steps = np.diff(numbers, prepend=self._last)
        self._in_order = self._in_order and bool((steps >= 0).all())
        repeated = steps == 0
        heads = numbers[~repeated]
        self._heads.append(heads)
        if repeated.any():
            ranks = self._ranks(repeated)
            later = pc.binary_join_element_wise(texts, pa.array(ranks).cast(pa.string()), "-")
            texts = pc.if_else(pa.array(repeated), later, texts)
        self._remember(numbers, repeated)
        return texts

    def add_ascending(self, items: list[int]) -> bool:
        """Add the items if each is higher than the one before: then `of` would return just the items as text.

        Returns whether they were added. Faster than `of` for a few items.
        """
        if any(later <= earlier for earlier, later in pairwise([self._last, *items])):
            return False
        self._heads.append(items)
        self._last, self._times = items[-1], 0
        return True

    def check(self) -> None:
        """Raise `BatchError` if rows of a record were separated by others: two of them then have the same id."""
        if self._in_order or not self._heads:
            return
        _check_unique(self._heads)

    def packed(self) -> str:
        """The records that had rows here, for `check_records_together`; short where items are consecutive."""
        heads = np.sort(np.concatenate([np.asarray(heads, np.int64) for heads in self._heads or [[]]]))
        return base64.b64encode(zlib.compress(np.diff(heads, prepend=0).tobytes(), 1)).decode()

    def _ranks(self, repeated: Any) -> Any:
        """How many rows of the same record came before each row."""
        rows = np.arange(len(repeated))
        starts = np.maximum.accumulate(np.where(repeated, -1, rows))
        return np.where(starts >= 0, rows - starts, rows + 1 + self._times)

    def _remember(self, numbers: Any, repeated: Any) -> None:
        if not len(numbers):
            return
        self._last = int(numbers[-1])
        run = np.flatnonzero(~repeated)
        self._times = len(numbers) - 1 - int(run[-1]) if len(run) else self._times + len(numbers)
