"""Dead letters in a task: kept with the batch that they belong to, and committed and published with it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import suppress

from holdfast.buckets.bucket import OpenFile, StagingAttempt
from holdfast.errors import Unavailable
from holdfast.flow.fault import Fault, dead_letter
from holdfast.flow.names import dead_letter_key
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

    @abstractmethod
    def abandon(self, batch: StagedBatch) -> None:
        """Delete the staged letters of a batch that has failed. Never raises."""


class LetterFiles(LetterStaging):
    """Letters as lines of files below a root.

    A file is named by its first item, which must be known when the file is opened. So letters wait in memory to be
    sorted, and a letter that is lower than the first item of its file begins another file.
    """

    def __init__(
        self,
        attempt: StagingAttempt,
        max_waiting_bytes: int,
        opening: Callable[[StagedBatch], None] = lambda _batch: None,
    ) -> None:
        """`max_waiting_bytes` of each batch may wait in memory from one portion of rows to the next.

        `opening` is called before a file is opened, and raises where the receipt has no room for it.
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
    """Letters of one batch: at most one file is open."""

    def __init__(self, batch: StagedBatch, attempt: StagingAttempt, opening: Callable[[StagedBatch], None]) -> None:
        self.waiting_bytes = 0
        self._batch = batch
        self._attempt = attempt
        self._opening = opening
        self._file: OpenFile | None = None
        self._waiting: list[tuple[int, bytes]] = []
        self._entries: list[dict[str, Json]] = []

    def write(self, faults: Sequence[tuple[int, Fault]]) -> None:
        batch = self._batch
        for item, fault in faults:
            line = dead_letter(batch.pipeline, batch.key, item, fault)
            self._waiting.append((item, line))
            self.waiting_bytes += len(line)

    def flush(self) -> None:
        if not self._waiting:
            return
        lines, self._waiting, self.waiting_bytes = sorted(self._waiting), [], 0
        first = lines[0][0]
        if self._file is not None and first < self._file.first:
            self._close_file()
        if self._file is None:
            self._opening(self._batch)
            key = dead_letter_key(self._batch.name, self._batch.generation, first)
            self._file = OpenFile(self._attempt.stage(self._batch, key), key, first)
        for item, line in lines:
            self._file.write_line(item, line)

    def finish(self) -> list[dict[str, Json]]:
        self.flush()
        self._close_file()
        return self._entries

    def abandon(self) -> None:
        with suppress(Exception):
            self._close_file()
        with suppress(Unavailable):
            self._attempt.bucket.discard([entry["staged"] for entry in self._entries])

    def _close_file(self) -> None:
        if self._file is not None:
            file, self._file = self._file, None
            self._entries.append(file.close())
