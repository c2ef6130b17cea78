"""The files sink in a task: rows of many batches become staged files, each of one batch and one place.

A file is named by the first item in it. The name is needed when the file is opened, so a file that meets a lower item
than its first is closed and another one begun.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.buckets.bucket import Bucket
from holdfast.buckets.staged_file import OpenFile, StagingAttempt
from holdfast.deadletters.staging import LetterFiles
from holdfast.errors import Refused, Unavailable
from holdfast.flow.fault import Fault, record_fault
from holdfast.flow.format import Format, Formats
from holdfast.flow.source import ITEM_COLUMN
from holdfast.flow.staging import Room, StagedBatch, Stager, Staging
from holdfast.formats._json_objects import raw_records
from holdfast.leases.lease import Json
from holdfast.sinks.files.blocks import Blocks
from holdfast.sinks.files.books import Books
from holdfast.sinks.files.layout import Layout

MAX_BUFFERED_BYTES = 128 << 20
"""What one task's open files may keep in memory together."""
MAX_WAITING_LETTERS = 256 << 10
"""What the dead letters of one batch may keep in memory from one portion of rows to the next."""
CLOSED_TOGETHER = 32
"""Files whose ends are sent side by side: each waits for its bucket's answer."""


class FilesStager(Stager):
    """How files are staged in one bucket."""

    bounded = True

    def __init__(
        self,
        bucket: Bucket,
        formats: Formats | Format,
        max_open_files: int = 64,
        max_file_bytes: int | None = None,
        layout: Layout | None = None,
        max_files: int = 1000,
    ) -> None:
        self.bucket = bucket
        self.formats = formats if isinstance(formats, Formats) else Formats(formats)
        self.max_open_files = max_open_files
        self.max_file_bytes = max_file_bytes
        self.layout = layout or Layout()
        self.max_files = max_files

    def columns(self, fields: Any) -> Mapping[str, Any]:
        wanted: dict[str, Any] = {}
        for chosen in self.formats.all():
            for name, expression in chosen.columns(fields).items():
                if wanted.setdefault(name, expression) is not expression:
                    raise Refused(f"two formats of one sink want the column {name} in different ways; use two sinks")
        return wanted

    def warm_up(self) -> None:
        self.bucket.warm_up()

    def begin(self) -> FilesStaging:
        return FilesStaging(self)


class FilesStaging(Staging):
    """The open files of one attempt of one task."""

    def __init__(self, stager: FilesStager) -> None:
        self._stager = stager
        self._attempt = StagingAttempt(stager.bucket)
        # Least recently used first, by batch and place.
        self._open: OrderedDict[tuple[str, str], _Place] = OrderedDict()
        self._expected: set[tuple[str, str]] = set()
        """What is open and gets rows next."""
        self._letters = LetterFiles(
            self._attempt, MAX_WAITING_LETTERS, lambda batch: self._books_of(batch).opens_letters()
        )
        self._books: dict[str, Books] = {}
        self._broken: dict[str, Exception] = {}
        self._waiting = 0
        self._open_files = 0

    def write(self, batch: StagedBatch, items: Any, rows: Any, place: str = "") -> int:
        self._check(batch)
        chosen = self._stager.formats.of(batch.name.stream)
        rows, items, unfit = self._parted(batch, chosen, items, rows)
        if rows.num_rows:
            files = self._place(batch, place, chosen)
            with self._metered(files):
                files.write(items, rows)
            self._expected.discard((batch.id, place))
            self._keep_bounds((batch.id, place))
        return unfit

    def expect(self, batch: StagedBatch, places: Collection[str]) -> None:
        self._expected = {key for place in places if (key := (batch.id, place)) in self._open}
        self._letters.flush_if_many(batch)

    def _parted(self, batch: StagedBatch, chosen: Format, items: Any, rows: Any) -> tuple[Any, Any, int]:
        """Rows that the format can hold, and how many it cannot: those are dead letters."""
        reasons = chosen.faults(rows)
        if reasons is None or reasons.null_count == len(reasons):
            return rows, items, 0
        bad = reasons.is_valid()
        raws, is_value = raw_records(rows.filter(bad))
        told = zip(items.filter(bad).to_pylist(), reasons.filter(bad).to_pylist(), raws, strict=True)
        form = batch.raw_form(is_value=is_value)
        faults = [(item, replace(record_fault(reason, raw), form=form)) for item, reason, raw in told]
        self.bury(batch, faults)
        good = reasons.is_null()
        return rows.filter(good), items.filter(good), len(faults)

    def bury(self, batch: StagedBatch, faults: Sequence[tuple[int, Fault]]) -> None:
        self._check(batch)
        self._letters.write(batch, faults)

    def room(self, batch: StagedBatch) -> Room:
        def is_open(place: str) -> bool:
            files = self._open.get((batch.id, place))
            return files is not None and files.fits

        return self._books_of(batch).room(is_open)

    def finish(self, batch: StagedBatch) -> Json:
        self._check(batch)
        keys = [key for key in self._open if key[0] == batch.id]
        for some in (keys[at : at + CLOSED_TOGETHER] for at in range(0, len(keys), CLOSED_TOGETHER)):
            self._close_together(batch, [self._open.pop(key) for key in some])
        letters = self._letters.finish(batch)
        books = self._books.pop(batch.id, None)
        return {"files": [*([] if books is None else books.entries), *letters]}

    def _close_together(self, batch: StagedBatch, places: Sequence[_Place]) -> None:
        with ExitStack() as metering:
            for one in places:
                metering.enter_context(self._metered(one))
            files = [file for one in places if (file := one.end()) is not None]
            closed = self._stager.bucket.close_all([file.end() for file in files])
        for file, told in zip(files, closed, strict=True):
            self._books_of(batch).closed(file.entry(told))

    def abandon(self, batch: StagedBatch) -> None:
        for files in [self._open.pop(key) for key in list(self._open) if key[0] == batch.id]:
            with suppress(Exception), self._metered(files):
                files.forget()
                files.close()
        self._letters.abandon(batch)
        books = self._books.pop(batch.id, None)
        with suppress(Unavailable):
            self._stager.bucket.discard([] if books is None else [file["staged"] for file in books.entries])

    def _place(self, batch: StagedBatch, place: str, chosen: Format) -> _Place:
        key = (batch.id, place)
        if key not in self._open:
            self._open[key] = _Place(self._stager, batch, place, chosen, self._attempt, self._books_of(batch))
        self._open.move_to_end(key)
        return self._open[key]

    def _books_of(self, batch: StagedBatch) -> Books:
        if batch.id not in self._books:
            stager = self._stager
            self._books[batch.id] = Books(batch, stager.bucket, stager.layout, stager.max_files)
        return self._books[batch.id]

    def _check(self, batch: StagedBatch) -> None:
        """Raise what went wrong behind the batch's back."""
        if batch.id in self._broken:
            raise self._broken[batch.id]

    def _keep_bounds(self, latest: tuple[str, str]) -> None:
        # Rows of a batch come together unless a processor mixed them, so the one used longest ago is mostly complete.
        if self._within_bounds():
            return
        for closing in (False, True):
            for key in [key for key in self._open if key != latest]:
                closes = closing or self._open_files > self._stager.max_open_files
                self._retire(key, closing=closes and key not in self._expected)
                if self._within_bounds():
                    return

    def _within_bounds(self) -> bool:
        return self._waiting <= MAX_BUFFERED_BYTES and self._open_files <= self._stager.max_open_files

    @contextmanager
    def _metered(self, files: _Place) -> Iterator[None]:
        """Keep the sums of all places: there may be thousands, and each is touched for every portion of rows."""
        waiting, was_open = files.buffered, files.is_open
        try:
            yield
        finally:
            self._waiting += files.buffered - waiting
            self._open_files += files.is_open - was_open

    def _retire(self, key: tuple[str, str], *, closing: bool) -> None:
        """Make room for others. What goes wrong is this batch's own trouble: it is told when the batch comes next."""
        files = self._open.pop(key) if closing else self._open[key]
        try:
            with self._metered(files):
                files.close() if closing else files.flush()
        except Exception as error:  # noqa: BLE001 - any error leaves a file of which nobody knows what is in it
            self._broken[key[0]] = error


class _Place:
    """Files of one batch and one place: at most one is open."""

    def __init__(
        self,
        stager: FilesStager,
        batch: StagedBatch,
        place: str,
        chosen: Format,
        attempt: StagingAttempt,
        books: Books,
    ) -> None:
        self._stager = stager
        self._batch = batch
        self._place = place
        self._format = chosen
        self._attempt = attempt
        self._books = books
        self._blocks = Blocks()
        self._file: OpenFile | None = None
        self._is_counted = True
        books.opens(place)

    @property
    def fits(self) -> bool:
        """Whether more rows need no further file."""
        return self._file is None or not self._is_large(self._file)

    @property
    def is_open(self) -> bool:
        return self._file is not None

    @property
    def buffered(self) -> int:
        return self._blocks.buffered + (0 if self._file is None else self._file.buffered)

    def write(self, items: Any, rows: Any) -> None:
        self._write_blocks(self._blocks.add(rows.append_column(ITEM_COLUMN, items)))

    def flush(self) -> None:
        """Hand over what waits in memory; the file stays open."""
        self._write_blocks(self._blocks.rest())
        if self._file is not None:
            self._file.flush()

    def close(self) -> None:
        """Make durable what there is. More may be written, to other files."""
        self._write_blocks(self._blocks.rest())
        self._close_file()

    def end(self) -> OpenFile | None:
        """Write what waits. Answers the file that is left to be closed, if there is one."""
        self._write_blocks(self._blocks.rest())
        file, self._file = self._file, None
        return file

    def forget(self) -> None:
        """Rows that wait are not needed any more."""
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
        # At the bound of files it grows on until the batch ends.
        return self._is_large(file) and self._books.has_room(self._place)

    def _is_large(self, file: OpenFile) -> bool:
        limit = self._stager.max_file_bytes
        return limit is not None and file.size + file.buffered >= limit

    def _opened(self, first: int, schema: pa.Schema) -> OpenFile:
        batch = self._batch
        if not self._is_counted:
            self._books.opens(self._place)
        self._is_counted = False
        key = self._stager.layout.key(batch.name, batch.generation, first, self._format.extension, self._place)
        file = OpenFile(self._attempt.stage(batch, key), key, first, self._place)
        file.writer = self._format.open(file, schema)
        return file

    def _close_file(self) -> None:
        if self._file is not None:
            file, self._file = self._file, None
            self._books.closed(file.close())
