"""Who strikes, and when. Seeded: the same seed draws the same faults, though what they meet differs from run to run."""

from __future__ import annotations

import random
import signal
import time
from collections import Counter

from tests.soak.fleet import Fleet
from tests.soak.grounds import Fault, Ground

TICK = 0.1


class Nemesis:
    """Strikes nodes, store and network until the time is over."""

    def __init__(self, fleet: Fleet, ground: Ground, dice: random.Random, every: float) -> None:
        """`every`: seconds between two strikes, on average."""
        self._fleet = fleet
        self._ground = ground
        self._dice = dice
        self._every = every
        nodes: dict[str, Fault] = {
            "kill a node": lambda _: self._signal(signal.SIGKILL, 1),
            "kill a third": lambda _: self._signal(signal.SIGKILL, max(1, len(fleet.nodes) // 3)),
            "freeze a node": lambda _: self._signal(signal.SIGSTOP, 1),
            "freeze a third": lambda _: self._signal(signal.SIGSTOP, max(1, len(fleet.nodes) // 3)),
        }
        self._faults = nodes | dict(ground.faults())
        # Nodes suffer twice as often as the store, or most of the time nobody could work.
        self._bag = sorted([*self._faults, *nodes])
        self.struck: Counter[str] = Counter()

    def rage(self, seconds: float) -> None:
        """Every fault in the bag in a random order, then again, while the fleet is tended."""
        over_at = time.monotonic() + seconds
        left: list[str] = []
        strike_at = time.monotonic() + self._pause()
        while time.monotonic() < over_at:
            if time.monotonic() >= strike_at:
                left = left or self._dice.sample(self._bag, len(self._bag))
                self._strike(left.pop())
                strike_at = time.monotonic() + self._pause()
            self._fleet.tend()
            self._fleet.measure()
            time.sleep(TICK)

    def _pause(self) -> float:
        return self._every * 2 * self._dice.random()

    def _strike(self, name: str) -> None:
        self.struck[name] += 1
        self._faults[name](self._dice)

    def _signal(self, sign: signal.Signals, number: int) -> None:
        awake = [node for node in self._fleet.nodes if node.running and not node.frozen]
        for node in self._dice.sample(awake, min(number, len(awake))):
            node.signal(sign)
