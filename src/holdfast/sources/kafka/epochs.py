"""Whether a log was truncated below what was read of it and filled again: told by the epochs of its leaders.

A leader never takes records back. So as long as the leader's epoch is the one under which a position was read, all is
as it was; only after a change of the leader the brokers are asked how far the log of that epoch reaches.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from holdfast.sources.kafka.cluster import Cluster, Place


class Read(NamedTuple):
    """How far a partition was read."""

    position: int
    epoch: int | None
    """Of the leader under which the last batch was planned, as the row keeps it."""
    now: int | None
    """Of the leader that has told the log's end."""


class Doubt(NamedTuple):
    """Why a partition may not be read on."""

    epoch: int
    truncated: bool
    """Else the brokers have not said yet."""


class Epochs:
    """What this node has seen. In memory; what must outlive it is in the rows."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._seen: dict[Place, tuple[int, int]] = {}

    def doubts(self, read: Mapping[Place, Read]) -> dict[Place, Doubt]:
        """Those whose log may not go on where reading ended. Asks the brokers only after a change of the leader."""
        changed: dict[Place, tuple[int, int]] = {}
        for place, told in read.items():
            known = self._known(place, told)
            if known is None:
                self.accept(place, told)
            elif told.now is not None and told.now != known:
                changed[place] = (told.position, known)
        # An earlier epoch than the known one is told by a leader that has been deposed: it does not count.
        later = {place: at for place, at in changed.items() if (read[place].now or 0) > at[1]}
        found = self._cluster.continued(later) if later else {}
        for place in changed:
            if found.get(place):
                self.accept(place, read[place])
        doubted = [place for place in changed if not found.get(place)]
        return {place: Doubt(changed[place][1], truncated=found.get(place) is False) for place in doubted}

    def accept(self, place: Place, told: Read) -> None:
        """Up to that position the log of the present leader is the one that was read."""
        if told.now is not None:
            self._seen[place] = (told.position, told.now)

    def _known(self, place: Place, told: Read) -> int | None:
        position, epoch = self._seen.get(place, (-1, -1))
        # What this node saw at another position says nothing of this one.
        known = [told.epoch, epoch if position == told.position else None]
        return max((one for one in known if one is not None), default=None)
