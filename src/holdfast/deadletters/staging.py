"""Dead letters in a task: kept with the batch that they belong to, and committed and published with it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import suppress

from holdfast.buckets.bucket import OpenFile, StagingAttempt
from holdfast.errors import Unavailable
from holdfast.flow.fault import Fault, dead_letter
from holdfast.flow.letter import NewLetter, new_letters
from holdfast.flow.names import dead_letter_key, letter_records_key
from holdfast.flow.staging import StagedBatch
from holdfast.leases.lease import Json


class LetterStaging(ABC):
    """Dead letters of one attempt of one task."""

    @abstractmethod
    def write(self, batch: StagedBatch, faults: Sequence[tuple[int, Fault]]) -> None:
        """Keep these faults as dead letters. May return before they are durable."""

    def flush_if_many(self, batch: StagedBatch) -> None:
        """Called after each portion of rows: writes the letters if they take much memory."""

    @abstractmethod
    def finish(self, batch: StagedBatch) -> list[dict[str, Json]]:
        """Entries of the files that hold the letters of the batch, for the receipt; the files are durable."""

    def lists(self, batch: StagedBatch) -> list[str]:  # noqa: ARG002 - files list their letters themselves
        """Ids of the documents that list the letters of the batch, for the receipt. Called once, before `finish`.

        May return before they are durable.
        """
        return []

    @abstractmethod
    def abandon(self, batch: StagedBatch) -> None:
        """Delete the staged letters of a batch that has failed. Never raises."""


class LetterFiles(LetterStaging):
    """Letters as lines of files below a root.

    A file is named by its first item, which must be known when the file is opened. So letters wait in memory to be
    sorted, and a letter whose item is lower than the first one of the open file begins another file. Large records are
    in a file beside it, and each letter names its part of that file.
    """

    def __init__(
        self,
        attempt: StagingAttempt,
        max_waiting_bytes: int,
        opening: Callable[[StagedBatch], None] = lambda _batch: None,
    ) -> None:
        """At most `max_waiting_bytes` of each batch wait in memory from one portion of rows to the next.

        `opening` is called before a file is opened, and raises if the receipt has no room for it.
        """
        self._attempt = attempt
        self._max_waiting_bytes = max_waiting_bytes
        self._opening = opening
        self._batches: dict[str, _BatchLetters] = {}

    def write(self, batch: StagedBatch, faults: Sequence[tuple[int, Fault]]) -> None:
        if batch.id not in self._batches:
            self._batches[batch.id] = _BatchLetters(batch, self._attempt, self._opening)
        self._batches[batch.id].write(faults)

    def flush_if_many(self, batch: StagedBatch) -> None:
        letters = self._batches.get(batch.id)
        if letters is not None and letters.waiting_bytes > self._max_waiting_bytes:
            letters.flush()

    def finish(self, batch: StagedBatch) -> list[dict[str, Json]]:
        letters = self._batches.get(batch.id)
        entries = [] if letters is None else letters.finish()
        self._batches.pop(batch.id, None)
        return entries

    def abandon(self, batch: StagedBatch) -> None:
        letters = self._batches.pop(batch.id, None)
        if letters is not None:
            letters.abandon()


class _BatchLetters:
    """Letters of one batch: at most one file is open, with at most one file of the large records of its letters."""

    def __init__(self, batch: StagedBatch, attempt: StagingAttempt, opening: Callable[[StagedBatch], None]) -> None:
        self.waiting_bytes = 0
        self._batch = batch
        self._attempt = attempt
        self._opening = opening
        self._file: OpenFile | None = None
        self._records: OpenFile | None = None
        self._waiting: list[tuple[int, Fault]] = []
        self._entries: list[dict[str, Json]] = []

    def write(self, faults: Sequence[tuple[int, Fault]]) -> None:
        self._waiting += faults
        self.waiting_bytes += sum(len(fault.reason) + len(fault.raw or "") for _, fault in faults)

    def flush(self) -> None:
        if not self._waiting:
            return
        waiting, self._waiting, self.waiting_bytes = self._waiting, [], 0
        first = min(item for item, _ in waiting)
        if self._file is not None and first < self._file.first:
            self._close_files()
        if self._file is None:
            self._opening(self._batch)
            self._file = self._opened(dead_letter_key(self._batch.name, self._batch.generation, first), first)
        batch = self._batch
        for letter in new_letters(batch, waiting):
            more = letter.more if letter.spill is None else self._spilled(letter, letter.spill, self._file.first)
            self._file.write_line(letter.item, dead_letter(batch.pipeline, batch.key, letter.item, letter.fault, more))

    def _spilled(self, letter: NewLetter, record: bytes, first: int) -> dict[str, Json]:
        """Write the record into the file of large records; returns the fields of its letter."""
        key = letter_records_key(self._batch.name, self._batch.generation, first)
        if self._records is None:
            self._records = self._opened(key, first)
        start = self._records.size
        self._records.write_line(letter.item, record, rows=0)
        return letter.spilled({"file": key, "start": start})

    def _opened(self, key: str, first: int) -> OpenFile:
        return OpenFile(self._attempt.stage(self._batch, key), key, first)

    def finish(self) -> list[dict[str, Json]]:
        self.flush()
        self._close_files()
        return self._entries

    def abandon(self) -> None:
        while self._file is not None or self._records is not None:
            with suppress(Exception):
                self._close_files()
        with suppress(Unavailable):
            self._attempt.bucket.discard([entry["staged"] for entry in self._entries])

    def _close_files(self) -> None:
        if self._file is not None:
            file, self._file = self._file, None
            self._entries.append(file.close())
        if self._records is not None:
            file, self._records = self._records, None
            self._entries.append(file.close())
