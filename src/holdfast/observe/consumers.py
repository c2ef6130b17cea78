"""Consumers of events: one `emit` for many of them, and one that keeps recent changes."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeAlias

from holdfast.events import Event, Notice, PartitionChanged

Consumer: TypeAlias = Callable[[Event], None]


class Reporter:
    """Passes every event to every consumer. Never raises: a failing consumer must not stop the pipeline or another one.

    When a consumer starts to fail, the others get one notice; it still gets later events.
    """

    def __init__(self, consumers: Iterable[Consumer]) -> None:
        self._consumers = tuple(consumers)
        self._failing: set[int] = set()

    def __call__(self, event: Event) -> None:
        """Pass the event on. Blocks as long as the consumers do."""
        for index, consumer in enumerate(self._consumers):
            error = _delivered(consumer, event)
            if error is None:
                self._failing.discard(index)
            elif index not in self._failing:
                self._failing.add(index)
                self._notify_others(index, error)

    def _notify_others(self, failed: int, error: Exception) -> None:
        name = type(self._consumers[failed]).__name__
        notice = Notice(f"{name} could not handle an event: {type(error).__name__}: {error}")
        for index, consumer in enumerate(self._consumers):
            if index not in self._failing:
                _delivered(consumer, notice)


def _delivered(consumer: Consumer, event: Event) -> Exception | None:
    try:
        consumer(event)
    except Exception as error:  # noqa: BLE001 (whatever a consumer raises is its own trouble)
        return error
    return None


@dataclass(frozen=True, slots=True)
class Change:
    """A row that this node has written; `at` is by the host's clock."""

    at: float
    event: PartitionChanged


class RecentChanges:
    """Keeps the last `limit` changes, so that ownership over time can be shown. Thread-safe."""

    def __init__(self, limit: int = 10_000, now: Callable[[], float] = time.time) -> None:
        self._changes: deque[Change] = deque(maxlen=limit)
        self._now = now
        self._lock = threading.Lock()

    def __call__(self, event: Event) -> None:
        """Keep the event if it is a change of a partition."""
        if isinstance(event, PartitionChanged):
            with self._lock:
                self._changes.append(Change(self._now(), event))

    def of(self, pipeline: str) -> list[Change]:
        """Return the changes of one pipeline's partitions, oldest first."""
        with self._lock:
            return [change for change in self._changes if change.event.pipeline == pipeline]
