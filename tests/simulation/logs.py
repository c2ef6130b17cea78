"""Logs that grow while the world runs, with transactions that stay open: what the finalizer looks at.

Producers are punctual: a record is at most `late_by` older than the moment at which it comes into the log.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from holdfast.errors import BatchError
from holdfast.flow.batch import Cut, Done, Wait
from holdfast.flow.source import ReportsExtents
from holdfast.leases.lease import Lease
from holdfast.sources.kafka.cluster import Cluster, LogEnd, TopicPartition
from holdfast.sources.kafka.config import KafkaConfig
from holdfast.sources.kafka.source import KafkaSource
from tests.simulation.host import Host
from tests.simulation.kernel import Kernel
from tests.simulation.oracle import EPOCH
from tests.simulation.source import Data, SimulatedSource, offset_of

TOPIC = "log"
CONFIG = KafkaConfig(bootstrap_servers="nowhere:1", topics=(TOPIC,))


@dataclass(frozen=True, slots=True)
class Record:
    """One record of a log. Times are virtual."""

    comes_at: float
    made_at: float
    stable_at: float
    """When the transaction that wrote it has ended; the same as `comes_at` without one."""


@dataclass(frozen=True, slots=True)
class Logs:
    """The logs of all partitions, as they will have been when the world ends."""

    records: Mapping[str, Sequence[Record]]
    period: float
    """Seconds that one folder holds."""

    def end(self, key: str, now: float) -> LogEnd:
        records = self.records[key]
        high = sum(record.comes_at <= now for record in records)
        stable = next((n for n, record in enumerate(records[:high]) if record.stable_at > now), high)
        return LogEnd(stable, high)

    def folder(self, key: str, item: int) -> str:
        return f"t={int((EPOCH + self.records[key][item].made_at) // self.period)}"

    def span(self, folder: str) -> tuple[float, float]:
        """Begin and end of a folder, in the store's time."""
        number = int(folder.removeprefix("t="))
        return number * self.period, (number + 1) * self.period

    def items_of(self, folder: str) -> list[tuple[str, int]]:
        """Partition and item of all records that belong to a folder, whether or not they have come."""
        everything = [(key, item) for key, records in self.records.items() for item in range(len(records))]
        return [(key, item) for key, item in everything if self.folder(key, item) == folder]

    @property
    def folders(self) -> set[str]:
        return {self.folder(key, n) for key, records in self.records.items() for n in range(len(records))}


def draw_logs(kernel: Kernel, keys: Iterable[str], most: int, ttl: float, until: float, late_by: float) -> Logs:
    """Logs of busy, idle and empty partitions. Some have transactions, of which some stay open for long."""
    dice = kernel.dice
    records: dict[str, Sequence[Record]] = {}
    for key in keys:
        idle_from = until * dice.choice((0.0, 0.3, 1.0, 1.0))
        comes = sorted(idle_from * dice.random() for _ in range(1 + dice.randrange(most)))
        open_for = ttl * 6 * dice.random() if dice.random() < 0.6 else 0.0
        records[key] = [
            Record(at, at - late_by * dice.random(), at + (open_for if dice.random() < 0.3 else 0.0)) for at in comes
        ]
    return Logs(records, period=ttl * dice.choice((0.5, 1.0, 2.0)))


class SimulatedCluster(Cluster):
    """What a node's Kafka source asks, answered from the logs."""

    def __init__(self, logs: Logs, host: Host) -> None:
        super().__init__({}, "read_committed")
        self._logs = logs
        self._host = host

    def ends(self, topic_partitions: Iterable[TopicPartition]) -> dict[TopicPartition, LogEnd]:
        now = self._host.kernel.now
        return {each: self._logs.end(f"p{each.partition}", now) for each in topic_partitions}

    def starts(self, topic_partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        return dict.fromkeys(topic_partitions, 0)


class LogSource(SimulatedSource, ReportsExtents):
    """Reads what is stable, waits for more, and tells how far the logs reach with the product's own Kafka source."""

    def __init__(self, logs: Logs, data: Data, host: Host, ttl: float, largest: int) -> None:
        super().__init__(data, host, ttl, largest)
        self._logs = logs
        self._kafka = KafkaSource(CONFIG, SimulatedCluster(logs, host))

    def _cut(self, lease: Lease) -> Cut | Wait | Done | BatchError:
        start = offset_of(lease.progress.position)
        stable = self._logs.end(lease.key, self._host.kernel.now).stable
        if start >= stable:
            return Wait(0.2 * self._ttl)
        planned = super()._cut(lease)
        if not isinstance(planned, Cut):
            return planned
        return Cut(planned.start, self.position(min(stable, offset_of(planned.end))))

    def extents(self, leases: Sequence[Lease]) -> list[tuple[int, int] | None]:
        self._answers()
        spec = {"topic": TOPIC, "start": "earliest"}
        return self._kafka.extents([replace(row, spec={**spec, "partition": int(row.key[1:])}) for row in leases])
