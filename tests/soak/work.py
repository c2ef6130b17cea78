"""What a light node works on, in place of Spark: sources that grow with time, and an engine that stages lines."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from holdfast.buckets.bucket import Bucket
from holdfast.errors import BatchError, Unavailable
from holdfast.flow.batch import Batch, Cut, Done, Limits, Name, Wait
from holdfast.flow.engine import Engine, Failed, Report, Staged
from holdfast.flow.names import file_key, staging_key
from holdfast.flow.source import Source
from holdfast.leases.lease import Counts, Json, Lease, Partition
from tests.soak.orders import PULL, SHARE, SINK, Load, pulled_key, shared_key

MOST_ROUNDS = 4


class GrowingSource(Source):
    """Numbered items. Says that there is nothing now, until the load is final."""

    stream: str

    def __init__(self, load: Load) -> None:
        self._load = load

    def size(self, lease: Lease, now: float) -> int:
        raise NotImplementedError

    def name(self, lease: Lease) -> Name:
        return Name(self.stream, lease.key)

    def plan(self, leases: Sequence[Lease], limits: Limits) -> list[Cut | Wait | Done | BatchError]:
        return [self._cut(lease, limits.max_records or 1) for lease in leases]

    def _cut(self, lease: Lease, most: int) -> Cut | Wait | Done:
        now = time.monotonic()
        start, size = lease.progress.position or 0, self.size(lease, now)
        final = self.stream == PULL or self._load.is_final(now)
        if start >= size:
            return Done() if final else Wait(0.3)
        end = min(size, start + most)
        return Cut(start, end, last=final and end == size, size=end - start)

    def read(self, spark: Any, batches: Sequence[Batch], columns: frozenset[str] | None = None) -> Any:
        raise BatchError("nothing here is read through Spark")


class PulledSource(GrowingSource):
    """Ever more partitions of a fixed size."""

    stream = PULL
    rediscover_after = 1.0

    def discover(self, state: dict[str, Any]) -> Iterator[Partition]:
        # From the shared state on: if it ran ahead of the rows, partitions would be lost, and the oracle would see it.
        found = self._load.pulled(time.monotonic())
        for number in range(state.get("found", 0), found):
            yield Partition(pulled_key(number))
        state["found"] = found

    def size(self, lease: Lease, now: float) -> int:
        return self._load.pulled_items


class SharedSource(GrowingSource):
    """A fixed number of partitions that grow."""

    stream = SHARE
    lives_long = True

    def discover(self, state: dict[str, Any]) -> Iterator[Partition]:
        return iter([Partition(shared_key(number)) for number in range(self._load.shared)])

    def size(self, lease: Lease, now: float) -> int:
        return self._load.shared_items(now)


@dataclass
class _Out:
    batch: Batch
    round: int
    ready_at: float


class LineEngine(Engine):
    """Stages a batch as one file of lines, after a while. Fails some, and cuts some shorter."""

    def __init__(self, buckets: Mapping[str, Bucket], dice: random.Random, hiccup: float) -> None:
        self._buckets = buckets
        self._dice = dice
        self._hiccup = hiccup
        self._out: dict[str, _Out] = {}
        self._rounds = 0

    def room(self) -> int:
        return MOST_ROUNDS - len({out.round for out in self._out.values()})

    def submit(self, pipeline: str, batches: Sequence[Batch]) -> None:
        self._rounds += 1
        for batch in batches:
            self._out[batch.id] = _Out(batch, self._rounds, time.monotonic() + 0.3 * self._dice.random())

    def poll(self, timeout: float) -> list[Report]:
        now = time.monotonic()
        first = min((out.ready_at for out in self._out.values()), default=now + timeout)
        time.sleep(max(0.0, min(first - now, timeout)))
        ready = [out.batch for out in self._out.values() if out.ready_at <= time.monotonic()]
        for batch in ready:
            del self._out[batch.id]
        return [self._carried(batch) for batch in ready]

    def cancel(self, batch_ids: Sequence[str]) -> None:
        for batch_id in batch_ids:
            self._out.pop(batch_id, None)

    def _carried(self, batch: Batch) -> Report:
        if self._dice.random() < self._hiccup:
            return Failed(batch.id, "a hiccup")
        start, end = batch.cut.start, batch.cut.end
        if batch.restages is None and end - start > 1 and self._dice.random() < 0.1:
            end = self._dice.randrange(start + 1, end)
        try:
            receipts = {SINK: {"files": [_staged(self._buckets[batch.lease.pipeline], batch, end)]}}
        except Unavailable as swept:
            # A node that was held up finds that the next owner has cleaned up behind it.
            return Failed(batch.id, str(swept), unavailable=True)
        last = batch.cut.last and end == batch.cut.end
        return Staged(batch.id, end, last, receipts, Counts(end - start, end - start))


def _staged(bucket: Bucket, batch: Batch, end: int) -> dict[str, Json]:
    lease, start = batch.lease, batch.cut.start
    key = file_key(batch.name, lease.commit.generation, start, "txt")
    writer = bucket.stage(staging_key(batch.name, lease.token, batch.id, "0"), key)
    writer.write("".join(f"{lease.key} {item}\n" for item in range(start, end)).encode())
    ((handle, size, sha256),) = bucket.close_all([writer])
    return {"staged": handle, "key": key, "rows": end - start, "size": size, "sha256": sha256}
