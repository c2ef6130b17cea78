"""What a node remembers of the partitions that it holds: sizes of records, and since when some wait. In memory only.

A node that takes a partition over knows nothing: it looks at the first unread record once, for its time and for a guess
at the size of records, which the first batch corrects.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from holdfast.sources.kafka.cluster import Glimpse, Place

FIRST_GUESS = 256.0
"""Bytes of a record when none could be looked at. Too small a guess costs one batch that is cut short."""
WEIGHT = 0.3
"""Of the latest batch in the running mean."""


@dataclass(slots=True)
class _Track:
    position: int = -1
    mean_bytes: float | None = None
    waiting_since: float | None = None
    seen_end: int = -1
    seen_at: float = 0.0
    """The partition had records up to `seen_end` at the latest look."""
    made_at: float | None = None
    """When the record at the position was made, by Kafka's timestamp."""
    read_before: bool = False
    """This node made the batch that ended at the position, so it saw what came later arrive."""


class Tracking:
    """By partition. `now` is seconds since 1970."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._tracks: dict[Place, _Track] = {}

    def mean_bytes(self, place: Place) -> float:
        """Expected size of a record: of this partition, else of the topic's others, else a guess. At least a byte."""
        own = self._track(place).mean_bytes
        if own is not None:
            return max(1.0, own)  # records without key and value have no bytes at all
        others = [one.mean_bytes for at, one in self._tracks.items() if at.topic == place.topic and one.mean_bytes]
        return max(1.0, sum(others) / len(others)) if others else FIRST_GUESS

    def learn(self, place: Place, end: int, rows: int, size: int) -> None:
        """A batch was staged up to `end`."""
        track = self._track(place)
        if rows > 0:
            mean = size / rows
            track.mean_bytes = mean if track.mean_bytes is None else WEIGHT * mean + (1 - WEIGHT) * track.mean_bytes
        # What was there already when the batch was planned has waited since then.
        since = track.seen_at if track.seen_end > end else None
        track.position, track.waiting_since, track.made_at, track.read_before = end, since, None, True

    def look(self, place: Place, position: int, end: int) -> None:
        """Note that the partition is at `position` and has records up to `end`."""
        track = self._track(place)
        if track.position != position:
            track.position, track.waiting_since, track.made_at, track.read_before = position, None, None, False
        track.seen_end, track.seen_at = end, self._now()
        if end > position and track.waiting_since is None:
            track.waiting_since = self._now()

    def unseen(self) -> dict[Place, int]:
        """Positions whose record nobody has glimpsed yet."""
        return {
            place: one.position
            for place, one in self._tracks.items()
            if one.waiting_since is not None and one.made_at is None
        }

    def glimpse(self, seen: Mapping[Place, Glimpse]) -> None:
        """Note the records at these partitions' positions."""
        for place, record in seen.items():
            track = self._track(place)
            track.made_at = record.made_at
            if track.mean_bytes is None:
                track.mean_bytes = float(max(record.size, 1))

    def age(self, place: Place) -> float:
        """Seconds that the oldest unread record has waited, as far as this node can tell."""
        track = self._track(place)
        if track.waiting_since is None:
            return 0.0
        since = track.waiting_since
        if not track.read_before and track.made_at is not None:
            # Taken over: the record may have waited while nobody looked.
            since = min(since, track.made_at)
        return max(0.0, self._now() - since)

    def seen_end(self, place: Place) -> int:
        """Where the log ended at the latest look of this node; -1 if it never looked."""
        return self._track(place).seen_end

    def stood(self, place: Place) -> float:
        """Seconds for which this node has seen unread records at the same position."""
        since = self._track(place).waiting_since
        return 0.0 if since is None else max(0.0, self._now() - since)

    def lag_seconds(self, place: Place) -> float | None:
        """Age of the oldest unread record by its own timestamp; 0 if there is none, None if that is not known."""
        track = self._track(place)
        if track.waiting_since is None:
            return 0.0
        return None if track.made_at is None else max(0.0, self._now() - track.made_at)

    def _track(self, place: Place) -> _Track:
        return self._tracks.setdefault(place, _Track())
