"""What a node measures and the store does not hold, sent with the heartbeat: lag, rate, workers and open alerts.

They are sent so that every display can show them, also one that can reach only the store. What is sent is a mapping: by
the pipeline's name in the store its figures, and under `$alerts` the alerts that are open on the node, the latest
first. It is small, because it is written with every heartbeat: what does not fit is left out.
"""

from __future__ import annotations

import json
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from holdfast.events import AlertCleared, AlertRaised, BatchCommitted, Event, LagMeasured
from holdfast.observe.alert_kinds import LAGGING, Subject, subject_of

RATED = 60.0
"""Seconds over which records per second are counted."""
MOST_PIPELINES = 12
"""Pipelines that a row names, the one that is furthest behind first."""
MOST_ALERTS, LONGEST_MESSAGE = 6, 120
"""Alerts that a row names, and the characters of their texts."""
MOST_BYTES = 2048
ALERTS = "$alerts"
"""No pipeline has this name."""

Workers = Callable[[], Mapping[str, int]]
"""Returns the number of workers by state."""


class Measurements:
    """Collects events of one node. Thread-safe."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, now: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._now = now
        self._lags: dict[Subject, LagMeasured] = {}
        self._committed: dict[str, deque[tuple[float, int]]] = defaultdict(deque)
        self._alerts: dict[tuple[str, str | None, str | None], dict[str, Any]] = {}
        self._lock = threading.Lock()
        self.workers: Mapping[str, Workers] = {}
        """By pipeline, what reports the workers of its function."""

    def __call__(self, event: Event) -> None:
        """Note the event if it measures something, or if a partition is no longer held."""
        with self._lock:
            if isinstance(event, LagMeasured):
                self._lags[event.pipeline, event.key] = event
            elif isinstance(event, BatchCommitted):
                self._committed[event.pipeline].append((self._clock(), event.records))
            elif isinstance(event, AlertRaised):
                self._raise(event)
            elif isinstance(event, AlertCleared):
                self._alerts.pop((event.kind, event.pipeline, event.key), None)
            elif isinstance(event, LAGGING.ended_by):
                self._no_longer_held(*subject_of(event))

    def sent(self) -> dict[str, Any]:
        """Return what goes with the heartbeat, at most `MOST_BYTES` of JSON. Lag is None if it is not reported."""
        with self._lock:
            lags = list(self._lags.values())
            rates = {pipeline: self._rate(batches) for pipeline, batches in self._committed.items()}
            alerts = list(self._alerts.values())[: -MOST_ALERTS - 1 : -1]
        pipelines = {lag.pipeline for lag in lags} | rates.keys() | self.workers.keys()
        found = {name: _measured([lag for lag in lags if lag.pipeline == name], rates.get(name)) for name in pipelines}
        for name, workers in self.workers.items():
            found[name]["workers"] = dict(workers())
        behind = sorted(found, key=lambda name: (-(found[name]["lag_records"] or 0), name))
        return _bounded({name: found[name] for name in behind[:MOST_PIPELINES]}, alerts)

    def _raise(self, event: AlertRaised) -> None:
        at = (event.kind, event.pipeline, event.key)
        since = self._alerts.pop(at, {}).get("since", round(self._now(), 1))
        message = event.message[:LONGEST_MESSAGE]
        named = {"pipeline": event.pipeline, "key": event.key}
        self._alerts[at] = {"kind": event.kind, **named, "message": message, "since": since}

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


def _bounded(figures: dict[str, Any], alerts: list[dict[str, Any]]) -> dict[str, Any]:
    """Figures and alerts together; if too large, without the pipelines least behind, then without the oldest alerts."""
    while True:
        sent = figures | ({ALERTS: alerts} if alerts else {})
        if len(json.dumps(sent, ensure_ascii=False).encode(errors="replace")) <= MOST_BYTES:
            return sent
        if len(figures) > 1 or not alerts:
            figures.popitem()
        else:
            alerts.pop()
