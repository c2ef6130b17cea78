"""How long work takes, as a histogram for Prometheus: planning, batches, commits, publishing and handlers."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping

from prometheus_client import Metric as Family
from prometheus_client.core import HistogramMetricFamily

from holdfast.events import BatchCommitted, Event, HandlerCalled, StepFinished
from holdfast.events.flow import DURATION_BOUNDS

DURATION = "holdfast_duration_seconds"
DURATION_HELP = (
    "How long each took: plan (a call of the source), batch (from sending it to Spark until it was committed), commit "
    "(a write of several leases), publish (several commits), handler (a record, averaged over a turn of a worker)."
)
BATCH, HANDLER = "batch", "handler"
STEPS = ("plan", BATCH, "commit", "publish", HANDLER)
_ENDS = [*(repr(bound) for bound in DURATION_BOUNDS), "+Inf"]


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
