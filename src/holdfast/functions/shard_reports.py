"""Reports of shards: a worker stores the rows and dead letters that belong to its progress, and then reports it.

The engine gathers the progress of all shards, so that a node writes once per interval.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Protocol

from holdfast.errors import BatchError, Unavailable, UsageError
from holdfast.flow.engine import Advanced, Failed, Report, Staged
from holdfast.functions.acks import Positions
from holdfast.functions.messages import Drained, Progress
from holdfast.functions.output import OutputSinks, StagedOutput, batch_to_stage
from holdfast.functions.shard_calls import DeadRecord, ShardCalls, ShardProgress
from holdfast.leases.lease import Counts, Json, joined


class LetterStore(Protocol):
    """Keeps records that failed for the last time. Picklable; used inside a task."""

    def keep(self, origin: Json, letters: tuple[DeadRecord, ...]) -> None:
        """Store these letters durably, each exactly once. Raises `Unavailable`; anything else ends the worker."""
        ...


@dataclass(eq=False)
class HeldShard:
    """A batch of this worker."""

    id: str
    shard: str
    calls: ShardCalls
    careful_until: float = 0.0
    drain_until: float | None = None
    last: bool = False
    """Whether its shard has ended: it is drained once everything is acknowledged."""
    paused: bool = False
    spec: Json = None
    """What letters and rows for other sinks say about where they come from."""
    until: Json = None
    """Where a batch ends whose rows are staged once more; None for all others."""
    report_after: float = 0.0
    """When to try again, because a sink did not respond."""


class ShardReports:
    """Makes the reports of one worker. Used by one thread; blocks while sinks stage."""

    def __init__(self, positions: Positions, sinks: OutputSinks | None, letters: LetterStore | None) -> None:
        self._positions = positions
        self._sinks = sinks
        self._letters = letters

    def progress(self, held: HeldShard) -> Progress | None:
        """What is new of the shard; None if nothing is new, or if the last report is not published yet.

        Raises `Unavailable` if a sink does not respond; the same is reported later. Raises `BatchError` if the rows of
        the handler cannot be staged; the shard must then be given up.
        """
        before, taken = held.calls.reported, held.calls.progress(self._positions)
        if taken is None:
            return None
        try:
            self._keep_letters(held, taken)
            staged = self._stage(held, taken)
        except Unavailable:
            held.calls.put_back(taken, before)
            raise
        if held.calls.output is not None:
            held.calls.output.waits = True
        counts = _numbers(taken.counts, staged.refused)
        return Progress(held.id, taken.position, taken.acked, counts, taken.forwarded, staged.parts)

    def drained(self, held: HeldShard, *, last: bool, gives_up: bool) -> Drained:
        """The last report of the shard.

        Raises as `progress` does; with `gives_up`, sinks that do not respond are skipped.
        """
        if held.calls.output is not None:
            held.calls.output.waits = False  # the node commits one report after the other
        try:
            rest = self.progress(held)
        except Unavailable:
            if not gives_up:
                raise
            rest = None
        position, acked = held.calls.reported
        report = rest or Progress(held.id, position, acked)
        end = report.position if held.until is None else held.until
        return Drained(held.id, end, report.acked, report.counts, last, report.forwarded, report.parts)

    def _stage(self, held: HeldShard, progress: ShardProgress) -> StagedOutput:
        if self._sinks is None or not progress.output:
            return StagedOutput({})
        try:
            return self._sinks.stage(batch_to_stage(held.id, held.spec["output"]), progress.output)
        except Unavailable:
            raise
        except Exception as error:
            raise BatchError(f"rows of the handler cannot be staged: {type(error).__name__}: {error}") from error

    def _keep_letters(self, held: HeldShard, progress: ShardProgress) -> None:
        if progress.letters:
            if self._letters is None:
                raise UsageError("a record failed for the last time, and there is nowhere to keep dead letters")
            self._letters.keep({**held.spec, "key": held.shard}, progress.letters)


class CoalescedReports:
    """Gathers the progress of each batch for `interval` seconds. The end of a batch is reported at once.

    Receipts are never joined: each report that has some is a commit.
    """

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
        if earlier is not None and earlier.receipts:
            if report == replace(earlier, receipts={}, counts=Counts(), forwarded=()):
                self._progress[report.batch_id] = earlier  # a sign of life
            else:
                self._ends += [earlier, report]
        elif isinstance(report, Failed):
            self._ends += [report] if earlier is None else [earlier, report]
        else:
            self._join(earlier, report)

    def _join(self, earlier: Advanced | None, report: Advanced | Staged) -> None:
        if earlier is not None:
            forwarded = joined([*earlier.forwarded, *report.forwarded])
            report = replace(report, counts=earlier.counts + report.counts, forwarded=forwarded)
        if isinstance(report, Advanced):
            self._progress[report.batch_id] = report
        else:
            self._ends.append(report)

    def take(self, now: float) -> list[Report]:
        """What is due: all progress once per interval, and every end at once."""
        reports, self._ends = self._ends, []
        if self._progress and now >= self._next:
            reports = [*reports, *self._progress.values()]
            self._progress, self._next = {}, now + self._interval
        return reports

    def forget(self, batch_ids: Iterable[str]) -> None:
        """Drop the reports of these batches."""
        gone = set(batch_ids)
        self._progress = {key: report for key, report in self._progress.items() if key not in gone}
        self._ends = [report for report in self._ends if report.batch_id not in gone]


def _numbers(counts: Counts, refused: int) -> tuple[int, int, int, int]:
    """The counts of a message; rows that a sink has refused are dead letters."""
    refused = min(refused, counts.succeeded)
    return counts.processed, counts.succeeded - refused, counts.failed, counts.dead + refused
