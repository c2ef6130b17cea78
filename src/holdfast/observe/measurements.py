"""What a node measures and the store does not hold: lag and rate of each pipeline, sent with the heartbeat.

So that every display shows them, also one that can reach only the store.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable
from typing import Any

from holdfast.events import BatchCommitted, Event, LagMeasured
from holdfast.observe.alert_kinds import LAGGING, Subject, subject_of

RATED = 60.0
"""Seconds over which records per second are counted."""
MOST_PIPELINES = 12
"""Pipelines that a row names, the one that is furthest behind first: the row is written with every heartbeat."""


class Measurements:
    """Collects events of one node. Thread-safe."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lags: dict[Subject, LagMeasured] = {}
        self._committed: dict[str, deque[tuple[float, int]]] = defaultdict(deque)
        self._lock = threading.Lock()

    def __call__(self, event: Event) -> None:
        """Note the event if it measures something, or if a partition is no longer held."""
        with self._lock:
            if isinstance(event, LagMeasured):
                self._lags[event.pipeline, event.key] = event
            elif isinstance(event, BatchCommitted):
                self._committed[event.pipeline].append((self._clock(), event.records))
            elif isinstance(event, LAGGING.ended_by):
                self._no_longer_held(*subject_of(event))

    def by_pipeline(self) -> dict[str, dict[str, Any]]:
        """Return lag and rate by the pipeline's name in the store. Lag is None where the source does not report it."""
        with self._lock:
            lags = list(self._lags.values())
            rates = {pipeline: self._rate(batches) for pipeline, batches in self._committed.items()}
        pipelines = {lag.pipeline for lag in lags} | rates.keys()
        found = {name: _measured([lag for lag in lags if lag.pipeline == name], rates.get(name)) for name in pipelines}
        behind = sorted(found, key=lambda name: -(found[name]["lag_records"] or 0))
        return {name: found[name] for name in behind[:MOST_PIPELINES]}

    def _rate(self, batches: deque[tuple[float, int]]) -> float:
        now = self._clock()
        while batches and batches[0][0] < now - RATED:
            batches.popleft()
        return round(sum(records for _, records in batches) / RATED, 1)

    def _no_longer_held(self, pipeline: str | None, key: str | None) -> None:
        if key is None:
            self._lags.clear()  # the session has ended, and nothing is held any more
        else:
            self._lags.pop((pipeline, key), None)


def _measured(lags: Iterable[LagMeasured], rate: float | None) -> dict[str, Any]:
    records = [lag.records for lag in lags if lag.records is not None]
    seconds = [lag.seconds for lag in lags if lag.seconds is not None]
    return {
        "lag_records": sum(records) if records else None,
        "lag_seconds": round(max(seconds), 1) if seconds else None,
        "records_per_second": rate,
    }
