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
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from prometheus_client import Metric as Family
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, UnknownMetricFamily
from prometheus_client.registry import Collector

from holdfast.events import BatchCommitted, Event, HandlerCalled, StepFinished
from holdfast.events.flow import DURATION_BOUNDS
from holdfast.observe.endpoint import Endpoint, Health
from holdfast.observe.gauges import AlertMetrics, BulkMetrics, LagMetrics, StatusMetrics, build_info
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
DURATION = "holdfast_duration_seconds"
DURATION_HELP = (
    "How long each took: plan (a call of the source), batch (from sending it to Spark until it was committed), commit "
    "(a write of several leases), publish (several commits), handler (a record, averaged over a turn of a worker)."
)
BATCH, HANDLER = "batch", "handler"
STEPS = ("plan", BATCH, "commit", "publish", HANDLER)
_ENDS = [*(repr(bound) for bound in DURATION_BOUNDS), "+Inf"]


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


class DurationMetrics:
    """The histogram of each pipeline and step. Not thread-safe by itself."""

    def __init__(self, pipelines: Mapping[str, str]) -> None:
        """`pipelines` maps identifiers in the store to pipeline names."""
        self._pipelines = dict(pipelines)
        labels = [(name, step) for name in pipelines.values() for step in STEPS]
        self._numbers = {label: [0] * len(_ENDS) for label in labels}
        self._seconds = dict.fromkeys(labels, 0.0)

    def __call__(self, event: Event) -> None:
        """Count the event if it has a duration."""
        if isinstance(event, StepFinished):
            self._add(event.pipeline, event.step, _placed(event.seconds), event.seconds)
        elif isinstance(event, BatchCommitted) and event.seconds is not None:
            self._add(event.pipeline, BATCH, _placed(event.seconds), event.seconds)
        elif isinstance(event, HandlerCalled):
            self._add(event.pipeline, HANDLER, dict(enumerate(event.records)), event.seconds)

    def _add(self, pipeline: str, step: str, placed: Mapping[int, int], seconds: float) -> None:
        label = (self._pipelines.get(pipeline, ""), step)
        if label in self._numbers:
            for index, number in placed.items():
                self._numbers[label][index] += number
            self._seconds[label] += seconds

    def collect(self) -> Iterator[Family]:
        """Yield the current value of the metric."""
        family = HistogramMetricFamily(DURATION, DURATION_HELP, labels=("pipeline", "step"))
        for label, numbers in self._numbers.items():
            total, buckets = 0, []
            for end, number in zip(_ENDS, numbers, strict=True):
                total += number
                buckets.append((end, total))
            family.add_metric(label, buckets, self._seconds[label])
        yield family


def _placed(seconds: float) -> dict[int, int]:
    return {bisect_left(DURATION_BOUNDS, seconds): 1}
