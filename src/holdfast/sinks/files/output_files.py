"""Files of one batch in one output folder, written in blocks that follow from the rows alone.

The portions in which rows arrive depend on which batches share a task. The bytes of files must not: a file that is lost
after its commit is staged again alone, and must be the same.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.buckets.bucket import Bucket, OpenFile, StagingAttempt
from holdfast.errors import BatchError
from holdfast.flow.format import Format
from holdfast.flow.names import Layout, dead_letter_key, letter_records_key, staging_key
from holdfast.flow.source import ITEM_COLUMN
from holdfast.flow.staging import Room, StagedBatch
from holdfast.leases.lease import Json

BLOCK_ROWS = 8192
BLOCK_BYTES = 32 << 20


class OutputFiles:
    """Files of one batch in one output folder: at most one is open."""

    def __init__(
        self,
        *,
        batch: StagedBatch,
        output_folder: str,
        file_format: Format,
        layout: Layout,
        max_file_bytes: int | None,
        attempt: StagingAttempt,
        budget: ReceiptBudget,
    ) -> None:
        self._batch = batch
        self._output_folder = output_folder
        self._format = file_format
        self._layout = layout
        self._max_file_bytes = max_file_bytes
        self._attempt = attempt
        self._budget = budget
        self._blocks = Blocks()
        self._file: OpenFile | None = None
        # The first file is reserved before its rows are written, so that the budget counts it from now on.
        budget.reserve_file(output_folder)
        self._is_reserved = True

    @property
    def fits(self) -> bool:
        """Whether more rows can be added without another file."""
        return self._file is None or not self._is_large(self._file)

    @property
    def is_open(self) -> bool:
        return self._file is not None

    @property
    def buffered(self) -> int:
        """Bytes that wait in memory."""
        return self._blocks.buffered + (0 if self._file is None else self._file.buffered)

    def write(self, items: Any, rows: Any) -> None:
        self._write_blocks(self._blocks.add(rows.append_column(ITEM_COLUMN, items)))

    def flush(self) -> None:
        """Write the buffered rows; the file stays open."""
        self._write_blocks(self._blocks.rest())
        if self._file is not None:
            self._file.flush()

    def close(self) -> None:
        """Make everything durable. More rows may be written, to further files."""
        self._write_blocks(self._blocks.rest())
        self._close_file()

    def end(self) -> OpenFile | None:
        """Write the buffered rows. Returns the file that must still be closed, if there is one."""
        self._write_blocks(self._blocks.rest())
        file, self._file = self._file, None
        return file

    def forget(self) -> None:
        """Drop the buffered rows."""
        self._blocks = Blocks()

    def _write_blocks(self, blocks: Iterator[Any]) -> None:
        for block in blocks:
            items, rows = block.column(ITEM_COLUMN), block.drop_columns([ITEM_COLUMN])
            span = pc.min_max(items)
            first, last = span["min"].as_py(), span["max"].as_py()
            if self._file is not None and (first < self._file.first or self._is_full(self._file)):
                self._close_file()
            if self._file is None:
                self._file = self._opened(first, rows.schema)
            self._file.write_rows(first, last, rows)

    def _is_full(self, file: OpenFile) -> bool:
        # A file grows beyond its limit where the receipt has no room for another one.
        return self._is_large(file) and self._budget.has_room(self._output_folder)

    def _is_large(self, file: OpenFile) -> bool:
        limit = self._max_file_bytes
        return limit is not None and file.size + file.buffered >= limit

    def _opened(self, first: int, schema: pa.Schema) -> OpenFile:
        batch, folder = self._batch, self._output_folder
        if not self._is_reserved:
            self._budget.reserve_file(folder)
        self._is_reserved = False
        key = self._layout.key(batch.name, batch.generation, first, self._format.extension, folder)
        file = OpenFile(self._attempt.stage(batch, key), key, first, folder)
        file.writer = self._format.open(file, schema)
        return file

    def _close_file(self) -> None:
        if self._file is not None:
            file, self._file = self._file, None
            self._budget.add_entry(file.close())


class Blocks:
    """Cuts record batches into blocks that end after `rows` rows, or with the row that reaches `size` bytes of text."""

    def __init__(self, rows: int = BLOCK_ROWS, size: int = BLOCK_BYTES) -> None:
        self._most_rows = rows
        self._most_bytes = size
        self._waiting: list[Any] = []
        self._rows = 0
        self._bytes = 0

    @property
    def buffered(self) -> int:
        """Bytes of the rows that wait for their block to be full."""
        return self._bytes

    def add(self, rows: Any) -> Iterator[Any]:
        """Yields the blocks that are full now. All of them must be consumed before the next call."""
        if self._bytes + rows.nbytes >= self._most_bytes:
            # Only here may a block end by its bytes; measuring every text on each call would cost too much.
            yield from self._cut_by_bytes(self._joined(rows))
            return
        start = 0
        while rows.num_rows - start + self._rows >= self._most_rows:
            wanted = self._most_rows - self._rows
            yield self._joined(rows.slice(start, wanted))
            start += wanted
        self._keep(rows.slice(start))

    def rest(self) -> Iterator[Any]:
        """Yields the rows that are left, if any."""
        if self._waiting:
            yield self._joined()

    def _cut_by_bytes(self, rows: Any) -> Iterator[Any]:
        ends = np.cumsum(sum(map(_text_bytes, rows.columns), np.zeros(rows.num_rows, np.int64)))
        start, before = 0, 0
        while True:
            by_bytes = int(np.searchsorted(ends, before + self._most_bytes)) + 1
            end = min(start + self._most_rows, by_bytes)
            if end > rows.num_rows:
                break
            yield rows.slice(start, end - start)
            start, before = end, int(ends[end - 1])
        self._keep(rows.slice(start))

    def _keep(self, rows: Any) -> None:
        if rows.num_rows:
            self._waiting.append(rows)
            self._rows += rows.num_rows
            self._bytes += rows.nbytes

    def _joined(self, *last: Any) -> Any:
        parts, self._waiting, self._rows, self._bytes = [*self._waiting, *last], [], 0, 0
        return parts[0] if len(parts) == 1 else pa.concat_batches(parts)


def _text_bytes(column: Any) -> Any:
    """Bytes of text in each row of a column, nested text included; never more than the column takes in memory."""
    types, kind = pa.types, column.type
    if types.is_struct(kind):
        inner = [_text_bytes(column.field(index)) for index in range(kind.num_fields)]
        return sum(inner, np.zeros(len(column), np.int64))
    if types.is_list(kind) or types.is_large_list(kind) or types.is_map(kind):
        borders = np.asarray(column.offsets)
        values = [column.keys, column.items] if types.is_map(kind) else [column.values]
        before = np.concatenate([[0], np.cumsum(sum(map(_text_bytes, values)))])
        return before[borders[1:]] - before[borders[:-1]]
    if any(
        is_text(kind) for is_text in (types.is_string, types.is_binary, types.is_large_string, types.is_large_binary)
    ):
        return np.asarray(pc.binary_length(column).fill_null(0)).astype(np.int64)
    return np.zeros(len(column), np.int64)


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
        numbered = (batch.name, batch.generation, MAX_NUMBER)
        letters, records = dead_letter_key(*numbered), letter_records_key(*numbered)
        self._letters_size = self._size_of(letters, "") + self._size_of(records, "")
        # A file of dead letters, and one of their large records, are reserved from the start: both may be needed.
        self._size = self._letters_size

    def room(self, is_open: Callable[[str], bool]) -> Room:
        """How much may be added; rows of an output folder whose file is open need no further file."""
        most = self._batch.max_receipt_bytes
        size = None if most is None else most - self._size
        return Room(self._max_files - self._files, size, is_open, self.entry_size)

    def has_room(self, output_folder: str) -> bool:
        """Whether another file in that output folder is allowed."""
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
        """Reserve room for another file of dead letters. There is always room for the first one."""
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
