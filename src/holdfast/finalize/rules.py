"""When a place is final: every partition of its topic has passed it. Pure.

A partition has passed the begin of a period when it has committed records of it. From there it goes on with the store's
clock, up to the period's end, as far as all that was in its log by then has been committed. A place is final when all
have passed its end and the lateness on top. A partition that has nothing to read for a while is taken to be almost at
the store's time, so that it blocks nobody. Whatever comes for a final place afterwards is late.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import TypeAlias

from holdfast.flow.manifest import Manifest, first_offset
from holdfast.leases.lease import Json

Period: TypeAlias = tuple[float, float]
"""Begin and end of what a place holds, in seconds since 1970; the end is not in it."""
PeriodOf: TypeAlias = Callable[[str], Period | None]
"""The period of a place; None for a place that tells no time."""


@dataclass(frozen=True, slots=True)
class Rules:
    """Seconds that a place stays open behind its end, and after which a partition without records blocks no more."""

    lateness: float = 3600.0
    idle_after: float = 3600.0


@dataclass(slots=True)
class PartitionView:
    """How far the commits of one partition were read, and what they told."""

    sequence: int = 0
    latest: float | None = None
    """Begin of the latest period that it has records of."""
    until: float = 0.0
    """End of that period."""
    through: int = 0
    """All offsets before this one have been seen in commits."""
    quiet_since: float | None = None
    """Since when there was nothing to read at every look; None if there was something."""
    entered: float | None = None
    """When a record of the latest period was first seen."""
    read_until: float | None = None
    """Everything that was in its log at this time has been seen in commits."""
    mark: tuple[float, int] | None = None
    """A time, and where the log ended then."""

    def look(self, end: int | None, *, quiet: bool, now: float) -> None:
        """Note what a look has found: where the log ended when it began, and whether there was nothing to read."""
        self.quiet_since = (self.quiet_since or now) if quiet else None
        if end is None:
            return
        if self.through >= end:
            self.read_until, self.mark = now, None
        elif self.mark is None or self.through >= self.mark[1]:
            self.read_until = self.read_until if self.mark is None else self.mark[0]
            self.mark = (now, end)

    def enter(self, period: Period, now: float) -> None:
        """There is a record of that period."""
        # A time that has not come is some producer's mistake, and says nothing of what is still to come.
        if period[0] <= now and (self.latest is None or period[0] > self.latest):
            self.latest, self.until, self.entered = *period, now

    def passed(self, rules: Rules, now: float) -> float | None:
        """The time that it has passed; None if that cannot be told."""
        if self.quiet_since is not None and now - self.quiet_since >= rules.idle_after:
            return max(self.latest or 0.0, now - rules.idle_after)
        if self.latest is None or self.entered is None or self.read_until is None:
            return self.latest
        # Not beyond the period itself: a producer may be slower than the clock, and records of it still come.
        return min(now, self.until, self.latest + max(0.0, self.read_until - self.entered))


@dataclass(slots=True)
class PlaceView:
    """What was committed to a place, or, once it is final, what there is to tell of it."""

    files: int = 0
    rows: int = 0
    size: int = 0
    late: int = 0
    """Rows of these that came when the place was final already."""
    failures: int = 0
    """How often telling has failed."""
    not_before: float = 0.0

    def add(self, file: Mapping[str, Json], *, late: bool) -> None:
        self.files += 1
        self.rows += int(file["rows"])
        self.size += int(file["size"])
        self.late += int(file["rows"]) if late else 0


@dataclass(slots=True)
class TopicView:
    """What is known of one topic."""

    final: float | None = None
    """Places that end at or before this time are final."""
    late: int = 0
    """Late records in all."""
    partitions: dict[str, PartitionView] = field(default_factory=dict)
    open: dict[str, PlaceView] = field(default_factory=dict)
    """Places with a time that are not final."""
    due: dict[str, PlaceView] = field(default_factory=dict)
    """Final places of which hooks have not been told yet."""

    def is_final(self, period: Period) -> bool:
        return self.final is not None and period[1] <= self.final

    def absorb(self, manifest: Manifest, period_of: PeriodOf, now: float) -> dict[str, int]:
        """Take the partition's next commit into account. Answers its late records by place."""
        own = self.partitions.setdefault(manifest.label, PartitionView())
        # Work that began anew at an earlier offset: what is written again comes to where it was, and is not late.
        again = first_offset(manifest) < own.through
        late: dict[str, int] = {}
        for file in manifest.files:
            told = dict(file.get("late") or {})
            place = str(file.get("place", ""))
            period = None if is_hidden(file) or not place else period_of(place)
            if period is not None:
                slipped = self._take(place, period, file, again=again)
                told = told or ({place: int(file["rows"])} if slipped else {})
                own.enter(period, now)
            for name, rows in told.items():
                late[name] = late.get(name, 0) + rows
        own.sequence = manifest.sequence
        own.through = max(own.through, int((manifest.end or {}).get("offset", 0)))
        self.late += sum(late.values())
        return late

    def _take(self, place: str, period: Period, file: Mapping[str, Json], *, again: bool) -> bool:
        """Whether the file came too late."""
        if not self.is_final(period):
            self.open.setdefault(place, PlaceView()).add(file, late=False)
            return False
        if not again:
            self.due.setdefault(place, PlaceView()).add(file, late=True)
        return not again

    def advance(self, standing: Iterable[str], period_of: PeriodOf, rules: Rules, now: float) -> list[str]:
        """Decide anew what is final. `standing` are the labels of all partitions that may still bring records.

        Answers the places that are final from now on, in order; each is due.
        """
        reached = self._reached(list(standing), rules, now)
        if reached is None:
            return []
        before = self.final
        self.final = reached - rules.lateness if before is None else max(before, reached - rules.lateness)
        ended = sorted(place for place in self.open if (period := period_of(place)) and self.is_final(period))
        for place in ended:
            self.due[place] = self.open.pop(place)
        return ended

    def _reached(self, standing: list[str], rules: Rules, now: float) -> float | None:
        """The time that all partitions have passed; None if that cannot be told."""
        views = [self.partitions.get(label, PartitionView()) for label in standing]
        if not any(view.latest is not None for view in views):
            return None
        times = [view.passed(rules, now) for view in views]
        known = [time for time in times if time is not None]
        return min(known) if len(known) == len(times) else None


def is_hidden(file: Mapping[str, Json]) -> bool:
    """Whether a file is where readers of its place do not look: dead letters, and late records set aside."""
    return str(file["key"]).startswith("_")


def encode(topics: Mapping[str, TopicView]) -> Json:
    """As the row keeps it. Open places may be thousands, so that only their figures are kept."""
    return {"topics": {name: asdict(view) | {"open": _figures(view)} for name, view in topics.items()}}


def _figures(view: TopicView) -> dict[str, list[int]]:
    return {place: [told.files, told.rows, told.size] for place, told in view.open.items()}


def decode(state: Json) -> dict[str, TopicView]:
    """What a row has kept."""
    return {name: _topic(told) for name, told in ((state or {}).get("topics") or {}).items()}


def _topic(told: Json) -> TopicView:
    return TopicView(
        told["final"],
        told["late"],
        {label: _partition(one) for label, one in told["partitions"].items()},
        {place: PlaceView(*figures) for place, figures in told["open"].items()},
        {place: PlaceView(**one) for place, one in told["due"].items()},
    )


def _partition(told: Json) -> PartitionView:
    mark = told["mark"]
    return PartitionView(**{**told, "mark": mark and (float(mark[0]), int(mark[1]))})
