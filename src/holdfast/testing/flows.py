"""Fakes for tests of a pipeline's loop without Spark: a source of numbers, an engine, and a bucket in memory."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from holdfast.buckets.bucket import Bucket, Published, StagedFile
from holdfast.errors import BatchError, Refused, Unavailable
from holdfast.flow.batch import Batch, Cut, Done, Limits, Name, Wait
from holdfast.flow.engine import Advanced, Engine, Report, Staged
from holdfast.flow.names import file_key, staging_key
from holdfast.flow.source import Source
from holdfast.leases.lease import Counts, Json, Lease, Partition


class NumbersSource(Source):
    """Partitions that hold the numbers from 0 to their size; a batch has at most `Limits.max_records` of them."""

    def __init__(self, sizes: Mapping[str, int]) -> None:
        self.sizes = dict(sizes)

    def discover(self, state: dict[str, Any]) -> Iterable[Partition]:
        state["scans"] = state.get("scans", 0) + 1
        return [Partition(key, spec={"size": size}) for key, size in self.sizes.items()]

    def name(self, lease: Lease) -> Name:
        return Name("numbers", lease.key)

    def plan(self, leases: Sequence[Lease], limits: Limits) -> list[Cut | Wait | Done | BatchError]:
        return [self._cut(lease, limits) for lease in leases]

    def _cut(self, lease: Lease, limits: Limits) -> Cut | Done:
        start, size = lease.progress.position or 0, lease.spec["size"]
        end = min(size, start + (limits.max_records or size))
        return Done() if start >= size else Cut(start, end, last=end == size, size=end - start)

    def read(self, spark: Any, batches: Sequence[Batch], columns: frozenset[str] | None = None) -> Any:
        raise BatchError("numbers are not read through Spark")


class HandEngine(Engine):
    """An engine whose reports the test defines."""

    def __init__(self, room: int = 10) -> None:
        self.out: dict[str, Batch] = {}
        self.rounds: list[list[Batch]] = []
        self.cancelled: list[str] = []
        self.drained: list[str] = []
        self.closed = False
        self._room = room
        self._reports: list[Report] = []

    def room(self) -> int:
        return self._room

    def submit(self, pipeline: str, batches: Sequence[Batch]) -> None:
        self.rounds.append(list(batches))
        self.out.update({batch.id: batch for batch in batches})

    def poll(self, timeout: float) -> list[Report]:
        reports, self._reports = self._reports, []
        return reports

    def cancel(self, batch_ids: Sequence[str]) -> None:
        self.cancelled += batch_ids
        for batch_id in batch_ids:
            self.out.pop(batch_id, None)

    def drain(self, batch_ids: Sequence[str]) -> None:
        self.drained += batch_ids

    def close(self) -> None:
        self.closed = True

    def report(self, report: Report) -> None:
        """Add a report for the next `poll`. A batch that has ended is no longer running."""
        self._reports.append(report)
        if not isinstance(report, Advanced):
            self.out.pop(report.batch_id, None)

    def batch_of(self, key: str) -> Batch:
        """The running batch of that partition."""
        return next(batch for batch in self.out.values() if batch.lease.key == key)

    def stage(self, key: str, buckets: Mapping[str, Bucket], letters: int = 0) -> None:
        """Stage the partition's batch in each bucket, one file of numbers each, and report it.

        The report counts `letters` of its records as dead letters.
        """
        batch = self.batch_of(key)
        receipts = {sink: {"files": [stage_numbers(bucket, batch)]} for sink, bucket in buckets.items()}
        size = batch.cut.end - batch.cut.start
        counts = Counts(size, size - letters, 0, letters)
        why = "not JSON" if letters else None
        self.report(Staged(batch.id, batch.cut.end, batch.cut.last, receipts, counts, letter_reason=why))


def stage_numbers(bucket: Bucket, batch: Batch) -> dict[str, Json]:
    """A staged file with the batch's numbers, one per line, as an entry of a receipt."""
    start, end = batch.cut.start, batch.cut.end
    key = file_key(batch.name, batch.lease.commit.generation, start, "txt")
    writer = bucket.stage(staging_key(batch.name, batch.lease.token, batch.id, "0"), key)
    writer.write("".join(f"{number}\n" for number in range(start, end)).encode())
    handle, size, sha256 = writer.close()
    return {"staged": handle, "key": key, "rows": end - start, "size": size, "sha256": sha256}


class MemoryBucket(Bucket):
    """Objects in a dictionary. Set `away` to make every call raise `Unavailable`."""

    def __init__(self) -> None:
        self.visible: dict[str, bytes] = {}
        self.staged: dict[str, bytes] = {}
        self.away = False

    def create(self, key: str, data: bytes) -> bool:
        self._answer()
        if key in self.visible:
            return False
        self.visible[key] = data
        return True

    def read(self, key: str) -> bytes | None:
        self._answer()
        return self.visible.get(key)

    def keys(self, prefix: str) -> Iterator[str]:
        self._answer()
        return iter(sorted(key for key in self.visible if key.startswith(prefix)))

    def stage(self, staged_key: str, key: str) -> _MemoryWriter:
        self._answer()
        return _MemoryWriter(self, staged_key)

    def has_staged(self, files: Sequence[StagedFile]) -> list[bool]:
        self._answer()
        return [file.handle in self.staged for file in files]

    def publish(self, files: Sequence[StagedFile]) -> list[Published]:
        self._answer()
        return [self._publish(file) for file in files]

    def _publish(self, file: StagedFile) -> Published:
        if file.key in self.visible:
            same = hashlib.sha256(self.visible[file.key]).hexdigest() == file.sha256
            return Published.DONE if same else Published.FOREIGN
        if file.handle not in self.staged:
            return Published.GONE
        self.visible[file.key] = self.staged[file.handle]
        return Published.DONE

    def discard(self, handles: Sequence[Json]) -> None:
        self._answer()
        for handle in handles:
            self.staged.pop(handle, None)

    def staged_under(self, prefix: str) -> Iterator[tuple[str, Json]]:
        self._answer()
        return iter([(place, place) for place in sorted(self.staged) if place.startswith(prefix)])

    def move(self, key: str, to: str) -> bool:
        self._answer()
        if self.visible.get(to, self.visible.get(key)) != self.visible.get(key, self.visible.get(to)):
            raise Refused(f"another object is at {to}; nothing was moved")
        if key in self.visible:
            self.visible[to] = self.visible.pop(key)
        return to in self.visible

    def data(self) -> dict[str, bytes]:
        """The objects that are visible to readers, who skip names that begin with `_`."""
        return {key: data for key, data in self.visible.items() if not key.startswith("_")}

    def _answer(self) -> None:
        if self.away:
            raise Unavailable("the bucket does not respond")


class _MemoryWriter:
    def __init__(self, bucket: MemoryBucket, staged_key: str) -> None:
        self._bucket = bucket
        self._staged_key = staged_key
        self._data = bytearray()

    def write(self, data: bytes | memoryview) -> int:
        self._data += data
        return len(data)

    def close(self) -> tuple[Json, int, str]:
        data = bytes(self._data)
        self._bucket.staged[self._staged_key] = data
        return self._staged_key, len(data), hashlib.sha256(data).hexdigest()
