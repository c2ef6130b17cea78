"""How far the partitions that this node holds are behind their source, for Prometheus."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from prometheus_client import Metric as Family
from prometheus_client.core import GaugeMetricFamily

from holdfast.events import Event, LagMeasured
from holdfast.observe.alert_kinds import LAGGING, Subject, subject_of

LAG_RECORDS = "holdfast_lag_records"
LAG_RECORDS_HELP = "Records that the source has and that are not yet read, of each partition that this node holds."
LAG_SECONDS = "holdfast_lag_seconds"
LAG_SECONDS_HELP = "Age of the oldest of them; 0 if there is none, absent if the source cannot tell."


class LagMetrics:
    """The last measure of each partition, until it is held no more. Not safe for several threads by itself."""

    def __init__(self, pipelines: Mapping[str, str]) -> None:
        """`pipelines` gives each pipeline's name by its identifier in the store."""
        self._pipelines = dict(pipelines)
        self._measured: dict[Subject, LagMeasured] = {}

    def __call__(self, event: Event) -> None:
        """Note the event if it is of a lag, or of a partition that others look after now."""
        pipeline, key = subject_of(event)
        if isinstance(event, LagMeasured):
            self._measured[pipeline, key] = event
        elif isinstance(event, LAGGING.ended_by):
            if key is None:
                self._measured.clear()  # the session is over, and everything is somebody else's
            else:
                self._measured.pop((pipeline, key), None)

    def collect(self) -> Iterator[Family]:
        """Both metrics as they are now."""
        records = GaugeMetricFamily(LAG_RECORDS, LAG_RECORDS_HELP, labels=("pipeline", "partition"))
        seconds = GaugeMetricFamily(LAG_SECONDS, LAG_SECONDS_HELP, labels=("pipeline", "partition"))
        for measured in self._measured.values():
            name = self._pipelines.get(measured.pipeline)
            for family, lag in ((records, measured.records), (seconds, measured.seconds)):
                if name is not None and lag is not None:
                    family.add_metric((name, measured.key), lag)
        yield from (records, seconds)
