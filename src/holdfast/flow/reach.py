"""How many leases a node holds at a time: its whole share where partitions live long, else as many as two rounds carry.

With the second round the next partitions are read while the ones before are committed. While partitions are tiny a
round may carry more of them, or its fixed costs would be all there is. It grows step by step, so that a node never
takes many large ones away from others because the few before them were small. Larger ones stay few: what a node holds
when it dies is counted as taken over, whether it had begun with it or not.
"""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.flow.source import Source
from holdfast.leases.lease import Lease

UNBOUNDED = 1_000_000
MOST_TIMES = 10
ROUNDS = 2


class Reach:
    """Of one pipeline on one node."""

    def __init__(self, source: Source, batches: int) -> None:
        """`batches` of ordinary size are in one round."""
        self._source = source
        self._ordinary = self.batches = batches
        """Batches that a round carries now."""

    def room(self, held: Sequence[Lease], idle: int) -> int:
        """How many more leases may be taken, if with so many of those that are held nothing happens yet."""
        if self._source.lives_long:
            return UNBOUNDED - len(held)
        if not self._source.is_light(held):
            self.batches = max(self._ordinary, self.batches // 2)
        elif len(held) >= self.batches:
            self.batches = min(2 * self.batches, MOST_TIMES * self._ordinary)
        return min(ROUNDS * self.batches - len(held), self.batches - idle)
