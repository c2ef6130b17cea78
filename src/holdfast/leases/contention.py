"""Contention: nodes that find the same free leases and lose races for them choose among more leases, at random.

For stores that cannot claim in one step. Nobody waits: the more races were lost, the more leases a node finds, of which
it tries a random part. While nobody else claims, leases are taken strictly in order.
"""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.leases.lease import Lease
from holdfast.leases.world import Dice

WIDEST = 16
"""How many times as many leases are found as are wanted, at most."""


class Contention:
    """How many leases one claimer chooses from, by the races that it has lost."""

    def __init__(self, dice: Dice) -> None:
        self._dice = dice
        self.width = 1
        """How many times as many leases to find as are wanted."""

    def choose(self, found: Sequence[Lease], limit: int) -> list[Lease]:
        """At most `limit` of the leases found, at random, in the order in which they were found."""
        if self.width == 1 or len(found) <= limit:
            return list(found[:limit])
        drawn = sorted(range(len(found)), key=lambda _: self._dice.random())[:limit]
        return [found[index] for index in sorted(drawn)]

    def learn(self, won: int, lost: int) -> None:
        """Double the width after a claim that lost more races than it won; halve it after one that lost none."""
        if lost > won:
            self.width = min(2 * self.width, WIDEST)
        elif not lost:
            self.width = max(1, self.width // 2)
