"""Alerts as Prometheus sees them: how many were raised, and which are not over yet."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from prometheus_client import Metric as Family
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from holdfast.events import AlertCleared, AlertRaised, Event
from holdfast.observe.alert_kinds import KINDS, Subject

ALERTS = "holdfast_alerts_total"
ALERTS_HELP = "Alerts that this node has raised, also again; each kind is there from the start."
ALERT_ACTIVE = "holdfast_alert_active"
ALERT_ACTIVE_HELP = (
    "Alerts that this node has raised and not cleared; pipeline is empty where no single one is concerned."
)


class AlertMetrics:
    """Counts alerts. Not safe for several threads by itself."""

    def __init__(self, pipelines: Mapping[str, str]) -> None:
        """`pipelines` gives each pipeline's name by its identifier in the store."""
        self._pipelines = dict(pipelines)
        self._raised: Counter[str] = Counter(dict.fromkeys(KINDS, 0))
        self._active: set[tuple[str, Subject]] = set()
        self._shown = dict.fromkeys(
            (kind.name, pipeline)
            for kind in KINDS.values()
            for pipeline in (pipelines.values() if kind.of_pipeline else ("",))
        )

    def __call__(self, event: Event) -> None:
        """Count the event if it is an alert's."""
        if isinstance(event, AlertRaised):
            self._raised[event.kind] += 1
            self._active.add((event.kind, (event.pipeline, event.key)))
            self._shown[event.kind, self._name(event.pipeline)] = None
        elif isinstance(event, AlertCleared):
            self._active.discard((event.kind, (event.pipeline, event.key)))

    def collect(self) -> list[Family]:
        """Both metrics as they are now; what was above 0 once is shown as 0 later."""
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
