"""Long-lived batches: a handler that acknowledges records of a stream out of order, until it is drained.

It stands for functions over shards. The engine delivers within a window and reports how far the acknowledged prefix
reaches and which ranges beyond it are acknowledged; the loop commits that as it does for files, without receipts.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from holdfast.errors import BatchError
from holdfast.flow.batch import Batch, Cut, Done, Limits, Name, Wait
from holdfast.flow.engine import Advanced, Engine, Failed, Report, Staged
from holdfast.functions.acks import ShardAcks
from holdfast.leases.lease import Counts, Lease, Ranges
from tests.simulation.engine import FailureBudget, Reports
from tests.simulation.host import Host
from tests.simulation.source import Data, SimulatedSource


class StreamSource(SimulatedSource):
    """Plans one batch per partition, which goes on until the stream's end."""

    def plan(self, leases: Sequence[Lease], limits: Limits) -> list[Cut | Wait | Done | BatchError]:
        self._answers()
        return [self._rest(lease) for lease in leases]

    def _rest(self, lease: Lease) -> Cut | Done:
        start, number = lease.progress.position or 0, self._data.items[lease.key]
        return Cut(start, None) if start < number else Done()


class ItemPositions:
    """Positions of simulated partitions: the number of the next item."""

    def position_at(self, offset: int) -> int:
        return offset

    def position_after(self, offset: int) -> int:
        return offset + 1


class HandlerOracle(Protocol):
    """Who judges what handlers are given and say."""

    def fail(self, message: str) -> None: ...

    def delivered(self, lease: Lease, item: int) -> None:
        """A handler is given this record under this lease, and not because a commit is staged a second time."""
        ...

    def acknowledged(self, key: str, item: int) -> None:
        """A handler has said that it is done with this record."""
        ...

    def acknowledged_elsewhere(self, key: str, item: int) -> None:
        """A handler has said so on a node that does not have the partition."""
        ...


@dataclass(slots=True)
class Shard:
    """One batch: the acks of its records, and the position that the driver knows."""

    batch: Batch
    start: int
    acks: ShardAcks
    next_item: int
    draining: bool = False
    over: bool = False
    cancelled: bool = False
    reported_until: float = 0.0
    """When the last report arrives: reports of a batch never overtake each other."""
    reported: int = 0
    """The position of the last report."""
    telling: deque[Report] = field(default_factory=deque)
    """Reports on their way."""

    @property
    def position(self) -> int:
        return int(self.acks.position(ItemPositions(), self.start))


class StreamEngine(Engine):
    """Handlers of one driver. They die with it, or a little later."""

    endless = True

    def __init__(
        self, host: Host, data: Data, budget: FailureBudget, oracle: HandlerOracle, *, ttl: float, window: int
    ) -> None:
        self._host = host
        self._kernel = host.kernel
        self._faults = host.faults
        self._data = data
        self._budget = budget
        self._oracle = oracle
        self._ttl = ttl
        self._window = window
        self._shards: dict[str, Shard] = {}
        self._reports = Reports(host)
        self._foreign: dict[Name, set[int]] = {}

    def works_on(self, lease: Lease) -> bool:
        """Whether records of this lease are in a handler's hands."""
        return any(
            shard.batch.lease.key == lease.key and shard.batch.lease.token == lease.token
            for shard in self._shards.values()
            if not shard.over and not shard.cancelled
        )

    def _has(self, key: str) -> bool:
        shards = [shard for shard in self._shards.values() if shard.batch.lease.key == key]
        return any(not shard.over and not shard.cancelled for shard in shards)

    def room(self) -> int:
        self._host.touch()
        return 1

    def submit(self, pipeline: str, batches: Sequence[Batch]) -> None:
        self._host.touch()
        for batch in batches:
            lease = batch.lease
            if self._has(lease.key):
                self._oracle.fail(f"{lease.key}: two handlers of {self._host.name} have it at once")
            start = self.start_of(batch)
            shard = Shard(batch, start, ShardAcks(lease.progress.acknowledged, window=self._window), start)
            self._shards[batch.id] = shard
            shard.reported = start
            self._kernel.note(self._host.name, f"engine.submit {lease.key}", f"from {start} as {batch.id}")
            self._kernel.after(0.05 * self._ttl * self._kernel.random(), self._deliver, shard)

    def poll(self, timeout: float) -> list[Report]:
        return self._reports.poll(timeout)

    def cancel(self, batch_ids: Sequence[str]) -> None:
        self._host.touch()
        for batch_id in batch_ids:
            if (shard := self._shards.get(batch_id)) is not None:
                shard.cancelled = True
                shard.over = not self._faults.happens(self._kernel.dice, "report_after_cancel", 1.0)

    def drain(self, batch_ids: Sequence[str]) -> None:
        self._host.touch()
        for batch_id in batch_ids:
            if (shard := self._shards.get(batch_id)) is not None:
                shard.draining = True
                self._kernel.after(0.0, self._finish_if_through, shard)

    # --- the handler's side ---------------------------------------------------------------------------------------

    def _deliver(self, shard: Shard) -> None:
        """Hand out as many records as the window allows."""
        if shard.over or self._host.dead:
            return
        end = self.end_of(shard)
        while not shard.draining and shard.next_item < end and not shard.acks.full:
            item = shard.next_item
            shard.next_item += 1
            if not shard.acks.deliver(item):
                continue
            if shard.batch.restages is None:
                self._oracle.delivered(shard.batch.lease, item)
            self._kernel.after(0.3 * self._ttl * self._kernel.random() ** 2, self._handled, (shard, item))
        self._finish_if_through(shard)

    def _handled(self, delivered: tuple[Shard, int]) -> None:
        shard, item = delivered
        if self._host.dead:
            return
        if shard.over or self._faults.happens(self._kernel.dice, "ack_elsewhere", 0.3):
            self._acknowledge_elsewhere(shard, item)
            return
        if self._budget.fails(self._kernel.dice, "batch_failed", shard.batch.lease.key, self.tried_at(shard)):
            shard.over = True
            self.failed(shard)
            return
        if self._faults.happens(self._kernel.dice, "ack_lost", 0.3):
            # The handler's word does not come through; it says it again later.
            self._kernel.after(0.3 * self._ttl * self._kernel.random(), self._handled, delivered)
            return
        self._oracle.acknowledged(shard.batch.lease.key, item)
        shard.acks.ack(item)
        self.progressed(shard)
        self._deliver(shard)

    def _acknowledge_elsewhere(self, shard: Shard, item: int) -> None:
        """The handler has kept the record, and acknowledges it where the partition is not, or not any more."""
        if self._faults["ack_elsewhere"]:
            self._oracle.acknowledged_elsewhere(shard.batch.lease.key, item)
            self._foreign.setdefault(shard.batch.name, set()).add(item)

    def acknowledge(self, batch_id: str, ranges: Ranges) -> None:
        self._host.touch()
        shard = self._shards.get(batch_id)
        if shard is None or shard.over:
            return
        taken = tuple((start, end) for start, end in ranges if all(map(shard.acks.ack, range(start, end))))
        self.tell(shard, Advanced(shard.batch.id, shard.position, shard.acks.acked, forwarded=taken))
        self._deliver(shard)

    def take_foreign_acks(self) -> Mapping[Name, Collection[int]]:
        self._host.touch()
        taken, self._foreign = self._foreign, {}
        return taken

    def _finish_if_through(self, shard: Shard) -> None:
        through = shard.draining or shard.position == self.end_of(shard)
        if not shard.over and shard.acks.head is None and through:
            self.ended(shard)

    # --- what is reported -----------------------------------------------------------------------------------------

    def start_of(self, batch: Batch) -> int:
        """The first item of the batch."""
        return batch.lease.progress.position or 0

    def tried_at(self, shard: Shard) -> int:
        """The position at which an error counts as an attempt."""
        return shard.position

    def end_of(self, shard: Shard) -> int:
        """Where the batch ends, if it is not drained before."""
        return self._data.items[shard.batch.lease.key]

    def progressed(self, shard: Shard) -> None:
        """A record was acknowledged."""
        self.tell(shard, Advanced(shard.batch.id, shard.position, shard.acks.acked, Counts(1, 1)))

    def failed(self, shard: Shard) -> None:
        """The handler has failed for the last time."""
        if shard.position != shard.reported:
            # Records at its beginning were acknowledged elsewhere: they are not tried once more.
            self.tell(shard, Advanced(shard.batch.id, shard.position, shard.acks.acked))
        self.tell(shard, Failed(shard.batch.id, "the handler has failed"))

    def ended(self, shard: Shard) -> None:
        """Every record that was handed out is acknowledged, and no more follows."""
        shard.over = True
        last = shard.position == self.end_of(shard)
        self.tell(shard, Staged(shard.batch.id, shard.position, last, {}, acked=shard.acks.acked))

    def tell(self, shard: Shard, report: Report) -> None:
        kernel = self._kernel
        arrives = kernel.now
        if self._faults.happens(kernel.dice, "report_late", 0.2):
            arrives += 0.5 * self._ttl * kernel.random()
        shard.reported_until = max(shard.reported_until, arrives)
        shard.telling.append(report)
        shard.reported = shard.position
        kernel.after(shard.reported_until - kernel.now, self._arrive, shard)

    def _arrive(self, shard: Shard) -> None:
        # Not the report that was meant to come now: rounding may turn two around that are due at the same time.
        report = shard.telling.popleft()
        if not (shard.cancelled and shard.over):
            self._reports.deliver(report)
