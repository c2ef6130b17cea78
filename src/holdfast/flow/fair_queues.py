"""Records that a reader has got and its task has not fetched: shards take turns, so that none holds up others."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.flow.shards import StreamRecord


class FairQueues:
    """One queue per shard. Used by one thread."""

    def __init__(self) -> None:
        self._queues: dict[str, Sequence[StreamRecord]] = {}
        """Shards that have records; the one that was served last is the last one."""
        self.paused: set[str] = set()
        """Shards whose records stay."""

    def put(self, shard: str, records: Sequence[StreamRecord]) -> None:
        """Add records of a shard in their order."""
        before = self._queues.get(shard)
        self._queues[shard] = [*before, *records] if before else records

    def take(self, limit: int) -> Sequence[StreamRecord]:
        """Take at most `limit` records, an equal share of each shard first."""
        ready = [shard for shard in self._queues if shard not in self.paused]
        if len(ready) == 1:
            return self._cut(ready[0], limit)
        taken: list[StreamRecord] = []
        while ready and len(taken) < limit:
            share = max(1, (limit - len(taken)) // len(ready))
            for shard in ready[: limit - len(taken)]:
                taken += self._cut(shard, share)
            ready = [shard for shard in ready if shard in self._queues]
        return taken

    def _cut(self, shard: str, limit: int) -> Sequence[StreamRecord]:
        queue = self._queues.pop(shard)
        if len(queue) <= limit:
            return queue
        self._queues[shard] = queue[limit:]
        return queue[:limit]

    def drop(self, shard: str) -> None:
        """Forget a shard: its records, and that it is paused."""
        self._queues.pop(shard, None)
        self.paused.discard(shard)

    def waiting(self, shard: str) -> Sequence[StreamRecord]:
        """The records of a shard that were not taken."""
        return self._queues.get(shard, ())

    @property
    def ready(self) -> int:
        """Number of records that may be taken."""
        return sum(len(queue) for shard, queue in self._queues.items() if shard not in self.paused)
