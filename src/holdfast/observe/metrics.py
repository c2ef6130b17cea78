"""Metrics for Prometheus, counted from events.

There are two sets: idiomatic metrics with labels, and those of the source coordinator, named
`<pipeline>_source_coordinator_<metric>`. The latter have no suffix and are therefore exposed as untyped: typed counters
would get the suffix `_total`. All start at 0 for every configured pipeline.
"""

from __future__ import annotations

import hashlib
import re
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from prometheus_client import Metric as Family
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, UnknownMetricFamily
from prometheus_client.registry import Collector

from holdfast.events import Event
from holdfast.observe.durations import DurationMetrics
from holdfast.observe.endpoint import Endpoint
from holdfast.observe.gauges import AlertMetrics, BulkMetrics, LagMetrics, StatusMetrics, build_info
from holdfast.observe.health import Health
from holdfast.observe.metric_table import (
    COUNTERS,
    PIPELINE,
    SESSION_USABLE,
    SESSION_USABLE_HELP,
    SOURCE_COORDINATOR,
    Counts,
    Metric,
)

Labels = tuple[str, ...]


def metric_names(pipelines: Iterable[str]) -> dict[str, str]:
    """Return the prefix of each pipeline's metric names: its name with '_' for characters that are not allowed.

    If two pipelines would get the same prefix, a pipeline with exactly that name keeps it, and every other one gets `_`
    and 8 digits of the SHA-256 of its name appended. So metric names depend neither on the order nor on the number of
    pipelines.
    """
    prefixes = {name: re.sub(r"^(?=[0-9])|[^A-Za-z0-9_]", "_", name) for name in pipelines}
    shared = list(prefixes.values())
    return {
        name: prefix if name == prefix or shared.count(prefix) == 1 else f"{prefix}_{_digits(name)}"
        for name, prefix in prefixes.items()
    }


def _digits(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()[:8]


def _boot_time() -> float:
    # Advances while the host is suspended, like the clock by which a node relies on its session.
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Metrics(Collector):
    """Counts events of one node. Thread-safe.

    Events of pipelines that are not configured are not counted, for example those of the lease for discovery.
    """

    def __init__(self, pipelines: Mapping[str, str], clock: Callable[[], float] = _boot_time) -> None:
        """`pipelines` maps identifiers in the store to pipeline names."""
        self._pipelines = dict(pipelines)
        self._prefixes = metric_names(pipelines.values())
        self.health = Health(clock)
        self._parts = (
            LagMetrics(pipelines),
            StatusMetrics(pipelines),
            BulkMetrics(pipelines),
            DurationMetrics(pipelines),
            AlertMetrics(pipelines),
        )
        self._lock = threading.Lock()
        self._values: dict[str, dict[Labels, float]] = {}
        self._counted: dict[type[Event], list[tuple[Metric, Counts[Any]]]] = defaultdict(list)
        for metric in (*COUNTERS, *SOURCE_COORDINATOR):
            self._values[metric.name] = dict.fromkeys(_initial_labels(metric, pipelines.values()), 0.0)
            for counts in metric.counted:
                self._counted[counts.event].append((metric, counts))

    def __call__(self, event: Event) -> None:
        """Count the event."""
        with self._lock:
            for metric, counts in self._counted.get(type(event), ()):
                self._count(metric, counts, event)
            for part in self._parts:
                part(event)
        self.health(event)

    def collect(self) -> Iterator[Family]:
        """Yield the current value of all metrics."""
        with self._lock:
            values = {name: dict(by_labels) for name, by_labels in self._values.items()}
            more = [family for part in self._parts for family in part.collect()]
        for metric in COUNTERS:
            family = CounterMetricFamily(metric.name, metric.help, labels=metric.labels)
            for labels, value in values[metric.name].items():
                family.add_metric(labels, value)
            yield family
        yield GaugeMetricFamily(SESSION_USABLE, SESSION_USABLE_HELP, self.health.usable_for)
        yield build_info()
        yield from more
        for pipeline, prefix in self._prefixes.items():
            for metric in SOURCE_COORDINATOR:
                name = f"{prefix}_source_coordinator_{metric.name}"
                yield UnknownMetricFamily(name, metric.help, values[metric.name][pipeline,])

    def serve(self, port: int, address: str = "127.0.0.1") -> Endpoint:
        """Serve scrapes and probes on threads until the endpoint is stopped. Raises `UsageError` for a taken port."""
        return Endpoint(self, self.health, port, address)

    def _count(self, metric: Metric, counts: Counts[Any], event: Event) -> None:
        labels = counts.labels(event) if callable(counts.labels) else counts.labels
        if PIPELINE in metric.labels:
            pipeline = self._pipelines.get(getattr(event, PIPELINE))
            if pipeline is None:
                return
            labels = (pipeline, *labels)
        by_labels = self._values[metric.name]
        by_labels[labels] = by_labels.get(labels, 0.0) + counts.amount(event)


def _initial_labels(metric: Metric, pipelines: Iterable[str]) -> Iterator[Labels]:
    fixed = [counts.labels for counts in metric.counted if not callable(counts.labels)]
    if PIPELINE in metric.labels:
        return ((pipeline, *labels) for pipeline in pipelines for labels in fixed)
    return iter(fixed)
