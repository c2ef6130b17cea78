"""How many leases a node holds at a time: its whole share where partitions live long, else as many as two rounds carry.

With two rounds the next partitions are read while the ones before are committed. While partitions are tiny a round may
carry more of them, or its fixed costs would be all there is. It grows step by step, so that a node never takes many
large ones away from others because the few before them were small. Larger ones stay few: what a node holds when it dies
waits until its session has ended.
"""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.flow.source import Source, WeighsPartitions
from holdfast.leases.lease import Lease

UNBOUNDED = 1_000_000
MOST_TIMES = 20
ROUNDS = 2


class Reach:
    """Of one pipeline on one node."""

    def __init__(self, source: Source, batches: int) -> None:
        """`batches` of ordinary size are held at a time, or are in one round where partitions live long."""
        self._source = source
        self._ordinary = self._most = batches

    @property
    def round_size(self) -> int:
        """Batches that one round carries now."""
        return self._most if self._source.lives_long else max(1, self._most // ROUNDS)

    def room(self, held: Sequence[Lease], idle: int) -> int:
        """How many more leases may be taken, if with so many of those that are held nothing happens yet."""
        if self._source.lives_long:
            return UNBOUNDED - len(held)
        if not (isinstance(self._source, WeighsPartitions) and self._source.is_light(held)):
            self._most = max(self._ordinary, self._most // 2)
        elif len(held) >= self._most:
            self._most = min(2 * self._most, MOST_TIMES * self._ordinary)
        return min(self._most - len(held), self.round_size - idle)
