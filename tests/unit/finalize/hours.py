"""A topic whose records tell their hour, through the real loop, files sink and finalizer; only Spark is left out."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa

from holdfast.buckets.bucket import Bucket
from holdfast.flow.batch import Cut, Limits, Name, Plan, Wait
from holdfast.flow.engine import Staged
from holdfast.flow.names import Layout
from holdfast.flow.source import ReportsExtents, Source
from holdfast.flow.staging import staged_batch
from holdfast.formats.jsonl import Jsonl
from holdfast.leases.lease import Counts, Lease, Partition
from holdfast.sinks.files.config import FinalizeConfig
from holdfast.sinks.files.finalizing import FilesFinalizing
from holdfast.sinks.files.sink import FilesSink
from holdfast.sinks.files.staging import FilesStager
from tests.unit.flow.rig import Fleet, TestNode

HOUR = 3600.0
TOPIC = "orders"


def output_folder(hour: int) -> str:
    """The place of that hour of the year 1970."""
    return f"dt=1970-01-{hour // 24 + 1:02}/hr={hour % 24:02}"


class Hours(Source, ReportsExtents):
    """Partitions of one topic; the records of each are the hours that the test has brought, one after the other."""

    lives_long = True
    rediscover_after = 600.0

    def __init__(self, labels: Sequence[str]) -> None:
        self.labels = labels
        self.records: defaultdict[str, list[int]] = defaultdict(list)
        self.unstable: dict[str, int] = {}
        """By partition the offset from which on nothing can be read yet: a transaction is open."""

    def discover(self, state: dict[str, Any]) -> Iterable[Partition]:
        return [Partition(f"{TOPIC}|{label}", group=TOPIC, spec={"label": label}) for label in self.labels]

    def name(self, lease: Lease) -> Name:
        return Name(TOPIC, lease.spec["label"])

    def plan(self, leases: Sequence[Lease], limits: Limits) -> list[Plan]:
        return [self._cut(lease) for lease in leases]

    def _cut(self, lease: Lease) -> Plan:
        label = lease.spec["label"]
        start, end = _offset(lease), self.unstable.get(label, len(self.records[label]))
        return Cut({"offset": start}, {"offset": end}) if start < end else Wait(0.0)

    def extents(self, leases: Sequence[Lease]) -> list[tuple[int, int] | None]:
        return [(_offset(lease), len(self.records[lease.spec["label"]])) for lease in leases]

    def read(self, spark: Any, batches: Any, columns: Any = None) -> Any:
        raise NotImplementedError


def _offset(lease: Lease) -> int:
    return int((lease.progress.position or {"offset": 0})["offset"])


class Archive:
    """The topic, and nodes that archive it. The clock stands at the last hour of January 1970."""

    def __init__(self, labels: Sequence[str] = ("0", "1"), max_ahead: float | None = 86400.0, **finalize: Any) -> None:
        self.fleet = Fleet({})
        self.fleet.clock.time = 31 * 24 * HOUR
        self.source = Hours(labels)
        self.fleet.source = self.source  # type: ignore[assignment]
        self.bucket = self.fleet.buckets["files"]
        self._max_ahead = max_ahead
        self._finalize = {"lateness": "1h", "idle_after": "10d", "interval": "1m"} | finalize

    def node(self, name: str = "a") -> TestNode:
        # Most records of some topics here are dead letters.
        return TestNode(self.fleet, name, sinks=self._sink, tolerance=None)

    def _sink(self, name: str, bucket: Bucket) -> FilesSink:
        config = FinalizeConfig.model_validate(self._finalize)
        finalizing = FilesFinalizing(name, bucket, "/lake", Layout(), config)
        return FilesSink(name, bucket, FilesStager(bucket, Jsonl()), finalizing, max_ahead=self._max_ahead)

    def archive(self, node: TestNode, **hours: Sequence[int]) -> None:
        """Let partitions `p0`, `p1`… have records of these hours, and the node land them."""
        for label, brought in hours.items():
            self.source.records[label.removeprefix("p")] += brought
        node.turn(2)
        self.stage(node)
        node.turn(2)

    def stage(self, node: TestNode) -> None:
        """Do what a Spark job does for the batches that are out, and report it."""
        for report in self.staged(node):
            node.engine.report(report)

    def staged(self, node: TestNode) -> list[Staged]:
        """The same, but for the report."""
        sink: Any = node.loop._publisher._sinks["files"]
        reports = []
        for batch in list(node.engine.out.values()):
            staging, staged = sink.stager_for([batch]).begin(), staged_batch(batch)
            start, end = batch.cut.start["offset"], batch.cut.end["offset"]
            dead = 0
            for offset in range(start, end):
                hour = self.source.records[batch.name.label][offset]
                rows = pa.RecordBatch.from_pydict({"value": [json.dumps({"hour": hour})]})
                dead += staging.write(staged, pa.array([offset], pa.int64()), rows, output_folder(hour))
            receipts = {"files": sink.receipt([staging.finish(staged)])}
            counts = Counts(end - start, end - start - dead, 0, dead)
            reports.append(Staged(batch.id, batch.cut.end, last=False, receipts=receipts, counts=counts))
        return reports

    def look(self, *nodes: TestNode) -> None:
        """Let an interval pass and the nodes look."""
        self.pass_time(100, *nodes)
        for node in nodes:
            node.turn()

    def pass_time(self, seconds: float, *alive: TestNode) -> None:
        """The clock goes on while these nodes renew their sessions."""
        for _ in range(10):
            self.fleet.clock.time += seconds / 10
            for node in alive:
                node.session.heartbeat()

    def keys(self, beginning: str = "") -> list[str]:
        """What is visible, but for manifests, without the numbers of files."""
        shown = [key for key in self.bucket.visible if key.startswith(beginning) and "/commits/" not in key]
        return sorted({key.rpartition("/")[0] + ("/_SUCCESS" if key.endswith("_SUCCESS") else "") for key in shown})

    def successes(self) -> list[str]:
        return [key.removeprefix(f"{TOPIC}/").removesuffix("/_SUCCESS") for key in self.keys() if "_SUCCESS" in key]
