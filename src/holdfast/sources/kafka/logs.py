"""What a node knows of the logs of its partitions beside their ends: ids of topics, first offsets, retention."""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import suppress

from holdfast.errors import SourceUnavailable
from holdfast.sources.kafka.cluster import Cluster, Place

CHECK_EVERY = 5.0
"""Seconds for which first offsets are taken as known; a job that reads what is gone fails by itself."""


class Logs:
    """Looked up now and then, and for partitions that are new here. `now` is seconds since 1970."""

    def __init__(self, cluster: Cluster, now: Callable[[], float]) -> None:
        self._cluster = cluster
        self._now = now
        self.ids: dict[str, str] = {}
        """Of the topics that exist."""
        self.firsts: dict[Place, int] = {}
        """The first offset that is still there."""
        self.kept: dict[str, float | None] = {}
        """Seconds for which topics keep records; None for ever, or not known."""
        self._checked_at = 0.0
        self._gone_since: dict[str, float] = {}

    def check(self, places: Collection[Place]) -> None:
        """Look everything up, if it is time. Raises `SourceUnavailable`."""
        topics = {place.topic for place in places}
        known = topics <= self.ids.keys() and all(place in self.firsts for place in places)
        if known and abs(self._now() - self._checked_at) < CHECK_EVERY:
            return
        self._checked_at = self._now()
        self.firsts |= self._cluster.starts(places)
        self.learn_ids(topics)
        self.learn_retention(topics & self.ids.keys())

    def learn_ids(self, topics: set[str]) -> None:
        """Ask which of these topics exist."""
        there = {topic.name: topic.id for topic in self._cluster.described(sorted(topics))}
        self.ids = {name: told for name, told in self.ids.items() if name not in topics} | there
        for name in topics:
            if name in there or name in self._cluster.denied:
                self._gone_since.pop(name, None)
            else:
                self._gone_since.setdefault(name, self._now())

    def gone_for(self, topic: str) -> float:
        """Seconds for which the brokers have said that there is no such topic."""
        return max(0.0, self._now() - self._gone_since.get(topic, self._now()))

    def learn_retention(self, topics: set[str]) -> None:
        """How long topics keep records. Only warnings depend on it, and not every client may ask."""
        unknown = sorted(topics - self.kept.keys())
        with suppress(SourceUnavailable):
            self.kept |= dict.fromkeys(unknown) | (self._cluster.retention(unknown) if unknown else {})
