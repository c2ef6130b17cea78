"""Late records in a task: rows whose output folder was final when the round was planned go where a setting decides.

Rows whose output folder begins too far ahead become dead letters, also where nothing is declared final: the time is a
mistake of a producer, and nobody looks for records there. Which folders are final, and how far ahead is too far, is
decided once for each batch and stored in its receipt, so that a batch that is staged again gives the same files. The
manifest has the number of late records of each file.
"""

from __future__ import annotations

import copy
import datetime as dt
import json
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from holdfast.flow.batch import Name
from holdfast.flow.fault import Fault
from holdfast.flow.names import OURS, Layout, folder_refusal
from holdfast.flow.staging import RefusesRecords, Room, StagedBatch, Stager
from holdfast.leases.lease import Json
from holdfast.sinks.files.periods import FolderTimes, Periods
from holdfast.sinks.files.staging import FilesStager, FilesStaging

DEAD_LETTER, ASIDE = "dead_letter", "place"
MAX_SHOWN = 200
MAX_LATE_NAMES = 2048
"""Bytes of folder names in a receipt if late records are dead letters; other folders are counted under ""."""


@dataclass(frozen=True)
class LateRule:
    """Which rows are late or too far ahead, and where they go. Picklable."""

    periods: Periods = field(default_factory=Periods)
    treatment: str = "same"
    folder: str = "_late"
    final: Mapping[str, float] = field(default_factory=dict)
    """By batch: output folders that end at or before this time are final. Other batches have no late rows."""
    times: FolderTimes = field(default_factory=FolderTimes)
    until: Mapping[str, float] = field(default_factory=dict)
    """By batch: output folders that begin after this time are too far ahead. Other batches have none of them."""

    def is_late(self, batch: StagedBatch, output_folder: str) -> bool:
        """Whether rows that the batch has for that output folder are late."""
        final = self.final.get(batch.id)
        if final is None or not _is_name(output_folder):
            return False
        period = self.periods.of(output_folder)
        return period is not None and period[1] <= final

    def refusal(self, batch: StagedBatch, output_folder: str) -> str | None:
        """Why rows that the batch has for that output folder become dead letters; None if they do not."""
        until = self.until.get(batch.id)
        if until is not None and _is_name(output_folder) and (self.times.begin(output_folder) or 0) > until:
            return f"its time is too far ahead: {output_folder[:MAX_SHOWN]} begins after {_text(until)}"
        if self.treatment == DEAD_LETTER and self.is_late(batch, output_folder):
            return f"it came late: {output_folder[:MAX_SHOWN]} was final already"
        return None


@dataclass(frozen=True)
class LateStager(Stager):
    """Stages as the given stager does, except for late rows."""

    bounded = True
    stager: FilesStager
    rule: LateRule

    def columns(self, fields: Any) -> Mapping[str, Any]:
        return self.stager.columns(fields)

    def begin(self) -> LateStaging:
        return LateStaging(self.stager, self.rule)


class LateStaging(RefusesRecords):
    """Stages late rows by the rule, and the others as usual."""

    def __init__(self, stager: FilesStager, rule: LateRule) -> None:
        self._rule = rule
        self._max_files = stager.max_files
        self._main = FilesStaging(stager)
        self._aside = _Aside(stager, rule.folder, self._main)
        self._late: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self._chosen: Counter[str] = Counter()
        """By batch, the late rows that are dead letters."""

    def write(self, batch: StagedBatch, items: Any, rows: Any, output_folder: str = "") -> int:
        if (refusal := self._rule.refusal(batch, output_folder)) is not None:
            self._count_chosen(batch, output_folder, rows.num_rows)
            return self._main.refuse(batch, items, rows, pa.repeat(pa.scalar(refusal), rows.num_rows))
        is_late = self._rule.is_late(batch, output_folder)
        if is_late:
            self._count(batch, output_folder, rows.num_rows)
        staging = self._aside if is_late and self._rule.treatment == ASIDE else self._main
        return staging.write(batch, items, rows, output_folder)

    def refusals(self, batch: StagedBatch, rows: Any, output_folder: str = "") -> Any | None:
        if (refusal := self._rule.refusal(batch, output_folder)) is not None:
            return pa.repeat(pa.scalar(refusal), rows.num_rows)
        return self._main.refusals(batch, rows, output_folder)

    def withhold(self, batch: StagedBatch, items: Any, rows: Any, reasons: Any, output_folder: str = "") -> int:
        self._count_chosen(batch, output_folder, rows.num_rows)
        return self._main.withhold(batch, items, rows, reasons, output_folder)

    def _count_chosen(self, batch: StagedBatch, output_folder: str, rows: int) -> None:
        """Count rows that become dead letters, if that is because they are late."""
        if self._rule.treatment == DEAD_LETTER and self._rule.is_late(batch, output_folder):
            self._count(batch, output_folder, rows)
            self._chosen[batch.id] += rows

    def _count(self, batch: StagedBatch, output_folder: str, rows: int) -> None:
        late = self._late[batch.id]
        if self._rule.treatment == DEAD_LETTER and output_folder not in late:
            # Their folders have no files, so that nothing else bounds how many of them the receipt names.
            named = len(json.dumps([*late, output_folder]))
            output_folder = output_folder if named <= MAX_LATE_NAMES else ""
        late[output_folder] += rows

    def bury(self, batch: StagedBatch, faults: Sequence[tuple[int, Fault]]) -> None:
        self._main.bury(batch, faults)

    def room(self, batch: StagedBatch) -> Room:
        main, aside = self._main.room(batch), self._aside.room(batch)
        size, most = main.size, batch.max_receipt_bytes
        if size is not None and aside.size is not None and most is not None:
            size -= most - aside.size
        files = main.files - (self._max_files - aside.files)

        def is_open(folder: str) -> bool:
            return main.is_open(folder) or aside.is_open(folder) or self._rule.refusal(batch, folder) is not None

        return Room(files, size, is_open, aside.entry_size)

    def expect(self, batch: StagedBatch, output_folders: Collection[str]) -> None:
        self._main.expect(batch, output_folders)
        self._aside.expect(batch, output_folders)

    def finish(self, batch: StagedBatch) -> Json:
        main, aside = self._main.finish(batch), self._aside.finish(batch)
        files = [*main["files"], *aside["files"]]
        self._mark(files, self._late.pop(batch.id, Counter()))
        part: dict[str, Json] = {"files": files}
        if skipped := main.get("skipped", 0) + aside.get("skipped", 0):
            part["skipped"] = skipped
        decided = {"final": self._rule.final, "until": self._rule.until}
        return part | {name: times[batch.id] for name, times in decided.items() if batch.id in times}

    def chosen_letters(self, batch: StagedBatch) -> int:
        return self._chosen.pop(batch.id, 0)

    def letter_reason(self, batch: StagedBatch) -> str | None:
        return self._main.letter_reason(batch)

    def abandon(self, batch: StagedBatch) -> None:
        self._late.pop(batch.id, None)
        self._chosen.pop(batch.id, None)
        self._main.abandon(batch)
        self._aside.abandon(batch)

    def _mark(self, files: Sequence[dict[str, Json]], late: Counter[str]) -> None:
        if self._rule.treatment == DEAD_LETTER:
            letters = next((file for file in files if str(file["key"]).startswith(f"{OURS}/")), None)
            if late and letters is not None:
                letters["late"] = dict(late)
            return
        for file in files:
            if (output_folder := file.get("place")) in late:
                file["late"] = {output_folder: file["rows"]}


def _is_name(output_folder: str) -> bool:
    return bool(output_folder) and folder_refusal(output_folder) is None


def _text(seconds: float) -> str:
    return dt.datetime.fromtimestamp(seconds, dt.UTC).isoformat(timespec="seconds")


class _Aside(FilesStaging):
    """Files of late records, in a separate folder of the root; dead letters are kept with those of other records."""

    def __init__(self, stager: FilesStager, folder: str, main: FilesStaging) -> None:
        stager_aside = copy.copy(stager)
        stager_aside.layout = _LayoutBelow(stager.layout.template, folder)
        super().__init__(stager_aside)
        self._main = main

    def bury(self, batch: StagedBatch, faults: Sequence[tuple[int, Fault]]) -> None:
        self._main.bury(batch, faults)


@dataclass(frozen=True)
class _LayoutBelow(Layout):
    folder_above: str = "_late"

    def key(self, name: Name, generation: int, first_item: int, extension: str, output_folder: str = "") -> str:
        return f"{self.folder_above}/{super().key(name, generation, first_item, extension, output_folder)}"
