"""Entries of a bulk request: an action and, for most, a document, each on a line of its own, in one piece of memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from holdfast.flow.fault import Fault, record_fault
from holdfast.flow.staging import StagedBatch


@dataclass(frozen=True)
class Entries:
    """Rows of one batch as they are sent. `borders` has one number more than there are rows."""

    batch: StagedBatch
    data: Any
    borders: Any
    items: Any
    documents: Any
    """The documents alone, for dead letters: a binary Arrow array."""
    form: str | None = None
    """What a document is if not the record as it was read, in the words of `holdfast.flow.fault`."""

    def __len__(self) -> int:
        return len(self.items)

    @property
    def size(self) -> int:
        return int(self.borders[-1] - self.borders[0])

    def bytes(self) -> Any:
        """All of it, not copied."""
        return memoryview(self.data)[int(self.borders[0]) : int(self.borders[-1])]

    def part(self, start: int, end: int) -> Entries:
        """The rows from `start` to `end`, not copied."""
        if (start, end) == (0, len(self)):
            return self
        borders, items = self.borders[start : end + 1], self.items[start:end]
        return replace(self, borders=borders, items=items, documents=self.documents.slice(start, end - start))

    def fault(self, place: int, reason: str) -> Fault:
        """What a dead letter tells of the row at this place."""
        return replace(record_fault(reason, self.documents[place].as_py() or b""), form=self.form)

    def chosen(self, places: Any) -> Entries:
        """The rows at these places, copied."""
        view = memoryview(self.data)
        pieces = [view[self.borders[place] : self.borders[place + 1]] for place in places]
        borders = np.concatenate([[0], np.cumsum([len(piece) for piece in pieces])]).astype(np.int64)
        documents = self.documents.take(places)
        return replace(self, data=b"".join(pieces), borders=borders, items=self.items[places], documents=documents)

    def fitting(self, size: int, count: int) -> int:
        """How many of the first rows are within both bounds; at least one."""
        if self.size <= size and len(self) <= count:
            return len(self)
        within = int(np.searchsorted(self.borders[1:] - self.borders[0], size, side="right"))
        return min(len(self), max(1, min(within, count)))


@dataclass(frozen=True)
class Body:
    """What is sent together, to the index of the sink or to that of the dead letters."""

    parts: Sequence[Entries]
    letters: str | None = None
    """The index of dead letters, if these are some."""

    def __len__(self) -> int:
        return sum(map(len, self.parts))

    @property
    def size(self) -> int:
        return sum(part.size for part in self.parts)

    def bytes(self) -> bytes:
        return b"".join(part.bytes() for part in self.parts)

    def halves(self) -> tuple[Body, Body]:
        """The same in two; each has at least one row if there are two."""
        before, middle = [], len(self) // 2
        behind: list[Entries] = []
        for part in self.parts:
            cut = min(max(middle, 0), len(part))
            if cut:
                before.append(part.part(0, cut))
            if cut < len(part):
                behind.append(part.part(cut, len(part)))
            middle -= len(part)
        return Body(before, self.letters), Body(behind, self.letters)

    def chosen(self, places: Any) -> Body:
        """The rows at these places of all rows, in order."""
        return Body([part.chosen(own) for part, own in self.apart(places) if len(own)], self.letters)

    def apart(self, places: Any) -> Iterator[tuple[Entries, Any]]:
        """Each part, and those of the places that are in it, counted from its own beginning."""
        first = 0
        wanted = np.asarray(places, np.int64)
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
        """The requests that are full now; all must be taken before the next call."""
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
        """What has been collected so far, if anything."""
        if self._parts:
            parts, self._parts, self._size, self._count = self._parts, [], 0, 0
            yield Body(parts)

    def forget(self, batch_id: str) -> None:
        """Nobody needs what is left of that batch."""
        kept = [part for part in self._parts if part.batch.id != batch_id]
        self._parts, self._size, self._count = [], 0, 0
        for part in kept:
            self._keep(part)

    def _keep(self, part: Entries) -> None:
        self._parts.append(part)
        self._size += part.size
        self._count += len(part)
