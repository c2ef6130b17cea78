"""Metrics beyond plain counters: alerts raised and active, lag of partitions, limits of bulk requests."""

from __future__ import annotations

import platform
from collections import Counter
from collections.abc import Iterator, Mapping
from importlib import metadata

from prometheus_client import Metric as Family
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from holdfast import __version__
from holdfast.events import AlertCleared, AlertRaised, DocumentsIndexed, Event, LagMeasured, PartitionsCounted
from holdfast.observe.alert_kinds import KINDS, LAGGING, Subject, subject_of

ALERTS = "holdfast_alerts_total"
ALERTS_HELP = "Alerts that this node has raised, repetitions included; each kind is present from the start."
ALERT_ACTIVE = "holdfast_alert_active"
ALERT_ACTIVE_HELP = (
    "Alerts that this node has raised and not cleared; pipeline is empty if the alert concerns no single pipeline."
)
LAG_RECORDS = "holdfast_lag_records"
LAG_RECORDS_HELP = "Unread records in the source, of each partition that this node holds."
LAG_SECONDS = "holdfast_lag_seconds"
LAG_SECONDS_HELP = "Age of the oldest unread record; 0 if there is none, absent if the source does not report it."
BULK_LIMIT = "holdfast_bulk_limit"
BULK_LIMIT_HELP = "Bulk requests that a task may have in flight: raised by successful responses, halved by rejections."


PARTITIONS = "holdfast_partitions_by_status"
PARTITIONS_HELP = "Partitions of the pipeline by status, of all nodes, as this node has counted them last in the store."
BUILD_INFO = "holdfast_build_info"
BUILD_INFO_HELP = "1; the labels are the versions of holdfast, Python and Spark on this node."


def build_info() -> Family:
    """Return the metric whose labels are versions."""
    versions = (__version__, platform.python_version(), metadata.version("pyspark"))
    family = GaugeMetricFamily(BUILD_INFO, BUILD_INFO_HELP, labels=("version", "python", "spark"))
    family.add_metric(versions, 1)
    return family


class AlertMetrics:
    """Counts alerts. Not thread-safe by itself."""

    def __init__(self, pipelines: Mapping[str, str]) -> None:
        """`pipelines` maps identifiers in the store to pipeline names."""
        self._pipelines = dict(pipelines)
        self._raised: Counter[str] = Counter(dict.fromkeys(KINDS, 0))
        self._active: set[tuple[str, Subject]] = set()
        self._shown = dict.fromkeys(
            (kind.name, pipeline)
            for kind in KINDS.values()
            for pipeline in (pipelines.values() if kind.of_pipeline else ("",))
        )

    def __call__(self, event: Event) -> None:
        """Count the event if it is about an alert."""
        if isinstance(event, AlertRaised):
            self._raised[event.kind] += 1
            self._active.add((event.kind, (event.pipeline, event.key)))
            self._shown[event.kind, self._name(event.pipeline)] = None
        elif isinstance(event, AlertCleared):
            self._active.discard((event.kind, (event.pipeline, event.key)))

    def collect(self) -> list[Family]:
        """Return the current value of both metrics; a value that was above 0 is shown as 0 later."""
        return [*self._totals(), *self._gauges()]

    def _totals(self) -> Iterator[Family]:
        family = CounterMetricFamily(ALERTS, ALERTS_HELP, labels=("kind",))
        for kind, number in self._raised.items():
            family.add_metric((kind,), number)
        yield family

    def _gauges(self) -> Iterator[Family]:
        family = GaugeMetricFamily(ALERT_ACTIVE, ALERT_ACTIVE_HELP, labels=("kind", "pipeline"))
        active = Counter((kind, self._name(pipeline)) for kind, (pipeline, _) in self._active)
        for labels in self._shown:
            family.add_metric(labels, active[labels])
        yield family

    def _name(self, pipeline: str | None) -> str:
        return self._pipelines.get(pipeline or "", "")


class LagMetrics:
    """The last measurement of each partition that is held. Not thread-safe by itself."""

    def __init__(self, pipelines: Mapping[str, str]) -> None:
        """`pipelines` maps identifiers in the store to pipeline names."""
        self._pipelines = dict(pipelines)
        self._measured: dict[Subject, LagMeasured] = {}

    def __call__(self, event: Event) -> None:
        """Note the event if it measures lag, or if a partition is no longer held."""
        pipeline, key = subject_of(event)
        if isinstance(event, LagMeasured):
            self._measured[pipeline, key] = event
        elif isinstance(event, LAGGING.ended_by):
            if key is None:
                self._measured.clear()  # the session has ended, and nothing is held any more
            else:
                self._measured.pop((pipeline, key), None)

    def collect(self) -> Iterator[Family]:
        """Yield the current value of both metrics."""
        records = GaugeMetricFamily(LAG_RECORDS, LAG_RECORDS_HELP, labels=("pipeline", "partition"))
        seconds = GaugeMetricFamily(LAG_SECONDS, LAG_SECONDS_HELP, labels=("pipeline", "partition"))
        for measured in self._measured.values():
            name = self._pipelines.get(measured.pipeline)
            for family, lag in ((records, measured.records), (seconds, measured.seconds)):
                if name is not None and lag is not None:
                    family.add_metric((name, measured.key), lag)
        yield from (records, seconds)


class StatusMetrics:
    """The last count of partitions by status. Not thread-safe by itself."""

    def __init__(self, pipelines: Mapping[str, str]) -> None:
        """`pipelines` maps identifiers in the store to pipeline names."""
        self._pipelines = dict(pipelines)
        self._counted: dict[str, Mapping[str, int]] = {}

    def __call__(self, event: Event) -> None:
        """Note the event if it counts partitions."""
        if isinstance(event, PartitionsCounted) and event.pipeline in self._pipelines:
            self._counted[self._pipelines[event.pipeline]] = event.statuses

    def collect(self) -> Iterator[Family]:
        """Yield the current value of the metric."""
        family = GaugeMetricFamily(PARTITIONS, PARTITIONS_HELP, labels=("pipeline", "status"))
        for pipeline, statuses in self._counted.items():
            for status, number in statuses.items():
                family.add_metric((pipeline, status), number)
        yield family


class BulkMetrics:
    """The last limit of each sink. Not thread-safe by itself."""

    def __init__(self, pipelines: Mapping[str, str]) -> None:
        """`pipelines` maps identifiers in the store to pipeline names."""
        self._pipelines = dict(pipelines)
        self._limits: dict[tuple[str, str], float] = {}

    def __call__(self, event: Event) -> None:
        """Note the limit if the event has one."""
        if isinstance(event, DocumentsIndexed) and event.pipeline in self._pipelines:
            self._limits[self._pipelines[event.pipeline], event.sink] = event.limit

    def collect(self) -> Iterator[Family]:
        """Yield the current value of the metric."""
        family = GaugeMetricFamily(BULK_LIMIT, BULK_LIMIT_HELP, labels=("pipeline", "sink"))
        for labels, limit in self._limits.items():
            family.add_metric(labels, limit)
        yield family
