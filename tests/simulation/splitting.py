"""A world whose partitions are split while they are worked on, so that nodes without work help the others.

What must hold: every item is committed once, by the partition that it belonged to or by one that was split off, and
when all partitions are complete nothing is missing, whoever died between the steps of a split.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from holdfast.errors import BatchError
from holdfast.flow.batch import Batch, Cut, Done, Name, Wait
from holdfast.flow.engine import Staged
from holdfast.flow.sink import Publication, PublishResult, Sink, VisibleWhenStaged
from holdfast.flow.source import SplitsPartitions
from holdfast.flow.staging import Stager
from holdfast.leases.lease import FINISHED, Json, Lease, Partition, Status
from holdfast.leases.split import Split
from tests.simulation.engine import SimulatedEngine
from tests.simulation.fleet import Fleet
from tests.simulation.host import Host
from tests.simulation.oracle import Oracle
from tests.simulation.source import Data, SimulatedSource, offset_of

INDEX = "index"


class SplitOracle(Oracle):
    """Keeps its own book of who has committed which item of which partition of the beginning."""

    def __init__(self, fleet: SplitFleet) -> None:
        super().__init__(fleet.kernel)
        self._fleet = fleet
        self._committed: dict[tuple[str, int], str] = {}

    def committed(self, before: Lease, row: Lease) -> None:
        start = _start(before)
        for item in range(start, offset_of(row.progress.position)):
            other = self._committed.setdefault((_root(row.key), item), row.key)
            if other != row.key:
                self.fail(f"item {item} of {_root(row.key)} is committed by {other} and by {row.key}")

    def judge_end(self) -> None:
        for key, number in self._fleet.data.items.items():
            rows = [row for row in self.rows.values() if _root(row.key) == key]
            missing = [item for item in range(number) if (key, item) not in self._committed]
            if missing and rows and all(row.status is Status.COMPLETED for row in rows):
                self.fail(f"{key}: all of it is complete, and {missing} were never committed")


def _root(key: str) -> str:
    return key.partition("/")[0]


def _start(lease: Lease) -> int:
    position = lease.progress.position
    return int(lease.spec["from"]) if position is None else offset_of(position)


class SplittingSource(SimulatedSource, SplitsPartitions):
    """Partitions are ranges of items, which are split in the middle of what is left."""

    def discover(self, state: dict[str, Any]) -> Iterator[Partition]:
        self._answers()
        for key, number in self._data.items.items():
            yield Partition(key, spec={"from": 0, "to": number}, estimated_count=number, work_units=number)

    def name(self, lease: Lease) -> Name:
        return Name("stream", lease.key.replace("/", "-"))

    def split(self, lease: Lease) -> Split | None:
        self._answers()
        start, end = _start(lease), int(lease.spec["to"])
        if end - start < 2:
            return None
        middle = start + (end - start) // 2
        child = Partition("", spec={"from": middle, "to": end}, estimated_count=end - middle, work_units=end - middle)
        return Split({**lease.spec, "to": middle}, middle - int(lease.spec["from"]), [child])

    def _cut(self, lease: Lease) -> Cut | Wait | Done | BatchError:
        kernel, start, number = self._host.kernel, _start(lease), int(lease.spec["to"])
        if start >= number:
            return Done()
        if self._host.faults.happens(kernel.dice, "source_waits", 0.4):
            return Wait(self._ttl * kernel.random())
        end = min(number, start + 1 + kernel.below(self._largest))
        return Cut(self.position(start), self.position(end), last=end == number and kernel.random() < 0.8)


class SplitSink(Sink, VisibleWhenStaged):
    """What is staged is visible at once, as in an index of documents."""

    name = INDEX

    def stager(self) -> Stager:
        raise NotImplementedError("simulated executors write documents without a connection")

    def receipt(self, parts: Sequence[Json]) -> Json:
        raise NotImplementedError("the simulated engine makes receipts")

    def is_visible(self, receipt: Json) -> bool:
        return True

    def publish(self, publications: Sequence[Publication]) -> list[PublishResult]:
        return [None] * len(publications)


class SplitEngine(SimulatedEngine):
    def _stage(self, batch: Batch) -> Staged:
        return replace(super()._stage(batch), receipts={INDEX: {}})


class SplitFleet(Fleet):
    """Nodes of a pipeline whose partitions are split."""

    engine_type = SplitEngine

    def make_oracle(self) -> Oracle:
        self.data = self.draw_data()
        return SplitOracle(self)

    def draw_data(self) -> Data:
        dice = self.kernel.dice
        items = {f"p{index}": 1 + dice.randrange(self.scenario.items) for index in range(self.scenario.partitions)}
        return Data(items, dict.fromkeys(items, 0.0))

    def make_source(self, host: Host) -> SimulatedSource:
        return SplittingSource(self.data, host, self.knobs.ttl, self.knobs.largest_cut)

    def sinks(self, host: Host) -> dict[str, Sink]:
        return {INDEX: SplitSink()}

    @property
    def work_is_done(self) -> bool:
        rows = self._rows()
        return len(rows) >= len(self.data.items) and all(row.status in FINISHED for row in rows)
