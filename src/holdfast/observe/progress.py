"""How far the pipelines of a node are: counted from events, and from one read of the store's sums per interval."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from holdfast.config.units import format_duration
from holdfast.events import (
    AttemptFailed,
    BatchCommitted,
    Event,
    LagMeasured,
    PartitionCompleted,
    PartitionFailed,
    PartitionHalted,
    PipelineProgressed,
)
from holdfast.leases.lease import Status
from holdfast.leases.sums import PartitionSum
from holdfast.observe.alert_kinds import LAGGING, subject_of

RECENT = 10.0
"""Seconds after which a rate forgets what was before the last so many seconds."""


@dataclass(frozen=True)
class Summary:
    """What a node has done since it was started. As text, a line for people."""

    records: int
    """Records that it has committed, dead letters included."""
    dead_letters: int
    failed_partitions: int
    """Partitions that it has seen fail; other nodes may have seen others."""
    seconds: float
    complete: bool = True
    """False if its pipelines are finished and partitions of them are FAILED, whichever node saw them fail."""

    def __str__(self) -> str:
        rate = rounded(self.records / max(self.seconds, 1e-3))
        letters = f", {rounded(self.dead_letters)} dead letters" if self.dead_letters else ""
        return (
            f"{rounded(self.records)} records in {shortened(self.seconds)} ({rate}/s){letters}, "
            f"{self.failed_partitions} {'partition' if self.failed_partitions == 1 else 'partitions'} failed"
        )


@dataclass
class _Counted:
    """One pipeline: counts from events, and the sums that were read from the store last."""

    records: int = 0
    dead: int = 0
    errors: int = 0
    failed: set[str] = field(default_factory=set)
    lags: dict[str, int] = field(default_factory=dict)
    sums: tuple[PartitionSum, ...] = ()
    nodes: int | None = None
    """Nodes that are alive and run it; None if that was not read."""
    records_at_sums: int = 0
    """Records of this node when the sums were read."""
    advanced_records: int = 0
    """Records of this node when the time began over which the rate is."""
    marked_records: int = 0
    """Records of this node when that time begins next."""
    completed: set[str] = field(default_factory=set)
    """Partitions that this node has completed since the sums were read."""
    completed_at_start: int | None = None
    """Partitions that were completed when sums with rows were first read, at `started`."""
    started: float = 0.0

    def count(self, event: Event) -> None:
        """Count an event of this pipeline."""
        if isinstance(event, BatchCommitted):
            self.records += event.records
            self.dead += event.dead
        elif isinstance(event, AttemptFailed):
            self.errors += 1
        elif isinstance(event, PartitionFailed | PartitionHalted):
            self.failed.add(event.key)
        elif isinstance(event, PartitionCompleted):
            self.completed.add(event.key)
        elif isinstance(event, LagMeasured) and event.records is not None:
            self.lags[event.key] = event.records


class Progress:
    """A consumer of events. Thread-safe. Pipelines are known by their names in the store."""

    def __init__(self, pipelines: Iterable[str], clock: Callable[[], float] = time.monotonic) -> None:
        self._counted = {name: _Counted() for name in pipelines}
        self._clock = clock
        self._begun = self._advanced_at = self._marked_at = clock()
        self._lock = threading.Lock()

    def __call__(self, event: Event) -> None:
        """Count the event if it is about one of the pipelines, or ends the session that holds their partitions."""
        pipeline, key = subject_of(event)
        with self._lock:
            if isinstance(event, LAGGING.ended_by):
                self._no_longer_held(pipeline, key)
            if (counted := self._counted.get(pipeline or "")) is not None:
                counted.count(event)

    def _no_longer_held(self, pipeline: str | None, key: str | None) -> None:
        for name, counted in self._counted.items():
            if key is None:
                counted.lags.clear()  # the session has ended, and nothing is held any more
            elif name == pipeline:
                counted.lags.pop(key, None)

    def learn(self, sums: Mapping[str, Iterable[PartitionSum]], nodes: Mapping[str, int] | None = None) -> None:
        """Take over the sums of the store and the numbers of nodes that are alive, by pipeline."""
        with self._lock:
            for name, found in sums.items():
                counted = self._counted[name]
                counted.nodes = None if nodes is None else nodes.get(name, 0)
                counted.sums, counted.records_at_sums = tuple(found), counted.records
                counted.completed.clear()
                if counted.completed_at_start is None and counted.sums:
                    counted.completed_at_start = _partitions(counted.sums, Status.COMPLETED)
                    counted.started = self._clock()

    def now(self, *, advance: bool = False) -> list[PipelineProgressed]:
        """How far each pipeline is. With `advance`, the next rates are those since this call."""
        with self._lock:
            seconds = max(1e-3, self._clock() - self._advanced_at)
            found = [self._of(name, counted, seconds) for name, counted in self._counted.items()]
            if advance:
                self._advanced_at = self._clock()
                for counted in self._counted.values():
                    counted.advanced_records = counted.records
        return found

    def recent(self) -> list[PipelineProgressed]:
        """How far each pipeline is, for a display that looks often: the rates are over 10 to 20 seconds."""
        with self._lock:
            if self._clock() - self._marked_at >= RECENT:
                self._advanced_at, self._marked_at = self._marked_at, self._clock()
                for counted in self._counted.values():
                    counted.advanced_records, counted.marked_records = counted.marked_records, counted.records
        return self.now()

    def summary(self) -> Summary:
        """What this node has done since it was started."""
        with self._lock:
            counts = list(self._counted.values())
            return Summary(
                sum(each.records for each in counts),
                sum(each.dead for each in counts),
                sum(len(each.failed) for each in counts),
                self._clock() - self._begun,
            )

    def _of(self, name: str, counted: _Counted, seconds: float) -> PipelineProgressed:
        total = _partitions(counted.sums)
        completed = min(total, _partitions(counted.sums, Status.COMPLETED) + len(counted.completed))
        stored = sum(each.counts.processed for each in counted.sums)
        return PipelineProgressed(
            name,
            completed,
            total,
            stored + counted.records - counted.records_at_sums,
            round((counted.records - counted.advanced_records) / seconds, 1),
            sum(counted.lags.values()) if counted.lags else None,
            None if counted.lags else self._left(counted, completed, total),
            counted.errors,
            _partitions(counted.sums, Status.FAILED),
            sum(each.counts.dead for each in counted.sums),
            _holders(counted.sums) if counted.nodes is None else counted.nodes,
        )

    def _left(self, counted: _Counted, completed: int, total: int) -> float | None:
        done = completed - (counted.completed_at_start or 0)
        if done <= 0 or total <= completed:
            return None
        return round((total - completed) * (self._clock() - counted.started) / done)


def _holders(sums: Iterable[PartitionSum]) -> int:
    return len({each.session for each in sums if each.status is Status.ASSIGNED} - {None})


def rounded(number: float) -> str:
    """The number for people: three significant digits, with thousands separated."""
    if number >= 100:
        return f"{number:,.0f}"
    return f"{number:.3g}"


def shortened(seconds: float) -> str:
    """The duration for people: two units at most, such as 2m 5s."""
    if seconds < 10:
        return f"{seconds:.1f}s"
    whole = round(seconds)
    for size, smaller in ((86400, 3600), (3600, 60), (60, 1)):
        if whole >= size:
            rest = whole % size // smaller * smaller
            return format_duration(whole // size * size) + (f" {format_duration(rest)}" if rest else "")
    return f"{whole}s"


def _partitions(sums: Iterable[PartitionSum], status: Status | None = None) -> int:
    return sum(each.partitions for each in sums if status in {None, each.status})
