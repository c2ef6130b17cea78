"""The simulated source: partitions of numbered items, cut at random places."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from holdfast.errors import BatchError, SourceUnavailable
from holdfast.flow.batch import Batch, Cut, Done, Limits, Name, Wait
from holdfast.flow.source import OffsetPositions, Source
from holdfast.leases.lease import Json, Lease, Partition
from tests.simulation.host import Host


@dataclass(frozen=True, slots=True)
class Data:
    """What there is to read, the same for all nodes."""

    items: Mapping[str, int]
    """Number of items by partition; item n of a partition stands at position n."""
    appears_at: Mapping[str, float]
    """When a partition can be found for the first time."""
    poison: Mapping[str, int] = field(default_factory=dict)
    """The item of a partition that nobody can process."""
    rediscover_after: float | None = None
    lives_long: bool = False
    """Whether nodes share the partitions fairly, and hand them off to each other, instead of pulling them."""
    discovered: bool = False
    """Whether the partitions were found before the world begins."""
    lost: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """Items [from, to) of a partition that the source has lost before anybody read them."""
    parents: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Partitions that must be complete before a partition is taken."""

    def lost_between(self, key: str, start: int, end: int) -> tuple[tuple[int, int], ...]:
        """What of the items from start to end is lost, as a plan tells it."""
        first, last = self.lost.get(key, (0, 0))
        lost = (max(first, start), min(last, end))
        return (lost,) if lost[0] < lost[1] else ()

    def end_around_loss(self, key: str, start: int, end: int) -> int:
        """Where a batch ends that was to end there: as in Kafka, what is lost stands at the start of a batch."""
        first, last = self.lost.get(key, (0, 0))
        return min(end, first) if start < first else max(end, last) if start < last else end

    def left_between(self, key: str, start: int, end: int) -> list[int]:
        """The items from start to end that can be read."""
        first, last = self.lost.get(key, (0, 0))
        return [item for item in range(start, end) if not first <= item < last]


def offset_of(position: Json) -> int:
    """The item that a position names; the first one for a partition that was never read."""
    return 0 if position is None else int(position["offset"])


class SimulatedSource(Source, OffsetPositions):
    """Chooses every cut anew: two tries of one range need not be alike."""

    def __init__(self, data: Data, host: Host, ttl: float, largest: int) -> None:
        self._data = data
        self._host = host
        self._ttl = ttl
        self._largest = largest
        self.rediscover_after = data.rediscover_after
        self.lives_long = data.lives_long

    def discover(self, state: dict[str, Any]) -> Iterator[Partition]:
        self._answers()
        kernel = self._host.kernel
        for key in self._data.items:
            if self._data.appears_at[key] <= kernel.now:
                yield Partition(key, after=self._data.parents.get(key, ()))
                if kernel.random() < 0.2:
                    self._answers()
        state["scans"] = state.get("scans", 0) + 1

    def name(self, lease: Lease) -> Name:
        return Name("stream", lease.key)

    def plan(self, leases: Sequence[Lease], limits: Limits) -> list[Cut | Wait | Done | BatchError]:
        self._answers()
        return [self._cut(lease) for lease in leases]

    def read(self, spark: Any, batches: Sequence[Batch], columns: frozenset[str] | None = None) -> Any:
        raise NotImplementedError("the simulated engine needs no DataFrame")

    def _cut(self, lease: Lease) -> Cut | Wait | Done | BatchError:
        kernel, faults = self._host.kernel, self._host.faults
        start = offset_of(lease.progress.position)
        number = self._data.items[lease.key]
        if start == self._data.poison.get(lease.key) and kernel.random() < 0.3:
            faults.strike("poison")
            return BatchError("poison in the plan")
        if start >= number:
            return Done()
        if faults.happens(kernel.dice, "source_waits", 0.4):
            return Wait(self._ttl * kernel.random())
        end = min(number, start + 1 + kernel.below(self._largest))
        end = self._data.end_around_loss(lease.key, start, end)
        gaps = self._data.lost_between(lease.key, start, end)
        last = end == number and kernel.random() < 0.8
        return Cut(self.position(start), self.position(end), last=last, gaps=gaps)

    def _answers(self) -> None:
        host = self._host
        host.sleep(0.01 * host.kernel.random())
        if host.faults.happens(host.kernel.dice, "source_unavailable", 0.5):
            host.kernel.note(host.name, "source", "unavailable")
            raise SourceUnavailable("the source does not answer")
