"""The latest changes of partitions, kept in memory so that ownership over time can be drawn."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from holdfast.events import Event, PartitionChanged


@dataclass(frozen=True, slots=True)
class Change:
    """A row was written by this node, at this time of this host."""

    at: float
    event: PartitionChanged


class RecentChanges:
    """Keeps the last `limit` changes and forgets older ones. May be called from several threads."""

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
        """Changes of one pipeline's partitions, oldest first."""
        with self._lock:
            return [change for change in self._changes if change.event.pipeline == pipeline]
