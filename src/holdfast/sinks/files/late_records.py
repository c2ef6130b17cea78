"""Late records in a task: rows whose output folder was final when the round was planned go where a setting decides.

Which folders are final is decided once for each batch and stored in its receipt, so that a batch that is staged again
gives the same files. The manifest has the number of late records of each file.
"""

from __future__ import annotations

import copy
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from holdfast.flow.batch import Name
from holdfast.flow.fault import Fault, record_fault
from holdfast.flow.names import OURS
from holdfast.flow.staging import Room, StagedBatch, Stager, Staging
from holdfast.formats._json_objects import raw_records
from holdfast.leases.lease import Json
from holdfast.sinks.files.layout import Layout
from holdfast.sinks.files.periods import Periods
from holdfast.sinks.files.staging import FilesStager, FilesStaging

DEAD_LETTER, ASIDE = "dead_letter", "place"


@dataclass(frozen=True)
class LateRule:
    """Which rows are late, and where they go. Picklable."""

    periods: Periods
    treatment: str = "same"
    folder: str = "_late"
    final: Mapping[str, float] = field(default_factory=dict)
    """By batch: output folders that end at or before this time are final. Other batches have no late rows."""

    def is_late(self, batch: StagedBatch, output_folder: str) -> bool:
        """Whether rows that the batch has for that output folder are late."""
        final = self.final.get(batch.id)
        period = None if final is None or not output_folder else self.periods.of(output_folder)
        return period is not None and final is not None and period[1] <= final


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


class LateStaging(Staging):
    """Stages late rows by the rule, and the others as usual."""

    def __init__(self, stager: FilesStager, rule: LateRule) -> None:
        self._rule = rule
        self._max_files = stager.max_files
        self._main = FilesStaging(stager)
        self._aside = _Aside(stager, rule.folder, self._main)
        self._late: defaultdict[str, Counter[str]] = defaultdict(Counter)

    def write(self, batch: StagedBatch, items: Any, rows: Any, output_folder: str = "") -> int:
        if not self._rule.is_late(batch, output_folder):
            return self._main.write(batch, items, rows, output_folder)
        self._late[batch.id][output_folder] += rows.num_rows
        if self._rule.treatment == DEAD_LETTER:
            self._main.bury(batch, _faults(batch, items, rows, output_folder))
            return int(rows.num_rows)
        staging = self._aside if self._rule.treatment == ASIDE else self._main
        return staging.write(batch, items, rows, output_folder)

    def bury(self, batch: StagedBatch, faults: Sequence[tuple[int, Fault]]) -> None:
        self._main.bury(batch, faults)

    def room(self, batch: StagedBatch) -> Room:
        main, aside = self._main.room(batch), self._aside.room(batch)
        size, most = main.size, batch.max_receipt_bytes
        if size is not None and aside.size is not None and most is not None:
            size -= most - aside.size
        files = main.files - (self._max_files - aside.files)
        return Room(files, size, lambda folder: main.is_open(folder) or aside.is_open(folder), aside.entry_size)

    def expect(self, batch: StagedBatch, output_folders: Collection[str]) -> None:
        self._main.expect(batch, output_folders)
        self._aside.expect(batch, output_folders)

    def finish(self, batch: StagedBatch) -> Json:
        files = [*self._main.finish(batch)["files"], *self._aside.finish(batch)["files"]]
        self._mark(files, self._late.pop(batch.id, Counter()))
        part: dict[str, Json] = {"files": files}
        return part | ({"final": self._rule.final[batch.id]} if batch.id in self._rule.final else {})

    def abandon(self, batch: StagedBatch) -> None:
        self._late.pop(batch.id, None)
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


def _faults(batch: StagedBatch, items: Any, rows: Any, output_folder: str) -> list[tuple[int, Fault]]:
    reason = f"it came late: {output_folder} was final already"
    texts, whole = raw_records(rows)
    form = batch.raw_form(is_value=whole)
    found = [replace(record_fault(reason, text), form=form) for text in texts]
    return list(zip(items.to_pylist(), found, strict=True))
