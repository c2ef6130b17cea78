"""Reports on their way from the workers to the node: progress is gathered, so that a node writes once per interval."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from holdfast.flow.engine import Advanced, Report, Staged


class CoalescedReports:
    """Gathers the progress of each batch for `interval` seconds. The end of a batch is reported at once."""

    def __init__(self, interval: float) -> None:
        self._interval = interval
        self._progress: dict[str, Advanced] = {}
        self._ends: list[Report] = []
        self._next = 0.0

    @property
    def due_at(self) -> float:
        """When `take` returns something, unless more is added; infinite if there is nothing."""
        return 0.0 if self._ends else self._next if self._progress else float("inf")

    def add(self, report: Report) -> None:
        earlier = self._progress.pop(report.batch_id, None)
        if isinstance(report, Advanced):
            counts = report.counts if earlier is None else earlier.counts + report.counts
            self._progress[report.batch_id] = replace(report, counts=counts)
        elif isinstance(report, Staged):
            counts = report.counts if earlier is None else earlier.counts + report.counts
            self._ends.append(replace(report, counts=counts))
        else:
            self._ends += [report] if earlier is None else [earlier, report]

    def take(self, now: float) -> list[Report]:
        """What is due: all progress once per interval, and every end at once."""
        reports, self._ends = self._ends, []
        if self._progress and now >= self._next:
            reports = [*self._progress.values(), *reports]
            self._progress, self._next = {}, now + self._interval
        return reports

    def forget(self, batch_ids: Iterable[str]) -> None:
        """Drop the reports of these batches."""
        gone = set(batch_ids)
        self._progress = {key: report for key, report in self._progress.items() if key not in gone}
        self._ends = [report for report in self._ends if report.batch_id not in gone]
