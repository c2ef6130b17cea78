"""How often things are read: all of them together take at most a fortieth of the time, however many are looked at.

The wait of each follows from the root of its cost. Of all ways to share the time, that one keeps what is shown
youngest: a small pipeline is followed closely beside a large one, and none takes the time of all others.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from math import sqrt
from threading import Lock


@dataclass(frozen=True, slots=True)
class _Cost:
    last: float
    lesser: float
    """Of the last two reads: one that was slow by chance must not make a page old."""
    until: float
    """When the thing counts no more, unless it is read again: nobody looks at it."""


class Pace:
    """The pace of all reads of a process. Threads share it."""

    def __init__(self, every: float, share: float) -> None:
        """Things are read every so many seconds, or together take one of `share` parts of the time."""
        self.every = every
        self.share = share
        self._costs: dict[Hashable, _Cost] = {}
        self._lock = Lock()

    def wait(self, thing: Hashable, took: float, now: float) -> float:
        """Return the seconds until a thing may be read again, of which the last read took so long and ended now."""
        with self._lock:
            self._costs = {each: cost for each, cost in self._costs.items() if cost.until > now}
            before = self._costs.pop(thing, None)
            lesser = took if before is None else min(took, before.last)
            others = sum(sqrt(cost.lesser) for cost in self._costs.values())
            wait = max(self.every, self.share * sqrt(lesser) * (sqrt(lesser) + others))
            # Once more, and a little: ticks and other reads may be late.
            self._costs[thing] = _Cost(took, lesser, now + 2 * wait + self.every)
            return wait
