"""The files sink in a task: rows of many batches become staged files, each of one batch and one output folder.

A file is named by the first item in it. The name is needed when the file is opened, so a row with a lower item than
the first one of its file begins another file.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.buckets.bucket import Bucket, StagingAttempt
from holdfast.deadletters.staging import LetterFiles
from holdfast.errors import Refused, Unavailable
from holdfast.flow.fault import Fault, record_fault
from holdfast.flow.format import Format, Formats
from holdfast.flow.names import Layout, folder_refusal
from holdfast.flow.staging import RefusesRecords, Room, StagedBatch, Stager
from holdfast.formats._json_objects import raw_records
from holdfast.leases.lease import Json
from holdfast.sinks.files.output_files import OutputFiles, ReceiptBudget

MAX_BUFFERED_BYTES = 128 << 20
"""Bytes that all open files of one task may keep in memory."""
MAX_WAITING_LETTERS = 256 << 10
"""Bytes of a batch's dead letters that may wait in memory from one portion of rows to the next."""
CLOSED_AT_A_TIME = 32
"""Files whose ends are sent side by side: each waits for a response of the bucket."""


class FilesStager(Stager):
    """How files are staged in one bucket."""

    bounded = True

    def __init__(
        self,
        bucket: Bucket,
        formats: Formats | Format,
        *,
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


class FilesStaging(RefusesRecords):
    """The open files of one attempt of one task."""

    def __init__(self, stager: FilesStager) -> None:
        self._stager = stager
        self._attempt = StagingAttempt(stager.bucket)
        # By batch and output folder, least recently used first.
        self._open: OrderedDict[tuple[str, str], OutputFiles] = OrderedDict()
        self._expected: set[tuple[str, str]] = set()
        """The open files that get rows next."""
        self._letters = LetterFiles(
            self._attempt, MAX_WAITING_LETTERS, opening=lambda batch: self._budget(batch).reserve_letters()
        )
        self._budgets: dict[str, ReceiptBudget] = {}
        self._skipped = Counter[str]()
        """By batch, the rows that the format leaves out."""
        self._errors: dict[str, Exception] = {}
        """By batch, the error that occurred while rows of other batches were written."""
        self._reasons: dict[str, str] = {}
        """By batch, the reason of its first dead letter."""
        self._buffered = 0
        self._open_files = 0

    def write(self, batch: StagedBatch, items: Any, rows: Any, output_folder: str = "") -> int:
        self._check(batch)
        if (refusal := folder_refusal(output_folder)) is not None:
            return self.refuse(batch, items, rows, pa.repeat(pa.scalar(refusal), rows.num_rows))
        chosen = self._stager.formats.of(batch.name.stream)
        rows, items, unfit = self._fitting(batch, chosen, items, rows)
        if rows.num_rows:
            files = self._output_files(batch, output_folder, chosen)
            with self._metered(files):
                files.write(items, rows)
            self._expected.discard((batch.id, output_folder))
            self._keep_bounds((batch.id, output_folder))
        return unfit

    def expect(self, batch: StagedBatch, output_folders: Collection[str]) -> None:
        self._expected = {key for folder in output_folders if (key := (batch.id, folder)) in self._open}
        self._letters.flush_if_many(batch)

    def _fitting(self, batch: StagedBatch, chosen: Format, items: Any, rows: Any) -> tuple[Any, Any, int]:
        """The rows that the format can hold with their items, and how many of the others became dead letters."""
        reasons = chosen.faults(rows)
        if reasons is None or reasons.null_count == len(reasons):
            return rows, items, 0
        bad = reasons.is_valid()
        if chosen.skips:
            skipped = _skipped(chosen, reasons)
            self._skipped[batch.id] += pc.sum(skipped).as_py() or 0
            bad = pc.and_not(bad, skipped)
        unfit = self.refuse(batch, items.filter(bad), rows.filter(bad), reasons.filter(bad))
        good = reasons.is_null()
        return rows.filter(good), items.filter(good), unfit

    def refusals(self, batch: StagedBatch, rows: Any, output_folder: str = "") -> Any | None:
        if (refusal := folder_refusal(output_folder)) is not None:
            return pa.repeat(pa.scalar(refusal), rows.num_rows)
        chosen = self._stager.formats.of(batch.name.stream)
        reasons = chosen.faults(rows)
        if reasons is None or not chosen.skips:
            return reasons
        return pc.if_else(_skipped(chosen, reasons), None, reasons)

    def withhold(
        self,
        batch: StagedBatch,
        items: Any,
        rows: Any,
        reasons: Any,
        output_folder: str = "",  # noqa: ARG002 - letters have no folder
    ) -> int:
        return self.refuse(batch, items, rows, reasons, whole=True)

    def refuse(self, batch: StagedBatch, items: Any, rows: Any, reasons: Any, *, whole: bool = False) -> int:
        """Keep these rows as dead letters, each with its reason. Returns their number.

        `whole`: these are all rows of their records.
        """
        raws, is_value = raw_records(rows)
        form = batch.raw_form(is_value=is_value)
        refused = zip(items.to_pylist(), reasons.to_pylist(), raws, strict=True)
        faults = [(item, replace(record_fault(reason, raw), form=form, whole=whole)) for item, reason, raw in refused]
        self.bury(batch, faults)
        return len(raws)

    def bury(self, batch: StagedBatch, faults: Sequence[tuple[int, Fault]]) -> None:
        self._check(batch)
        for _, fault in faults[:1]:
            self._reasons.setdefault(batch.id, fault.reason)
        self._letters.write(batch, faults)

    def room(self, batch: StagedBatch) -> Room:
        def is_open(output_folder: str) -> bool:
            files = self._open.get((batch.id, output_folder))
            return (files is not None and files.fits) or folder_refusal(output_folder) is not None

        return self._budget(batch).room(is_open)

    def finish(self, batch: StagedBatch) -> Json:
        self._check(batch)
        keys = [key for key in self._open if key[0] == batch.id]
        for portion in (keys[at : at + CLOSED_AT_A_TIME] for at in range(0, len(keys), CLOSED_AT_A_TIME)):
            self._close_files(batch, [self._open.pop(key) for key in portion])
        letters = self._letters.finish(batch)
        budget = self._budgets.pop(batch.id, None)
        skipped = self._skipped.pop(batch.id, 0)
        files = {"files": [*([] if budget is None else budget.entries), *letters]}
        return files | ({"skipped": skipped} if skipped else {})

    def letter_reason(self, batch: StagedBatch) -> str | None:
        return self._reasons.pop(batch.id, None)

    def _close_files(self, batch: StagedBatch, ending: Sequence[OutputFiles]) -> None:
        with ExitStack() as metering:
            for files in ending:
                metering.enter_context(self._metered(files))
            last = [file for files in ending if (file := files.end()) is not None]
            closed = self._stager.bucket.close_all([file.end() for file in last])
        for file, result in zip(last, closed, strict=True):
            self._budget(batch).add_entry(file.entry(result))

    def abandon(self, batch: StagedBatch) -> None:
        for files in [self._open.pop(key) for key in list(self._open) if key[0] == batch.id]:
            with suppress(Exception), self._metered(files):
                files.forget()
                files.close()
        self._letters.abandon(batch)
        self._skipped.pop(batch.id, None)
        budget = self._budgets.pop(batch.id, None)
        with suppress(Unavailable):
            self._stager.bucket.discard([] if budget is None else [file["staged"] for file in budget.entries])

    def _output_files(self, batch: StagedBatch, output_folder: str, chosen: Format) -> OutputFiles:
        key = (batch.id, output_folder)
        if key not in self._open:
            self._open[key] = OutputFiles(
                batch=batch,
                output_folder=output_folder,
                file_format=chosen,
                layout=self._stager.layout,
                max_file_bytes=self._stager.max_file_bytes,
                attempt=self._attempt,
                budget=self._budget(batch),
            )
        self._open.move_to_end(key)
        return self._open[key]

    def _budget(self, batch: StagedBatch) -> ReceiptBudget:
        if batch.id not in self._budgets:
            stager = self._stager
            self._budgets[batch.id] = ReceiptBudget(batch, stager.bucket, stager.layout, stager.max_files)
        return self._budgets[batch.id]

    def _check(self, batch: StagedBatch) -> None:
        """Raise the error of the batch that occurred while rows of other batches were written."""
        if batch.id in self._errors:
            raise self._errors[batch.id]

    def _keep_bounds(self, latest: tuple[str, str]) -> None:
        # Rows of a batch are consecutive unless a processor mixed them: what was used longest ago is mostly complete.
        if self._is_within_bounds():
            return
        for closing in (False, True):
            for key in [key for key in self._open if key != latest]:
                closes = closing or self._open_files > self._stager.max_open_files
                self._make_room(key, closing=closes and key not in self._expected)
                if self._is_within_bounds():
                    return

    def _is_within_bounds(self) -> bool:
        return self._buffered <= MAX_BUFFERED_BYTES and self._open_files <= self._stager.max_open_files

    @contextmanager
    def _metered(self, files: OutputFiles) -> Iterator[None]:
        """Keep totals over all output folders up to date, because summing over thousands of them each time is slow."""
        buffered, was_open = files.buffered, files.is_open
        try:
            yield
        finally:
            self._buffered += files.buffered - buffered
            self._open_files += files.is_open - was_open

    def _make_room(self, key: tuple[str, str], *, closing: bool) -> None:
        """Close or flush files to make room for others. An error is raised when their batch is used next."""
        files = self._open.pop(key) if closing else self._open[key]
        try:
            with self._metered(files):
                files.close() if closing else files.flush()
        except Exception as error:  # noqa: BLE001 - after any error nobody knows what is in the file
            self._errors[key[0]] = error


def _skipped(chosen: Format, reasons: Any) -> Any:
    """Which rows the format leaves out, because a setting says so."""
    return pc.is_in(reasons, pa.array(sorted(chosen.skips)))
