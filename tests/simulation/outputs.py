"""Handlers that return records for files: what a record made is committed with the ack of that record.

Every record makes one row. A report has what the records of the acknowledged prefix made since the last one; it is
staged before it is reported, and the next one waits until it is published, as a worker does, most of the time: the
worker that follows one that has died does not know what is still to be published.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from holdfast.flow.batch import Batch, Cut, Done
from holdfast.flow.engine import Advanced, Failed, Staged
from holdfast.leases.lease import Counts, Json, Lease, Progress
from tests.simulation.engine import FailureBudget, SimulatedEngine
from tests.simulation.files_oracle import FilesOracle
from tests.simulation.fleet import Fleet
from tests.simulation.host import Host
from tests.simulation.kernel import Kernel
from tests.simulation.oracle import PIPELINE
from tests.simulation.source import Data, SimulatedSource, offset_of
from tests.simulation.streams import Shard, StreamEngine, StreamSource


class OutputOracle(FilesOracle):
    """Judges files as always, and that only acknowledged records are committed, and none is handled after that."""

    def __init__(self, kernel: Kernel, data: Data, max_retries: int) -> None:
        super().__init__(kernel, data, max_retries)
        self._acked: set[tuple[str, int]] = set()
        self._found: dict[tuple[str, int], Progress] = {}

    def row_written(self, row: Lease, sender: Host) -> None:
        if row.pipeline == PIPELINE and row.owner is not None:
            self._found.setdefault((row.key, row.token), row.progress)
        super().row_written(row, sender)

    def delivered(self, lease: Lease, item: int) -> None:
        """A handler is given this record under this lease, and not because it is staged a second time."""
        found = self._found.get((lease.key, lease.token))
        if found is not None and not self.rollbacks and item < offset_of(found.position):
            self.fail(f"{lease.key}: record {item} was committed before, and is delivered again")

    def acknowledged(self, key: str, item: int) -> None:
        """A handler has said that it is done with this record."""
        self._acked.add((key, item))

    def acknowledged_elsewhere(self, key: str, item: int) -> None:
        """Does not happen in this world."""

    def committed(self, before: Lease, row: Lease) -> None:
        super().committed(before, row)
        for item in range(offset_of(row.progress.position)):
            if (row.key, item) not in self._acked and not self.rollbacks:
                self.fail(f"{row.key}: record {item} is committed and nobody acknowledged it")


class OutputSource(StreamSource):
    """As a stream, with the positions of files."""

    def _rest(self, lease: Lease) -> Cut | Done:
        position = lease.progress.position
        number = self._data.items[lease.key]
        return Cut({"offset": offset_of(position)}, None) if offset_of(position) < number else Done()


@dataclass(slots=True)
class Reported:
    """How far the reports of a batch reach, and whether the last one waits to be published."""

    until: int
    waits: bool = False
    number: int = 0


class OutputEngine(StreamEngine):
    """Handlers whose output is staged by `staging`, under the name of the batch and a number."""

    def __init__(
        self,
        host: Host,
        data: Data,
        budget: FailureBudget,
        oracle: OutputOracle,
        staging: SimulatedEngine,
        *,
        ttl: float,
        window: int,
    ) -> None:
        super().__init__(host, data, budget, oracle, ttl=ttl, window=window)
        self._staging = staging
        self._reported: dict[str, Reported] = {}

    def submit(self, pipeline: str, batches: Sequence[Batch]) -> None:
        self._reported |= {batch.id: Reported(self.start_of(batch)) for batch in batches}
        super().submit(pipeline, batches)

    def published(self, batch_ids: Sequence[str]) -> None:
        self._host.touch()
        for batch_id in batch_ids:
            if (shard := self._shards.get(batch_id)) is not None:
                self._reported[batch_id].waits = False
                self._kernel.after(0.0, self.progressed, shard)

    def start_of(self, batch: Batch) -> int:
        return offset_of(batch.cut.start)

    def tried_at(self, shard: Shard) -> int:
        return 0  # reports wait for each other: where the row is when an error is counted, nobody knows yet

    def end_of(self, shard: Shard) -> int:
        end = shard.batch.cut.end
        return super().end_of(shard) if end is None else offset_of(end)

    def progressed(self, shard: Shard) -> None:
        reported = self._reported[shard.batch.id]
        waits = reported.waits and self._kernel.random() < 0.8
        if shard.over or shard.batch.restages is not None or waits or shard.position == reported.until:
            return
        staged = self._stage(shard, reported)
        if staged is None:
            return
        receipts, counts = staged
        reported.waits = True
        self.tell(shard, Advanced(shard.batch.id, {"offset": reported.until}, (), counts, receipts=receipts))

    def failed(self, shard: Shard) -> None:
        self.tell(shard, Failed(shard.batch.id, "the handler has failed"))

    def ended(self, shard: Shard) -> None:
        if shard.over or self._host.dead:
            return
        last, staged = shard.position == self.end_of(shard), self._stage(shard, self._reported[shard.batch.id])
        if staged is None:
            self._kernel.after(0.3 * self._ttl * self._kernel.random(), self.ended, shard)
            return
        receipts, counts = staged
        shard.over = True
        is_last = last and shard.batch.restages is None
        self.tell(shard, Staged(shard.batch.id, {"offset": shard.position}, is_last, receipts, counts))

    def _stage(self, shard: Shard, reported: Reported) -> tuple[dict[str, Json], Counts] | None:
        """Receipts for what was acknowledged since the last report; None if the bucket is away."""
        if any(bucket.down_until > self._kernel.now for bucket in self._staging.buckets.values()):
            return None
        reported.number += 1
        batch, end = shard.batch, shard.position
        cut = Cut({"offset": reported.until}, {"offset": end})
        part = replace(batch, id=f"{batch.id}.{reported.number}", cut=cut)
        receipts: dict[str, Json] = {
            sink: {"files": self._staging.files(part, bucket, end)} for sink, bucket in self._staging.buckets.items()
        }
        number, reported.until = end - reported.until, end
        return receipts, Counts(number, number)


class OutputFleet(Fleet):
    """Nodes of a pipeline of a function and files."""

    oracle: OutputOracle

    def files_oracle(self) -> FilesOracle:
        return OutputOracle(self.kernel, self.data, self.knobs.max_retries)

    def make_source(self, host: Host) -> SimulatedSource:
        return OutputSource(self.data, host, self.knobs.ttl, self.knobs.largest_cut)

    def engine(self, name: str, host: Host) -> SimulatedEngine | StreamEngine:
        knobs = self.knobs
        staging = self.files_engine(name, host)
        return OutputEngine(host, self.data, self._budget, self.oracle, staging, ttl=knobs.ttl, window=knobs.window)
