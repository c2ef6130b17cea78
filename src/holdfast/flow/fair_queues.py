"""Records that a reader has received and its task has not fetched: shards take turns, so that none holds up others.

Records stay in the sequences in which they came. A reader may put lazy sequences, which make a record when it is read:
then a handler of batches pays only for the records that it looks at.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from itertools import chain, islice
from typing import overload

from holdfast.flow.shards import ShardReader, ShardRecords, ShardReport, StreamRecord


class JoinedRecords(Sequence[StreamRecord]):
    """Sequences one after the other. None of them is empty."""

    __slots__ = ("_length", "parts")

    def __init__(self, parts: Sequence[Sequence[StreamRecord]]) -> None:
        self.parts = parts
        self._length = sum(map(len, parts))

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[StreamRecord]:
        return chain.from_iterable(self.parts)

    @overload
    def __getitem__(self, index: int) -> StreamRecord: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[StreamRecord]: ...

    def __getitem__(self, index: int | slice) -> StreamRecord | Sequence[StreamRecord]:
        if isinstance(index, slice):
            return [*self][index]
        at = range(self._length)[index]
        for part in self.parts:
            if at < len(part):
                return part[at]
            at -= len(part)
        raise IndexError(index)


class RecordQueue:
    """Records in their order, with the methods of a `deque` that are needed. Used by one thread."""

    __slots__ = ("_begun", "_length", "_parts")

    def __init__(self) -> None:
        self._parts: deque[Sequence[StreamRecord]] = deque()
        self._begun = 0
        """Records of the first part that were taken. It is not cut: a list would be copied with every record."""
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[StreamRecord]:
        return islice(chain.from_iterable(self._parts), self._begun, None)

    @property
    def first(self) -> StreamRecord:
        """The next record. Raises `IndexError` if there is none."""
        return self._parts[0][self._begun]

    def extend(self, records: Sequence[StreamRecord]) -> None:
        """Add records, which must not change from now on."""
        if isinstance(records, JoinedRecords):
            self._parts.extend(records.parts)  # a slice of them together would make all records
        elif records:
            self._parts.append(records)
        self._length += len(records)

    def take(self, limit: int) -> Sequence[StreamRecord]:
        """Take the next `limit` records, or all if there are fewer."""
        parts: list[Sequence[StreamRecord]] = []
        while self._parts and limit > 0:
            part, begun = self._parts[0], self._begun
            if len(part) - begun > limit:
                self._begun, part = begun + limit, part[begun : begun + limit]
            else:
                self._drop_first_part()
                part = part[begun:] if begun else part
            self._length -= len(part)
            limit -= len(part)
            parts.append(part)
        return parts[0] if len(parts) == 1 else JoinedRecords(parts)

    def popleft(self) -> StreamRecord:
        """Take the next record. Raises `IndexError` if there is none."""
        record = self.first
        if self._begun + 1 == len(self._parts[0]):
            self._drop_first_part()
        else:
            self._begun += 1
        self._length -= 1
        return record

    def _drop_first_part(self) -> None:
        self._parts.popleft()
        self._begun = 0

    def clear(self) -> None:
        self._parts.clear()
        self._begun = self._length = 0


class FairQueues:
    """One queue per shard. Used by one thread."""

    def __init__(self) -> None:
        self._queues: dict[str, RecordQueue] = {}
        """Shards that have records; the one that was served last is the last one."""
        self.paused: set[str] = set()
        """Shards whose records stay."""

    def put(self, shard: str, records: Sequence[StreamRecord]) -> None:
        """Add records of a shard in their order."""
        if records:
            self._queues.setdefault(shard, RecordQueue()).extend(records)

    def take(self, limit: int) -> list[ShardRecords]:
        """Take at most `limit` records, beginning with an equal share of each shard."""
        ready = [shard for shard in self._queues if shard not in self.paused]
        taken: list[ShardRecords] = []
        while ready and limit > 0:
            share = max(1, limit // len(ready))
            for shard in ready[:limit]:
                taken.append((shard, self._cut(shard, share)))
                limit -= len(taken[-1][1])
            ready = [shard for shard in ready if shard in self._queues]
        return taken

    def _cut(self, shard: str, limit: int) -> Sequence[StreamRecord]:
        queue = self._queues.pop(shard)
        taken = queue.take(limit)
        if queue:
            self._queues[shard] = queue
        return taken

    def drop(self, shard: str) -> None:
        """Forget a shard: its records, and that it is paused."""
        self._queues.pop(shard, None)
        self.paused.discard(shard)

    def waiting(self, shard: str) -> RecordQueue:
        """The records of a shard that were not taken."""
        return self._queues.get(shard) or RecordQueue()

    @property
    def ready(self) -> int:
        """Number of records that may be taken."""
        return sum(len(queue) for shard, queue in self._queues.items() if shard not in self.paused)


class QueuedReader(ShardReader):
    """A reader that gets records ahead of time, and keeps them in fair queues."""

    def __init__(self) -> None:
        self._queues = FairQueues()
        self._reports: list[ShardReport] = []

    def pause(self, shard: str) -> None:
        self._queues.paused.add(shard)

    def resume(self, shard: str) -> None:
        self._queues.paused.discard(shard)

    def fetch(self, limit: int, timeout: float) -> Sequence[StreamRecord]:
        return [record for _, records in self.fetch_by_shard(limit, timeout) for record in records]

    def reports(self) -> list[ShardReport]:
        reports, self._reports = self._reports, []
        return reports
