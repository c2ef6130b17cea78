"""The simulated engine: executors that stage batches in the bucket, outlive their driver, and report when they like."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from holdfast.flow import batch as flow_batch
from holdfast.flow import names
from holdfast.flow.batch import Batch, TaskEnd
from holdfast.flow.engine import Engine, Failed, Report, Staged
from holdfast.leases.lease import Counts, Json, Lease
from tests.simulation.bucket import BucketServer, DataFile
from tests.simulation.faults import Faults
from tests.simulation.host import Host
from tests.simulation.kernel import Process
from tests.simulation.source import Data, offset_of

SHELVES = 3
"""Most files into which the items of a batch are spread."""


@dataclass(slots=True)
class Work:
    """One batch on its way through the executors."""

    batch: Batch
    round_size: list[int]
    cancelled: bool = False
    reported: bool = False


class Reports:
    """What has come in for one driver, and the driver's thread that waits for it."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._ready: list[Report] = []
        self._poller: Process | None = None

    def poll(self, timeout: float) -> list[Report]:
        host = self._host
        if self._ready:
            host.touch()
        else:
            self._poller = host.current
            host.wait(timeout)
            self._poller = None
        ready, self._ready = self._ready, []
        return ready

    def deliver(self, report: Report) -> None:
        if self._host.dead:
            return
        self._host.kernel.note(self._host.name, "engine reports", report)
        self._ready.append(report)
        if self._poller is not None:
            self._poller.wake_soon()


class FailureBudget:
    """How often batches of a partition may fail for no fault of its own: never often enough to use up its retries."""

    def __init__(self, faults: Faults, retries: int) -> None:
        self._faults = faults
        self._retries = retries
        self._spent: dict[tuple[str, int], int] = {}

    def fails(self, dice: random.Random, kind: str, key: str, position: int) -> bool:
        """Whether a batch fails now in that way. The position counts because attempts begin anew when it moves."""
        at = (key, position)
        spent = self._spent.get(at, 0)
        if spent >= self._retries or not self._faults.happens(dice, kind, 0.5):
            return False
        self._spent[at] = spent + 1
        return True


class SimulatedEngine(Engine):
    """Executors of one driver."""

    def __init__(
        self,
        host: Host,
        buckets: Mapping[str, BucketServer],
        poison: Mapping[str, int],
        budget: FailureBudget,
        *,
        ttl: float,
        rounds: int,
        fail: Callable[[str], None],
        parser: str = "",
        losing: Data | None = None,
        shelves: int = SHELVES,
    ) -> None:
        """`losing`: what the source has lost; a batch that is made again may end elsewhere then."""
        self._host = host
        self._kernel = host.kernel
        self._faults = host.faults
        self.buckets = buckets
        self._poison = poison
        self._budget = budget
        self._ttl = ttl
        self._rounds = rounds
        self._parser = parser
        self._losing = losing
        self._fail = fail
        self._shelves = shelves
        self._open_rounds = 0
        self._works: dict[str, Work] = {}
        self._reports = Reports(host)

    def works_on(self, lease: Lease) -> bool:
        """Whether a batch under this lease is out and was not cancelled."""
        return any(
            work.batch.lease.key == lease.key and work.batch.lease.token == lease.token
            for work in self._works.values()
            if not work.cancelled and not work.reported
        )

    def _is_out(self, work: Work, key: str) -> bool:
        return work.batch.lease.key == key and not work.cancelled and not work.reported

    def room(self) -> int:
        self._host.touch()
        return self._rounds - self._open_rounds

    def submit(self, pipeline: str, batches: Sequence[Batch]) -> None:
        self._host.touch()
        self._open_rounds += 1
        size = [len(batches)]
        for batch in batches:
            work = Work(batch, size)
            if any(self._is_out(other, batch.lease.key) for other in self._works.values()):
                self._fail(f"{batch.lease.key}: two batches of {self._host.name} are out at once")
            self._works[batch.id] = work
            cut = batch.cut
            self._kernel.note(self._host.name, f"engine.submit {batch.lease.key}", f"{cut} as {batch.id}")
            self._kernel.after(self._duration(), self._execute, work)
        self._host.risk()

    def poll(self, timeout: float) -> list[Report]:
        return self._reports.poll(timeout)

    def cancel(self, batch_ids: Sequence[str]) -> None:
        self._host.touch()
        for batch_id in batch_ids:
            work = self._works.get(batch_id)
            if work is not None and not work.cancelled:
                work.cancelled = True
                if not work.reported:
                    self._leave_round(work)

    def drain(self, batch_ids: Sequence[str]) -> None:
        self._host.touch()

    # --- executors, which know no driver ----------------------------------------------------------------------------

    def _duration(self) -> float:
        faults, dice = self._faults, self._kernel.dice
        slow = faults.happens(dice, "batch_slow", 0.5)
        # A driver is hardly ever gone while its executors work, unless they take their time.
        outlives = (faults["executor_outlives"] or faults["report_after_cancel"]) and dice.random() < 0.4
        return self._ttl * dice.random() * (2.0 if slow or outlives else 0.15)

    def _execute(self, work: Work) -> None:
        kernel, faults = self._kernel, self._faults
        if (work.cancelled or self._host.dead) and not self._goes_on():
            return
        failed = self._failure(work.batch)
        if failed == "hangs":
            return
        report = failed if isinstance(failed, Failed) else self._stage(work.batch)
        delay = 0.0
        if faults.happens(kernel.dice, "report_late", 0.3):
            delay = self._ttl * 3 * kernel.random() ** 2
        kernel.after(delay, self._report, (work, report))

    def _goes_on(self) -> bool:
        """Whether an executor works on for a driver that is gone, or wants it no more."""
        return self._faults["report_after_cancel"] > 0 or self._faults.happens(
            self._kernel.dice, "executor_outlives", 0.9
        )

    def _report(self, reported: tuple[Work, Report]) -> None:
        work, report = reported
        if work.cancelled and not self._faults.happens(self._kernel.dice, "report_after_cancel", 1.0):
            return
        if not work.cancelled and not work.reported:
            self._leave_round(work)
        work.reported = True
        self._reports.deliver(report)

    def _leave_round(self, work: Work) -> None:
        work.round_size[0] -= 1
        if work.round_size[0] == 0:
            self._open_rounds -= 1

    def _failure(self, batch: Batch) -> Failed | str | None:
        dice, faults, key = self._kernel.dice, self._faults, batch.lease.key
        if offset_of(batch.cut.start) <= self._poison.get(key, -1) < offset_of(batch.cut.end):
            faults.strike("poison")
            return Failed(batch.id, "poison")
        if any(bucket.down_until > self._kernel.now for bucket in self.buckets.values()):
            return Failed(batch.id, "the bucket is down", unavailable=True)
        if faults.happens(dice, "batch_unavailable", 0.3):
            return Failed(batch.id, "an executor was lost", unavailable=True)
        if self._reads_what_is_lost(batch):
            return Failed(batch.id, "the range is not in the source any more")
        position = offset_of(batch.lease.progress.position)
        if self._budget.fails(dice, "batch_failed", key, position):
            return Failed(batch.id, "a task has failed")
        return "hangs" if self._budget.fails(dice, "batch_hangs", key, position) else None

    def _stage(self, batch: Batch) -> Staged:
        start, end = offset_of(batch.cut.start), offset_of(batch.cut.end)
        first = batch.cut.gaps[0][1] if batch.cut.gaps else start
        if end - first > 1 and self._is_cut_short(batch):
            end = first + 1 + self._kernel.below(end - first - 1)
        receipts = {sink: {"files": self.files(batch, bucket, end)} for sink, bucket in self.buckets.items()}
        last = batch.cut.last and end == offset_of(batch.cut.end)
        number = len(self._items(batch, end))
        position = {"offset": self._reported_end(batch, end, number)}
        return Staged(batch.id, position, last, receipts, Counts(number, number))

    def _reported_end(self, batch: Batch, end: int, number: int) -> int:
        """Where a batch ends that was staged up to `end`: the task that read it may have come further than that."""
        planned = offset_of(batch.cut.end)
        staged = TaskEnd(number, end if end < planned else None)
        reading = TaskEnd(0, end + 1 if end + 1 < planned else None, reads=True)
        end_of_tasks = flow_batch.common_end([staged, reading])
        return planned if end_of_tasks is None else end_of_tasks

    def _is_cut_short(self, batch: Batch) -> bool:
        if batch.restages is None:
            return self._faults.happens(self._kernel.dice, "batch_cut_short", 0.5)
        position = offset_of(batch.lease.progress.position)
        return self._losing is not None and self._budget.fails(
            self._kernel.dice, "batch_cut_short", batch.lease.key, position
        )

    def _reads_what_is_lost(self, batch: Batch) -> bool:
        if self._losing is None:
            return False
        start, end = offset_of(batch.cut.start), offset_of(batch.cut.end)
        return batch.cut.gaps != self._losing.lost_between(batch.lease.key, start, end)

    def _items(self, batch: Batch, end: int) -> list[int]:
        gaps = batch.cut.gaps
        items = range(offset_of(batch.cut.start), end)
        return [item for item in items if not any(first <= item < last for first, last in gaps)]

    def files(self, batch: Batch, bucket: BucketServer, end: int) -> list[dict[str, Json]]:
        varies = self._faults.enables("parser_varies")
        if varies:
            self._faults.strike("parser_varies")
        shelves: dict[int, list[int]] = {}
        for item in self._items(batch, end):
            shelf = self._kernel.below(self._shelves) if varies else (item * 7 // 3 + len(self._parser)) % self._shelves
            shelves.setdefault(shelf, []).append(item)
        return [self._file(batch, bucket, shelf, items, varies=varies) for shelf, items in shelves.items()]

    def _file(
        self, batch: Batch, bucket: BucketServer, shelf: int, items: list[int], *, varies: bool, key: str = ""
    ) -> dict[str, Json]:
        lease = batch.lease
        key = key or names.file_key(batch.name, lease.commit.generation, items[0], "jsonl", (f"dt={shelf}",))
        salt = self._kernel.below(1 << 30) if varies else 0
        digest = f"{lease.key}{items}{salt}{self._parser}"
        staged_key = names.staging_key(batch.name, lease.token, batch.id, f"{shelf}")
        bucket.stage(staged_key, key, DataFile(lease.key, tuple(items), digest, self._parser))
        return {
            "key": key,
            "rows": len(items),
            "size": len(items),
            "sha256": digest,
            "first": items[0],
            "last": items[-1],
            "staged": staged_key,
        }
