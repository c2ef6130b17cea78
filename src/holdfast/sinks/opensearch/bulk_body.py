"""The body of a bulk request: entries of an action and mostly a document, each on a line, in contiguous memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

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
