"""Commits published offsets to a Kafka consumer group, so that lag tools see them. holdfast never reads them back.

Offsets only grow. A separate thread commits them: slow brokers must not hold up the pipeline.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from holdfast.sources.kafka.cluster import PATIENCE, TopicPartition

LAST_TRY = 5.0


class GroupOffsets:
    """The committed offsets of one consumer group."""

    def __init__(self, properties: Mapping[str, str], group: str) -> None:
        self._properties = {**properties, "group.id": group, "enable.auto.commit": False}
        self._committed: dict[TopicPartition, int] = {}
        self._queue: queue.SimpleQueue[dict[TopicPartition, int] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._trouble: str | None = None
        self._thread.start()

    def advance(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Commit those offsets that are ahead of the group's. Returns at once."""
        self._queue.put(dict(offsets))

    def trouble(self) -> str | None:
        """Return the error of the last attempt, and forget it."""
        trouble, self._trouble = self._trouble, None
        return trouble

    def close(self) -> None:
        """Commit what is queued, waiting for at most `LAST_TRY` seconds."""
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

    def _next(self) -> dict[TopicPartition, int] | None:
        """Return everything queued, the highest offset of each partition; None after `close`."""
        offsets = self._queue.get()
        while offsets is not None and not self._queue.empty():
            more = self._queue.get()
            if more is None:
                self._queue.put(None)
                break
            offsets |= {tp: offset for tp, offset in more.items() if offset > offsets.get(tp, -1)}
        return offsets

    def _commit(self, consumer: Any, offsets: Mapping[TopicPartition, int]) -> None:
        from confluent_kafka import TopicPartition as KafkaPartition

        unknown = [KafkaPartition(*tp) for tp in offsets if tp not in self._committed]
        for at in consumer.committed(unknown, timeout=PATIENCE) if unknown else ():
            self._committed[TopicPartition(at.topic, at.partition)] = at.offset
        ahead = {tp: offset for tp, offset in offsets.items() if offset > self._committed[tp]}
        if ahead:
            consumer.commit(offsets=[KafkaPartition(*tp, offset) for tp, offset in ahead.items()], asynchronous=False)
            self._committed |= ahead
