"""Looks topics up in the background, for readers that must notice that a topic was created again."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from holdfast.sources.kafka.cluster import DENIED, Topic

LOOK_EVERY = 1.0
PATIENCE = 2.0
"""Seconds that brokers have for a response."""


class TopicWatch:
    """Looks topics up in the background, again and again. Used by one thread; nothing blocks."""

    def __init__(self, properties: Mapping[str, str], clock: Callable[[], float]) -> None:
        self._properties, self._clock = properties, clock
        self._admin: Any = None
        self._futures: dict[str, Any] = {}
        self._due = self._requested_at = 0.0
        self.current_at = 0.0
        """When the last request was sent to which the brokers responded."""
        self.topics: dict[str, Topic | None] = {}
        """What was found last; None for a topic that does not exist."""
        self.away: str | None = None
        """Why the brokers did not respond to the last request; None if they did."""

    def look(self, names: set[str], since: float) -> None:
        """Process a response, and request these topics again if it is time or what is known is older than `since`."""
        if self._futures:
            if not all(future.done() for future in self._futures.values()):
                return
            self._learn()
        now = self._clock()
        if now >= self._due or (self.current_at <= since and self.away is None):
            self._due, self._requested_at = now + LOOK_EVERY, now
            self._request(names)

    def _request(self, names: set[str]) -> None:
        from confluent_kafka import TopicCollection
        from confluent_kafka.admin import AdminClient

        if self._admin is None:
            self._admin = AdminClient(dict(self._properties))
        if names:
            self._futures = dict(self._admin.describe_topics(TopicCollection(sorted(names)), request_timeout=PATIENCE))
        elif not self.current_at:
            self._futures = {"": self._admin.describe_cluster(request_timeout=PATIENCE)}

    def _learn(self) -> None:
        from confluent_kafka import KafkaException

        self.away = None
        for name, future in self._futures.items():
            try:
                found = future.result()
            except KafkaException as error:
                if error.args[0].name() in {"UNKNOWN_TOPIC_OR_PART", *DENIED}:
                    self.topics[name] = None
                else:
                    self.away = f"the brokers do not respond: {error.args[0].str()}"
            else:
                if name:
                    numbers = tuple(partition.id for partition in found.partitions)
                    self.topics[name] = Topic(name, str(found.topic_id), numbers)
        self._futures = {}
        if self.away is None:
            self.current_at = self._requested_at
