"""How many requests a task may have under way to a search cluster, for Prometheus."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from prometheus_client import Metric as Family
from prometheus_client.core import GaugeMetricFamily

from holdfast.events import DocumentsIndexed, Event

BULK_LIMIT = "holdfast_bulk_limit"
BULK_LIMIT_HELP = "Bulk requests that a task may have under way: raised by good answers, halved by rejections."


class BulkMetrics:
    """The last limit of each sink. Not safe for several threads by itself."""

    def __init__(self, pipelines: Mapping[str, str]) -> None:
        """`pipelines` gives each pipeline's name by its identifier in the store."""
        self._pipelines = dict(pipelines)
        self._limits: dict[tuple[str, str], float] = {}

    def __call__(self, event: Event) -> None:
        """Note the limit, if the event tells one."""
        if isinstance(event, DocumentsIndexed) and event.pipeline in self._pipelines:
            self._limits[self._pipelines[event.pipeline], event.sink] = event.limit

    def collect(self) -> Iterator[Family]:
        """The metric as it is now."""
        family = GaugeMetricFamily(BULK_LIMIT, BULK_LIMIT_HELP, labels=("pipeline", "sink"))
        for labels, limit in self._limits.items():
            family.add_metric(labels, limit)
        yield family
