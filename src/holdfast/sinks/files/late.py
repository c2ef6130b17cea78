"""Late records in a task: rows whose place was final when the round was planned go where a setting says.

What is final is decided once for each batch and kept in its receipt, so that a batch that is made again comes out the
same. Files tell in their manifest how many late records are in them.
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
    """What is late, and where it goes. Picklable."""

    periods: Periods
    treatment: str = "same"
    folder: str = "_late"
    final: Mapping[str, float] = field(default_factory=dict)
    """By batch: places that end at or before this time are final. A batch that is not here has no late rows."""

    def is_late(self, batch: StagedBatch, place: str) -> bool:
        final = self.final.get(batch.id)
        period = None if final is None or not place else self.periods.of(place)
        return period is not None and final is not None and period[1] <= final


@dataclass(frozen=True)
class LateStager(Stager):
    """Stages like the one it is made of, but for what is late."""

    bounded = True
    stager: FilesStager
    rule: LateRule

    def columns(self, fields: Any) -> Mapping[str, Any]:
        return self.stager.columns(fields)

    def begin(self) -> LateStaging:
        return LateStaging(self.stager, self.rule)


class LateStaging(Staging):
    """Stages what is in time as ever, and what is late by the rule."""

    def __init__(self, stager: FilesStager, rule: LateRule) -> None:
        self._rule = rule
        self._max_files = stager.max_files
        self._main = FilesStaging(stager)
        self._aside = _Aside(stager, rule.folder, self._main)
        self._late: defaultdict[str, Counter[str]] = defaultdict(Counter)

    def write(self, batch: StagedBatch, items: Any, rows: Any, place: str = "") -> int:
        if not self._rule.is_late(batch, place):
            return self._main.write(batch, items, rows, place)
        self._late[batch.id][place] += rows.num_rows
        if self._rule.treatment == DEAD_LETTER:
            self._main.bury(batch, _faults(batch, items, rows, place))
            return int(rows.num_rows)
        return (self._aside if self._rule.treatment == ASIDE else self._main).write(batch, items, rows, place)

    def bury(self, batch: StagedBatch, faults: Sequence[tuple[int, Fault]]) -> None:
        self._main.bury(batch, faults)

    def room(self, batch: StagedBatch) -> Room:
        main, aside = self._main.room(batch), self._aside.room(batch)
        size, most = main.size, batch.max_receipt_bytes
        if size is not None and aside.size is not None and most is not None:
            size -= most - aside.size
        files = main.files - (self._max_files - aside.files)
        return Room(files, size, lambda place: main.is_open(place) or aside.is_open(place), aside.entry_size)

    def expect(self, batch: StagedBatch, places: Collection[str]) -> None:
        self._main.expect(batch, places)
        self._aside.expect(batch, places)

    def finish(self, batch: StagedBatch) -> Json:
        files = [*self._main.finish(batch)["files"], *self._aside.finish(batch)["files"]]
        self._mark(files, self._late.pop(batch.id, Counter()))
        told: dict[str, Json] = {"files": files}
        return told | ({"final": self._rule.final[batch.id]} if batch.id in self._rule.final else {})

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
            if (place := file.get("place")) in late:
                file["late"] = {place: file["rows"]}


class _Aside(FilesStaging):
    """Files of late records, in a folder of their own; dead letters are kept with those of the others."""

    def __init__(self, stager: FilesStager, folder: str, main: FilesStaging) -> None:
        own = copy.copy(stager)
        own.layout = _Below(stager.layout.template, folder)
        super().__init__(own)
        self._main = main

    def bury(self, batch: StagedBatch, faults: Sequence[tuple[int, Fault]]) -> None:
        self._main.bury(batch, faults)


@dataclass(frozen=True)
class _Below(Layout):
    above: str = "_late"

    def key(self, name: Name, generation: int, first_item: int, extension: str, place: str = "") -> str:
        return f"{self.above}/{super().key(name, generation, first_item, extension, place)}"


def _faults(batch: StagedBatch, items: Any, rows: Any, place: str) -> list[tuple[int, Fault]]:
    reason = f"it came late: {place} was final already"
    texts, whole = raw_records(rows)
    form = batch.raw_form(is_value=whole)
    found = [replace(record_fault(reason, text), form=form) for text in texts]
    return list(zip(items.to_pylist(), found, strict=True))
