"""The files sink in a task: rows of many batches become staged files, each of one batch.

A file is named by the first item in it. The name is needed when the file is opened, so a file that meets a lower item
than its first is closed and another one begun.
"""

from __future__ import annotations

import uuid
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.buckets.bucket import Bucket, StagedWriter
from holdfast.errors import SinkUnavailable
from holdfast.flow.deadletter import Fault, dead_letter
from holdfast.flow.format import Format, FormatWriter
from holdfast.flow.names import dead_letter_key, file_key, staging_key
from holdfast.flow.source import ITEM_COLUMN
from holdfast.flow.staging import StagedBatch, Stager, Staging
from holdfast.leases.lease import Json
from holdfast.sinks.files.blocks import Blocks

MAX_BUFFERED_BYTES = 128 << 20
"""What one task's open files may keep in memory together."""


class FilesStager(Stager):
    """How files of one format are staged in one bucket."""

    def __init__(
        self, bucket: Bucket, file_format: Format, max_open_files: int = 64, max_file_bytes: int | None = None
    ) -> None:
        self.bucket = bucket
        self.format = file_format
        self.max_open_files = max_open_files
        self.max_file_bytes = max_file_bytes

    def columns(self, fields: Any) -> Mapping[str, Any]:
        return self.format.columns(fields)

    def begin(self) -> FilesStaging:
        return FilesStaging(self)


class FilesStaging(Staging):
    """The open files of one attempt of one task."""

    def __init__(self, stager: FilesStager) -> None:
        self._stager = stager
        self._attempt = uuid.uuid4().hex
        self._parts = 0
        # Least recently used first.
        self._batches: OrderedDict[str, BatchFiles] = OrderedDict()

    def write(self, batch: StagedBatch, items: Any, rows: Any) -> None:
        self._files_of(batch).write(items, rows)
        self._keep_bounds()

    def bury(self, batch: StagedBatch, faults: Sequence[tuple[int, Fault]]) -> None:
        self._files_of(batch).bury(faults)
        self._keep_bounds()

    def finish(self, batch: StagedBatch) -> Json:
        files = self._batches.get(batch.id)
        if files is None:
            return {"files": []}
        files.check()
        files.close()
        return {"files": self._batches.pop(batch.id).done}

    def abandon(self, batch: StagedBatch) -> None:
        files = self._batches.pop(batch.id, None)
        if files is not None:
            files.delete()

    def _files_of(self, batch: StagedBatch) -> BatchFiles:
        files = self._batches.setdefault(batch.id, BatchFiles(self._stager, batch, self._next_part))
        self._batches.move_to_end(batch.id)
        files.check()
        return files

    def _next_part(self) -> str:
        self._parts += 1
        return f"{self._attempt}-{self._parts}"

    def _keep_bounds(self) -> None:
        # Rows of a batch come together unless a processor mixed them, so the one used longest ago is mostly complete.
        *older, _ = self._batches.values()
        too_many = sum(files.open_files for files in self._batches.values()) - self._stager.max_open_files
        too_much = sum(files.buffered for files in self._batches.values()) - MAX_BUFFERED_BYTES
        for files in older:
            if too_many <= 0 and too_much <= 0:
                return
            closing = too_many > 0
            too_many -= files.open_files
            too_much -= files.buffered
            files.retire(closing=closing)


class BatchFiles:
    """The files of one batch: at most one open for data, and one for dead letters."""

    def __init__(self, stager: FilesStager, batch: StagedBatch, next_part: Any) -> None:
        self.done: list[dict[str, Json]] = []
        self._stager = stager
        self._batch = batch
        self._next_part = next_part
        self._blocks = Blocks()
        self._data: _OpenFile | None = None
        self._letters: _OpenFile | None = None
        self._broken: Exception | None = None

    @property
    def open_files(self) -> int:
        return sum(file is not None for file in (self._data, self._letters))

    @property
    def buffered(self) -> int:
        return 0 if self._data is None else self._data.buffered

    def write(self, items: Any, rows: Any) -> None:
        self._write_blocks(self._blocks.add(rows.append_column(ITEM_COLUMN, items)))

    def bury(self, faults: Sequence[tuple[int, Fault]]) -> None:
        items = [item for item, _ in faults]
        if self._letters is not None and min(items) < self._letters.first:
            self._close_letters()
        if self._letters is None:
            key = dead_letter_key(self._batch.name, self._batch.generation, min(items))
            self._letters = _OpenFile(self._staged(key), key, min(items))
        batch = self._batch
        for item, fault in faults:
            self._letters.write_line(item, dead_letter(batch.pipeline, batch.key, item, fault))

    def retire(self, *, closing: bool) -> None:
        """Make room for others. What goes wrong is this batch's own trouble: it is told when the batch comes next."""
        try:
            if closing:
                self.close()
            elif self._data is not None:
                self._data.flush()
        except Exception as error:  # noqa: BLE001 - any error leaves a file of which nobody knows what is in it
            self._broken = error

    def check(self) -> None:
        """Raise what went wrong behind the batch's back."""
        if self._broken is not None:
            raise self._broken

    def close(self) -> None:
        """Make durable what there is. More may be written, to other files."""
        self._write_blocks(self._blocks.rest())
        self._close_data()
        self._close_letters()

    def delete(self) -> None:
        """Delete all of it, as far as that is possible now."""
        with suppress(Exception):
            self._blocks = Blocks()
            self.close()
        with suppress(SinkUnavailable):
            self._stager.bucket.discard([file["staged"] for file in self.done])

    def _write_blocks(self, blocks: Iterator[Any]) -> None:
        for block in blocks:
            items, rows = block.column(ITEM_COLUMN), block.drop_columns([ITEM_COLUMN])
            span = pc.min_max(items)
            first, last = span["min"].as_py(), span["max"].as_py()
            if self._data is not None and (first < self._data.first or self._is_full(self._data)):
                self._close_data()
            if self._data is None:
                self._data = self._opened(first, rows.schema)
            self._data.write_rows(first, last, rows)

    def _is_full(self, file: _OpenFile) -> bool:
        limit = self._stager.max_file_bytes
        return limit is not None and file.size + file.buffered >= limit

    def _opened(self, first: int, schema: pa.Schema) -> _OpenFile:
        key = file_key(self._batch.name, self._batch.generation, first, self._stager.format.extension)
        file = _OpenFile(self._staged(key), key, first)
        file.writer = self._stager.format.open(file, schema)
        return file

    def _staged(self, key: str) -> StagedWriter:
        batch = self._batch
        return self._stager.bucket.stage(staging_key(batch.name, batch.token, batch.id, self._next_part()), key)

    def _close_data(self) -> None:
        if self._data is not None:
            self.done.append(self._data.close())
            self._data = None

    def _close_letters(self) -> None:
        if self._letters is not None:
            self.done.append(self._letters.close())
            self._letters = None


class _OpenFile:
    """One staged file, and what its receipt says of it."""

    def __init__(self, raw: StagedWriter, key: str, first: int) -> None:
        self.first = first
        self.size = 0
        self.writer: FormatWriter | None = None
        self._raw = raw
        self._key = key
        self._last = first
        self._rows = 0

    @property
    def buffered(self) -> int:
        return 0 if self.writer is None else self.writer.buffered

    def flush(self) -> None:
        if self.writer is not None:
            self.writer.flush()

    def write(self, data: Any) -> int:
        """What the format's writer calls."""
        written = self._raw.write(data)
        self.size += written
        return written

    def write_rows(self, first: int, last: int, rows: Any) -> None:
        assert self.writer is not None
        assert first >= self.first
        self._last = max(self._last, last)
        self._rows += rows.num_rows
        self.writer.write(rows)

    def write_line(self, item: int, line: bytes) -> None:
        self._last = max(self._last, item)
        self._rows += 1
        self.write(line)

    def close(self) -> dict[str, Json]:
        if self.writer is not None:
            self.writer.close()
        handle, size, sha256 = self._raw.close()
        return {
            "staged": handle,
            "key": self._key,
            "rows": self._rows,
            "size": size,
            "sha256": sha256,
            "first": self.first,
            "last": self._last,
        }
