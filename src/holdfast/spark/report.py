"""Reports of the tasks of a job, and their conversion to `Staged` or `Failed` for each batch."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from holdfast.errors import BatchError
from holdfast.flow.batch import Batch, TaskEnd, common_end
from holdfast.flow.engine import Failed, Report, Staged
from holdfast.flow.pipeline import Pipeline
from holdfast.flow.source import CutsShort, SalvagesDamage, Source
from holdfast.leases.lease import Counts, Json

NEEDS_MEMORY = "a Python worker needs more memory than spark.worker_memory allows"
FILES_IN_ANY_ROW = 16
"""Maximum number of files whose receipt fits into the row of any store."""


@dataclass
class TaskReport:
    """The result of one task for one batch."""

    rows: int = 0
    dead: int = 0
    unrouted: int = 0
    """Good rows that by their routes belong to no sink."""
    rows_in: int = 0
    """Rows that came to the task, also after the batch had failed."""
    faults_in: int = 0
    """Rows that came to the task with a fault."""
    dropped: dict[str, int] = field(default_factory=dict)
    """By processor, the number of good rows that it dropped."""
    size: int = 0
    end: int | None = None
    """The first item that was left for the next batch; None if all was staged."""
    reads: bool = False
    """Reported by a step that reads in order and stages nothing: no other task got the rows that it did not read."""
    source_end: int | None = None
    """The first item that the source itself has left for the next batch: nothing from it on came to a task."""
    source_position: str | None = None
    """The position of that item as JSON, if the source has named it."""
    damage: str | None = None
    """Damage of the object that the rows were read from; the rows that were read are good."""
    error: str | None = None
    unavailable: bool = False
    parts: dict[str, Json] = field(default_factory=dict)
    """By sink, this task's part of the receipt."""
    routed: dict[str, int] = field(default_factory=dict)
    """By sink, the rows that it was given, good and faulty ones."""
    chosen_letters: int = 0
    """Rows that are dead letters because a setting says so."""
    letter_reason: str | None = None
    """Why one of the rows became a dead letter, without values of the record."""

    def encode(self) -> str:
        """The report as JSON, without fields that are as in an empty report: a round may have thousands of reports."""
        return json.dumps({name: value for name, value in self.__dict__.items() if value != _NOTHING[name]})

    @classmethod
    def decode(cls, text: str) -> TaskReport:
        return cls(**json.loads(text))


_NOTHING = TaskReport().__dict__


@dataclass(frozen=True)
class JobReport:
    """The reports of the tasks of one job."""

    by_batch: Mapping[str, Sequence[TaskReport]]
    dropped: Mapping[str, int] = field(default_factory=dict)
    """By processor of the frame, the number of good rows of all batches that it dropped."""
    read: Mapping[str, int] = field(default_factory=dict)
    """By batch, the rows that came to the processors of the frame, where there are any."""

    def of_batches(self, pipeline: Pipeline, batches: Sequence[Batch], doubts: Mapping[str, str]) -> list[Report]:
        """The report of each batch. `doubts`: by id, why a batch must not be committed."""
        reports = [
            Failed(batch.id, doubts[batch.id])
            if batch.id in doubts
            else batch_report(pipeline, batch, self.by_batch.get(batch.id, ()), self.read.get(batch.id, 0))
            for batch in batches
        ]
        return self._with_dropped(reports)

    def _with_dropped(self, reports: list[Report]) -> list[Report]:
        """Add the rows of all batches that the frame's processors have dropped to the first `Staged` report."""
        for index, report in enumerate(reports if self.dropped else ()):
            if isinstance(report, Staged):
                reports[index] = replace(report, dropped={**report.dropped, **self.dropped})
                break
        return reports


def batch_report(pipeline: Pipeline, batch: Batch, reports: Sequence[TaskReport], read: int = 0) -> Report:
    """One report of a batch from those of its tasks. `read`: how many of its rows came to the frame's processors."""
    for report in reports:
        if report.error is not None:
            return Failed(batch.id, report.error, report.unavailable)
    dropped = _dropped_in_tasks(reports)
    counts = _counts(reports, read, dropped)
    try:
        cut_at = common_end(_task_ends(reports))
        receipts = {
            name: sink.receipt([report.parts[name] for report in reports if name in report.parts])
            | _routed(pipeline, name, reports, counts)
            for name, sink in pipeline.sinks.items()
        }
        _check_size(pipeline, batch, receipts)
    except BatchError as wrong:
        return Failed(batch.id, str(wrong))
    size = sum(report.size for report in reports)
    why = next((report.letter_reason for report in reports if report.letter_reason is not None), None)
    staged = Staged(
        batch.id,
        batch.cut.end,
        batch.cut.last,
        receipts,
        counts,
        size=size,
        dropped=dropped,
        chosen_letters=sum(report.chosen_letters for report in reports),
        letter_reason=why,
    )
    if cut_at is not None:
        named = {report.source_end: report.source_position for report in reports if report.source_position is not None}
        return _cut_short(pipeline.source, batch, staged, cut_at, named.get(cut_at))
    damage = next((report.damage for report in reports if report.damage is not None), None)
    if damage is not None and isinstance(pipeline.source, SalvagesDamage):
        return replace(staged, end=pipeline.source.damaged(batch.cut.end, damage), last=False)
    return staged


def _counts(reports: Sequence[TaskReport], read: int, dropped: Mapping[str, int]) -> Counts:
    rows, dead = sum(report.rows for report in reports), sum(report.dead for report in reports)
    unrouted = sum(report.unrouted for report in reports)
    dropped_before = max(0, read - sum(report.rows_in for report in reports))
    return Counts(rows + dead + unrouted, rows, 0, dead, dropped_before + sum(dropped.values()))


def _task_ends(reports: Sequence[TaskReport]) -> list[TaskEnd]:
    ends = [TaskEnd(report.rows + report.dead + report.unrouted, report.end, report.reads) for report in reports]
    by_source = [report.source_end for report in reports if report.source_end is not None]
    return [*ends, *(TaskEnd(0, end, reads=True) for end in by_source)]


def _dropped_in_tasks(reports: Sequence[TaskReport]) -> dict[str, int]:
    dropped = Counter[str]()
    for report in reports:
        dropped.update(report.dropped)
    return dict(dropped)


def _routed(pipeline: Pipeline, sink: str, reports: Sequence[TaskReport], counts: Counts) -> Json:
    """How many rows of the batch a sink with routes was given, counted independently of what it has staged."""
    if sink not in pipeline.routes.by_sink:
        return {}
    return {"routed": {"rows": sum(report.routed.get(sink, 0) for report in reports), "of": counts.processed}}


def _check_size(pipeline: Pipeline, batch: Batch, receipts: Mapping[str, Json]) -> None:
    """Raise `BatchError` if a receipt does not fit into the row: each task has checked its own part only."""
    for sink, receipt in receipts.items():
        if len(files := receipt.get("files", ())) <= FILES_IN_ANY_ROW:
            continue
        if (size := len(json.dumps(receipt))) > (most := pipeline.receipt_bytes(batch)):
            raise BatchError(
                f"sink {sink!r} has {len(files)} files of this batch, whose receipt takes {size} bytes; the row of the "
                f"store has room for {most}. Keep the rows of a batch in one task, or let records have fewer partition "
                "names"
            )


def _cut_short(source: Source, batch: Batch, staged: Staged, item: int, position: str | None) -> Report:
    if position is not None:
        return replace(staged, end=json.loads(position), last=False)
    if not isinstance(source, CutsShort):
        return Failed(
            batch.id,
            f"the batch must be cut short at item {item}, and its source cannot go on from there. Raise max_files of "
            "the sink, or let the source plan smaller batches",
        )
    return replace(staged, end=source.cut_short(batch, item), last=False)
