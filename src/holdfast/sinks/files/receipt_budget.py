"""How many files a batch may have: their entries in the receipt, and the room that is reserved for those to come.

The receipt is a part of the lease's row, so its size is bounded and computed before a file is opened.
"""

from __future__ import annotations

import json
from collections.abc import Callable

from holdfast.buckets.bucket import Bucket
from holdfast.errors import BatchError
from holdfast.flow.names import dead_letter_key, staging_key
from holdfast.flow.staging import Room, StagedBatch
from holdfast.leases.lease import Json
from holdfast.sinks.files.layout import Layout

MAX_NUMBER = 10**19
"""A number with more digits than any item or count."""
ENTRY_BYTES = 330
"""Bytes of an entry without its names: digest, numbers and JSON keys."""
LONGEST_EXTENSION = "x" * 16
LONGEST_PART = "x" * 48


class ReceiptBudget:
    """The files of one batch, in one attempt of one task."""

    def __init__(self, batch: StagedBatch, bucket: Bucket, layout: Layout, max_files: int) -> None:
        self.entries: list[dict[str, Json]] = []
        self._batch = batch
        self._bucket = bucket
        self._layout = layout
        self._max_files = max_files
        self._files = 0
        self._letter_files = 0
        letters = dead_letter_key(batch.name, batch.generation, MAX_NUMBER)
        self._letters_size = self._size_of(letters, "")
        # A file of dead letters is reserved from the start: there may be letters at any time.
        self._size = self._letters_size

    def room(self, is_open: Callable[[str], bool]) -> Room:
        """What may be added; rows of an output folder whose file is open need no further file."""
        most = self._batch.max_receipt_bytes
        size = None if most is None else most - self._size
        return Room(self._max_files - self._files, size, is_open, self.entry_size)

    def has_room(self, output_folder: str) -> bool:
        """Whether there may be another file in that output folder."""
        most = self._batch.max_receipt_bytes
        return self._files < self._max_files and (most is None or self._size + self.entry_size(output_folder) <= most)

    def entry_size(self, output_folder: str) -> int:
        """Bytes that a file of that output folder takes in the receipt, at most."""
        batch = self._batch
        key = self._layout.key(batch.name, batch.generation, MAX_NUMBER, LONGEST_EXTENSION, output_folder)
        return self._size_of(key, output_folder)

    def reserve_file(self, output_folder: str) -> None:
        """Reserve room for another file of that output folder. Raises `BatchError` if the commit cannot hold it."""
        self._files += 1
        self._check_files(self._files)
        self._reserve(self.entry_size(output_folder))

    def reserve_letters(self) -> None:
        """Reserve room for another file of dead letters. For the first one there always is room."""
        self._letter_files += 1
        if self._letter_files > 1:
            self._check_files(self._files + self._letter_files - 1)
            self._reserve(self._letters_size)

    def add_entry(self, entry: dict[str, Json]) -> None:
        """Add the entry of a file that was closed."""
        self.entries.append(entry)

    def _reserve(self, size: int) -> None:
        self._size += size
        most = self._batch.max_receipt_bytes
        if most is not None and self._size > most:
            raise BatchError(
                f"the receipt of this batch would have {self._files} files and more than {most} bytes, for which the "
                "row in the store has no room, and the batch cannot be cut short. Use fewer partition names per "
                "record, or lower the bytes of a batch; if rows are not in the order of their records, keep the order"
            )

    def _check_files(self, number: int) -> None:
        # A batch that must be staged as it was planned is bounded by its receipt alone.
        if self._batch.max_bytes is not None and number > self._max_files:
            raise BatchError(
                f"this batch becomes more than {self._max_files} files (max_files of the sink), and it cannot be cut "
                "short because its rows are not in the order of their records; keep the order in processors"
            )

    def _size_of(self, key: str, output_folder: str) -> int:
        batch = self._batch
        staged = staging_key(batch.name, batch.token, batch.id, LONGEST_PART)
        # The folder's name is in the entry twice where some of its records came late.
        return ENTRY_BYTES + len(key) + self._bucket.handle_size(staged, key) + 2 * len(json.dumps(output_folder)) + 40
