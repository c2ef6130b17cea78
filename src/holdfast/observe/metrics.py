"""Metrics for Prometheus, counted from events.

Two sets tell the same story: idiomatic ones with labels, and those of the source coordinator under the names
`<pipeline>_source_coordinator_<metric>`, which have no suffix and are therefore exposed as untyped: Prometheus'
format for typed counters would add `_total`. All start at 0 for every configured pipeline.
"""

from __future__ import annotations

import hashlib
import re
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client import Metric as Family
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, UnknownMetricFamily
from prometheus_client.registry import Collector

from holdfast.errors import UsageError
from holdfast.events import Event, Heartbeat, NodeLeft, SessionEnded
from holdfast.observe.alert_metrics import AlertMetrics
from holdfast.observe.bulk_metrics import BulkMetrics
from holdfast.observe.lag_metrics import LagMetrics
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
    """For each pipeline the beginning of its metrics' names: the pipeline's name with '_' for what is not allowed.

    Where two pipelines would get the same one, the pipeline of just that name has it, and every other one gets `_`
    and 8 digits of its own name's SHA-256 behind it: what a pipeline's metrics are called then depends neither on
    the order of pipelines nor on their number.
    """
    beginnings = {name: re.sub(r"^(?=[0-9])|[^A-Za-z0-9_]", "_", name) for name in pipelines}
    shared = list(beginnings.values())
    return {
        name: begin if name == begin or shared.count(begin) == 1 else f"{begin}_{_digits(name)}"
        for name, begin in beginnings.items()
    }


def _digits(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()[:8]


def _boot_time() -> float:
    # Goes on while the host is suspended, as the clock does by which a node relies on its session.
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Metrics(Collector):
    """Counts events of one node. May be called and scraped from several threads.

    Events of pipelines that are not configured, such as the lease under which a pipeline's partitions are discovered,
    are not counted.
    """

    def __init__(self, pipelines: Mapping[str, str], clock: Callable[[], float] = _boot_time) -> None:
        """`pipelines` gives each pipeline's name by its identifier in the store."""
        self._pipelines = dict(pipelines)
        self._beginnings = metric_names(pipelines.values())
        self._clock = clock
        self._usable_until = 0.0
        self._alerts = AlertMetrics(pipelines)
        self._lags = LagMetrics(pipelines)
        self._bulks = BulkMetrics(pipelines)
        self._lock = threading.Lock()
        self._values: dict[str, dict[Labels, float]] = {}
        self._counted: dict[type[Event], list[tuple[Metric, Counts[Any]]]] = defaultdict(list)
        for metric in (*COUNTERS, *SOURCE_COORDINATOR):
            self._values[metric.name] = dict.fromkeys(_from_the_start(metric, pipelines.values()), 0.0)
            for counts in metric.counted:
                self._counted[counts.event].append((metric, counts))

    def __call__(self, event: Event) -> None:
        """Count the event."""
        with self._lock:
            for metric, counts in self._counted.get(type(event), ()):
                self._count(metric, counts, event)
            self._alerts(event)
            self._lags(event)
            self._bulks(event)
            if isinstance(event, Heartbeat):
                self._usable_until = self._clock() + event.usable_for
            elif isinstance(event, SessionEnded | NodeLeft):
                self._usable_until = 0.0

    def collect(self) -> Iterator[Family]:
        """All metrics as they are now."""
        with self._lock:
            values = {name: dict(by_labels) for name, by_labels in self._values.items()}
            usable = max(0.0, self._usable_until - self._clock())
            more = [*self._lags.collect(), *self._bulks.collect(), *self._alerts.collect()]
        for metric in COUNTERS:
            family = CounterMetricFamily(metric.name, metric.help, labels=metric.labels)
            for labels, value in values[metric.name].items():
                family.add_metric(labels, value)
            yield family
        yield GaugeMetricFamily(SESSION_USABLE, SESSION_USABLE_HELP, usable)
        yield from more
        for pipeline, beginning in self._beginnings.items():
            for metric in SOURCE_COORDINATOR:
                name = f"{beginning}_source_coordinator_{metric.name}"
                yield UnknownMetricFamily(name, metric.help, values[metric.name][pipeline,])

    def serve(self, port: int, address: str = "127.0.0.1") -> Endpoint:
        """Answer scrapes on a thread of its own until the endpoint is stopped. Raises `UsageError` for a taken port."""
        return Endpoint(self, port, address)

    def _count(self, metric: Metric, counts: Counts[Any], event: Event) -> None:
        labels = counts.labels(event) if callable(counts.labels) else counts.labels
        if PIPELINE in metric.labels:
            pipeline = self._pipelines.get(getattr(event, PIPELINE))
            if pipeline is None:
                return
            labels = (pipeline, *labels)
        by_labels = self._values[metric.name]
        by_labels[labels] = by_labels.get(labels, 0.0) + counts.amount(event)


class Endpoint:
    """The address under which metrics are scraped, from construction to `stop`."""

    def __init__(self, metrics: Metrics, port: int, address: str) -> None:
        registry = CollectorRegistry()
        registry.register(metrics)
        try:
            self._server, self._thread = start_http_server(port, address, registry)
        except OSError as error:
            raise UsageError(f"metrics cannot be served on {address}:{port}: {error.strerror}") from error

    @property
    def port(self) -> int:
        """The port that is really served; another one than asked for if that was 0."""
        return self._server.server_port

    def stop(self) -> None:
        """Answer no more and free the port. Blocks until the current scrapes are answered; may be called again."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def _from_the_start(metric: Metric, pipelines: Iterable[str]) -> Iterator[Labels]:
    fixed = [counts.labels for counts in metric.counted if not callable(counts.labels)]
    if PIPELINE in metric.labels:
        return ((pipeline, *labels) for pipeline in pipelines for labels in fixed)
    return iter(fixed)
