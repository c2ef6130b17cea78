"""Kafka's own consumer offsets, so that every lag tool sees what is visible. Nothing of ours ever reads them.

Offsets only go forwards. A thread of its own writes them: brokers that are slow must not hold up the pipeline.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from holdfast.sources.kafka.cluster import PATIENCE, Place

LAST_TRY = 5.0


class GroupOffsets:
    """The committed offsets of one consumer group."""

    def __init__(self, properties: Mapping[str, str], group: str) -> None:
        self._properties = {**properties, "group.id": group, "enable.auto.commit": False}
        self._known: dict[Place, int] = {}
        self._queue: queue.SimpleQueue[dict[Place, int] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._trouble: str | None = None
        self._thread.start()

    def advance(self, offsets: Mapping[Place, int]) -> None:
        """Commit these, where they are ahead of what the group has. Returns at once."""
        self._queue.put(dict(offsets))

    def trouble(self) -> str | None:
        """What went wrong with the last try; told once."""
        told, self._trouble = self._trouble, None
        return told

    def close(self) -> None:
        """Write what waits, for a short while."""
        self._queue.put(None)
        self._thread.join(LAST_TRY)

    def _work(self) -> None:
        from confluent_kafka import Consumer

        consumer = Consumer(self._properties)
        while (offsets := self._next()) is not None:
            try:
                self._commit(consumer, offsets)
            except Exception as error:  # noqa: BLE001 - only lag tools depend on it
                self._trouble = f"offsets of group {self._properties['group.id']} could not be committed: {error}"
        with suppress(Exception):
            consumer.close()

    def _next(self) -> dict[Place, int] | None:
        """All that waits, the furthest of each partition; None at the end."""
        offsets = self._queue.get()
        while offsets is not None and not self._queue.empty():
            more = self._queue.get()
            if more is None:
                self._queue.put(None)
                break
            offsets |= {place: offset for place, offset in more.items() if offset > offsets.get(place, -1)}
        return offsets

    def _commit(self, consumer: Any, offsets: Mapping[Place, int]) -> None:
        from confluent_kafka import TopicPartition

        unknown = [TopicPartition(*place) for place in offsets if place not in self._known]
        for one in consumer.committed(unknown, timeout=PATIENCE) if unknown else ():
            self._known[Place(one.topic, one.partition)] = one.offset
        ahead = {place: offset for place, offset in offsets.items() if offset > self._known[place]}
        if ahead:
            consumer.commit(
                offsets=[TopicPartition(*place, offset) for place, offset in ahead.items()], asynchronous=False
            )
            self._known |= ahead
