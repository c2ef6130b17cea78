"""Spreading claimers: nodes that find the same free leases and lose races for them look further apart, at random.

For stores that cannot claim in one step. Nobody waits: the more races were lost, the more leases a node finds, of which
it tries a random part. While nobody else claims, leases are taken strictly in order.
"""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.leases.lease import Lease
from holdfast.leases.world import Dice

WIDEST = 16
"""Times as many leases are looked at as are wanted, at most."""


class Spread:
    """How far one claimer spreads, by how it fared."""

    def __init__(self, dice: Dice) -> None:
        self._dice = dice
        self.width = 1

    def choose(self, found: Sequence[Lease], limit: int) -> list[Lease]:
        """At most `limit` of what was found, at random, in the order in which it was found."""
        if self.width == 1 or len(found) <= limit:
            return list(found[:limit])
        drawn = sorted(range(len(found)), key=lambda _: self._dice.random())[:limit]
        return [found[place] for place in sorted(drawn)]

    def learn(self, won: int, lost: int) -> None:
        """Twice as far after a claim that mostly lost, half as far after one that lost nothing."""
        if lost > won:
            self.width = min(2 * self.width, WIDEST)
        elif not lost:
            self.width = max(1, self.width // 2)
