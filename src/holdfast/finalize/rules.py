"""When an output folder is final: every partition of its topic has passed it. Pure.

A partition has passed the beginning of a period when it has committed records of it. From there it advances with the
store's clock, up to the end of the period, as far as everything that was in its log by then is committed. An output
folder is final when all partitions have passed its end plus the lateness. A partition that has had nothing to read for
`idle_after` is taken to be that far behind the store's time, so that it does not block others. Records that come for a
folder that is final are late.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import chain
from typing import TypeAlias

from holdfast.flow.manifest import Manifest, first_offset
from holdfast.leases.lease import Json

Period: TypeAlias = tuple[float, float]
"""Beginning and end (exclusive) of the time of an output folder, in seconds since 1970."""
PeriodOf: TypeAlias = Callable[[str], Period | None]
"""The period of an output folder; None if its name has no time."""
ENTRY_BYTES = 60
"""Bytes that a folder takes in the state of the row, besides its name."""
MAX_CROWDED = 500
"""Maximum number of periods of a topic that are remembered because some of their folders were forgotten."""
MAX_DUE = 1000
"""Final folders of a topic that may wait to be announced again because of late records."""


@dataclass(frozen=True, slots=True)
class Rules:
    """Seconds that a folder stays open after its end, and seconds until an idle partition no longer keeps it open."""

    lateness: float = 3600.0
    idle_after: float = 3600.0


@dataclass(slots=True)
class PartitionView:
    """How far the commits of one partition were read, and what they contained."""

    sequence: int = 0
    latest: float | None = None
    """Beginning of the latest period that the partition has records of."""
    until: float = 0.0
    """End of that period."""
    through: int = 0
    """All offsets before this one have been seen in commits."""
    quiet_since: float | None = None
    """Since when every pass has found nothing to read; None if the last pass has found something."""
    entered: float | None = None
    """When a record of the latest period was first seen."""
    read_until: float | None = None
    """Everything that was in its log at this time has been seen in commits."""
    mark: tuple[float, int] | None = None
    """A time, and the end of the log at that time."""

    def look(self, end: int | None, *, quiet: bool, now: float) -> None:
        """Record what a pass has found: the end of the log when it began, and whether there was nothing to read."""
        self.quiet_since = (self.quiet_since or now) if quiet else None
        if end is None:
            return
        if self.through >= end:
            self.read_until, self.mark = now, None
        elif self.mark is None or self.through >= self.mark[1]:
            self.read_until = self.read_until if self.mark is None else self.mark[0]
            self.mark = (now, end)

    def enter(self, period: Period, now: float) -> None:
        """Record that the partition has records of that period."""
        # A time in the future is a mistake of a producer, and says nothing about the records that follow.
        if period[0] <= now and (self.latest is None or period[0] > self.latest):
            self.latest, self.until, self.entered = *period, now

    def passed(self, rules: Rules, now: float) -> float | None:
        """The time that the partition has passed; None if that is unknown."""
        if self.quiet_since is not None and now - self.quiet_since >= rules.idle_after:
            return max(self.latest or 0.0, now - rules.idle_after)
        if self.latest is None or self.entered is None or self.read_until is None:
            return self.latest
        # Not beyond the end of the period: a producer may be behind the clock, and records of the period still come.
        return min(now, self.until, self.latest + max(0.0, self.read_until - self.entered))


@dataclass(slots=True)
class FolderView:
    """Files and rows committed to an output folder; for a final folder, those that were not announced yet."""

    files: int = 0
    rows: int = 0
    size: int = 0
    late: int = 0
    """Rows that were committed after the folder was final."""
    failures: int = 0
    """How often announcing the folder has failed."""
    not_before: float = 0.0

    def add(self, file: Mapping[str, Json], *, late: bool) -> None:
        self.files += 1
        self.rows += int(file["rows"])
        self.size += int(file["size"])
        self.late += int(file["rows"]) if late else 0


@dataclass(slots=True)
class TopicView:
    """The commits of one topic, as far as they were read."""

    final: float | None = None
    """Output folders that end at or before this time are final."""
    late: int = 0
    """Number of late records."""
    partitions: dict[str, PartitionView] = field(default_factory=dict)
    open: dict[str, FolderView] = field(default_factory=dict)
    """Output folders with a time that are not final."""
    due: dict[str, FolderView] = field(default_factory=dict)
    """Final output folders that are not announced yet."""
    crowded: dict[str, int] = field(default_factory=dict)
    """By the end of a period: how many of its files are in folders that nobody announces, as there were too many."""

    def is_final(self, period: Period) -> bool:
        return self.final is not None and period[1] <= self.final

    def absorb(self, manifest: Manifest, period_of: PeriodOf, now: float) -> dict[str, int]:
        """Take the next commit of a partition into account. Returns its late records by output folder."""
        partition = self.partitions.setdefault(manifest.label, PartitionView())
        # Work was restarted at an earlier offset: records that were there before are not late.
        repeated = first_offset(manifest) < partition.through
        late: dict[str, int] = {}
        for file in manifest.files:
            late_rows = dict(file.get("late") or {})
            folder = str(file.get("place", ""))
            period = None if is_hidden(file) or not folder else period_of(folder)
            if period is not None:
                is_late = self._take(folder, period, file, repeated=repeated)
                late_rows = late_rows or ({folder: int(file["rows"])} if is_late else {})
                partition.enter(period, now)
            for name, rows in late_rows.items():
                late[name] = late.get(name, 0) + rows
        partition.sequence = manifest.sequence
        partition.through = max(partition.through, int((manifest.end or {}).get("offset", 0)))
        self.late += sum(late.values())
        return late

    def _take(self, folder: str, period: Period, file: Mapping[str, Json], *, repeated: bool) -> bool:
        """Add a file to its output folder. Returns whether the file is late."""
        if not self.is_final(period):
            if folder in self.open or str(period[1]) not in self.crowded:
                self.open.setdefault(folder, FolderView()).add(file, late=False)
            else:
                self.crowded[str(period[1])] += 1
            return False
        if not repeated and (folder in self.due or len(self.due) < MAX_DUE):
            self.due.setdefault(folder, FolderView()).add(file, late=True)
        return not repeated

    @property
    def tracked_bytes(self) -> int:
        """About how many bytes the folders take in the state of the row."""
        return sum(map(_entry_bytes, chain(self.open, self.due)))

    def crowd_out(self, period_of: PeriodOf, size: int) -> int:
        """Forget folders that take that many bytes, from the periods with the most folders. Returns how many.

        Folders with few rows go first: if every record names another folder, each of these has a single row.
        """
        by_end: defaultdict[float, list[str]] = defaultdict(list)
        for folder in self.open:
            if (period := period_of(folder)) is not None:
                by_end[period[1]].append(folder)
        before = len(self.open)
        self._forget(by_end, size)
        most_crowded = sorted(self.crowded, key=lambda end: (-self.crowded[end], end))[:MAX_CROWDED]
        self.crowded = {end: self.crowded[end] for end in most_crowded}
        return before - len(self.open)

    def _forget(self, by_end: Mapping[float, Sequence[str]], size: int) -> None:
        for end in sorted(by_end, key=lambda end: (-len(by_end[end]), end)):
            for folder in sorted(by_end[end], key=lambda folder: (self.open[folder].rows, folder)):
                if size <= 0:
                    return
                size -= _entry_bytes(folder)
                self.crowded[str(end)] = self.crowded.get(str(end), 0) + self.open.pop(folder).files

    def advance(self, standing: Iterable[str], period_of: PeriodOf, rules: Rules, now: float) -> list[str]:
        """Decide which folders are final. `standing` are the labels of all partitions that may still get records.

        Returns the output folders that have become final, in order; each of them is due.
        """
        reached = self._reached(list(standing), rules, now)
        if reached is None:
            return []
        before = self.final
        self.final = reached - rules.lateness if before is None else max(before, reached - rules.lateness)
        self.crowded = {end: files for end, files in self.crowded.items() if float(end) > self.final}
        ended = sorted(folder for folder in self.open if (period := period_of(folder)) and self.is_final(period))
        for folder in ended:
            self.due[folder] = self.open.pop(folder)
        return ended

    def _reached(self, standing: list[str], rules: Rules, now: float) -> float | None:
        """The time that all partitions have passed; None if that is unknown."""
        views = [self.partitions.get(label, PartitionView()) for label in standing]
        if not any(view.latest is not None for view in views):
            return None
        times = [view.passed(rules, now) for view in views]
        passed = [time for time in times if time is not None]
        return min(passed) if len(passed) == len(times) else None


def _entry_bytes(folder: str) -> int:
    return len(json.dumps(folder)) + ENTRY_BYTES


def is_hidden(file: Mapping[str, Json]) -> bool:
    """Whether the file is hidden from readers of an output folder: dead letters, and late records set aside."""
    return str(file["key"]).startswith("_")


def encode(topics: Mapping[str, TopicView]) -> Json:
    """The state of the finalizer's row. Folders keep only what must be known, because there may be thousands."""
    return {
        "topics": {
            name: asdict(view) | {"open": _figures(view), "due": _contents(view)} for name, view in topics.items()
        }
    }


def _figures(view: TopicView) -> dict[str, list[int]]:
    return {folder: [content.files, content.rows, content.size] for folder, content in view.open.items()}


def _contents(view: TopicView) -> dict[str, Json]:
    """Final folders, without the fields that are zero."""
    return {folder: {name: n for name, n in asdict(content).items() if n} for folder, content in view.due.items()}


def decode(state: Json) -> dict[str, TopicView]:
    """The topics in the state of the finalizer's row."""
    return {name: _topic(view) for name, view in ((state or {}).get("topics") or {}).items()}


def _topic(state: Json) -> TopicView:
    return TopicView(
        state["final"],
        state["late"],
        {label: _partition(view) for label, view in state["partitions"].items()},
        {folder: FolderView(*figures) for folder, figures in state["open"].items()},
        {folder: FolderView(**content) for folder, content in state["due"].items()},
        dict(state.get("crowded") or {}),
    )


def _partition(state: Json) -> PartitionView:
    mark = state["mark"]
    return PartitionView(**{**state, "mark": mark and (float(mark[0]), int(mark[1]))})
