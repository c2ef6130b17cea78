"""Hand-off: give leases to nodes that hold less than their share, one by one, when nothing of them is out."""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence

from holdfast.errors import LeaseLost
from holdfast.events import PartitionHandedOff
from holdfast.flow.engine import Engine
from holdfast.flow.holdings import Held, Holdings
from holdfast.leases import transitions
from holdfast.leases.coordinator import Coordinator
from holdfast.leases.writes import Change


class HandingOff:
    """Hands leases of one pipeline's holdings to other sessions."""

    def __init__(self, coordinator: Coordinator, engine: Engine, holdings: Holdings) -> None:
        self._coordinator = coordinator
        self._engine = engine
        self._holdings = holdings

    def shed_to(self, targets: Sequence[str]) -> None:
        """Choose a lease for each target. Replaces what was chosen before and has not gone yet."""
        wanted = Counter(targets)
        for held in self._holdings:
            if held.hand_to is not None and wanted[held.hand_to] > 0:
                wanted[held.hand_to] -= 1
            else:
                held.hand_to = None
        for held, target in zip(self._in_turn(), wanted.elements(), strict=False):
            held.hand_to = target
        self._engine.drain([held.batch.id for held in self._holdings if held.hand_to and held.batch])

    def _in_turn(self) -> Iterator[Held]:
        """What may go: each time one of the group of which most are left, so that a busy topic is shared as well."""
        staying = self._holdings.where(lambda held: held.hand_to is None)
        groups: dict[str, list[Held]] = defaultdict(list)
        for held in sorted(staying, key=lambda held: held.at_rest):  # taken from the end: those at rest first
            groups[held.lease.group].append(held)
        left = [(-len(group), not group[-1].at_rest, name) for name, group in groups.items()]
        heapq.heapify(left)
        while left:
            name = heapq.heappop(left)[2]
            group = groups[name]
            yield group.pop()
            if group:
                heapq.heappush(left, (-len(group), not group[-1].at_rest, name))

    def hand_off(self) -> None:
        """Give away what is chosen and at rest, in one write each: there is no moment without an owner."""
        going = self._holdings.where(lambda held: held.hand_to is not None and held.at_rest)
        if not going:
            return
        now = self._coordinator.now()
        results = self._coordinator.write_each([(held.lease, _given(held, now)) for held in going])
        for held, result in zip(going, results, strict=True):
            self._holdings.drop(held)
            if not isinstance(result, LeaseLost):
                event = PartitionHandedOff(result.pipeline, result.key, str(result.owner))
                self._coordinator.world.emit(event)


def _given(held: Held, now: float) -> Change:
    target = str(held.hand_to)
    return lambda row: transitions.hand_off(row, target, now)
