"""How many requests of one task are under way: more when the server keeps up, fewer when it does not.

Additive increase, multiplicative decrease: each round of good answers adds one, a rejection or a slow answer halves.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

BEGIN_WITH = 2.0


class AdaptiveLimit:
    """Used by the task's own thread, which takes, and by those that send, which tell how it went."""

    def __init__(self, most: int, slow_after: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._most = float(most)
        self._slow_after = slow_after
        self._clock = clock
        self._limit = min(BEGIN_WITH, self._most)
        self._out = 0
        self._lowered_at = float("-inf")
        self._changed = threading.Condition()

    @property
    def now(self) -> float:
        """The limit as it is; whole requests only count."""
        return self._limit

    def take(self, timeout: float | None = None) -> bool:
        """Wait until one more request may be under way. False if none may after `timeout` seconds."""
        with self._changed:
            free = self._changed.wait_for(lambda: self._out < int(self._limit), timeout)
            self._out += free
        return free

    def give_back(self) -> None:
        """A request is over, whatever came of it."""
        with self._changed:
            self._out -= 1
            self._changed.notify_all()

    def succeeded(self, began: float) -> None:
        """The server has taken a request that was sent at `began`."""
        if self._clock() - began > self._slow_after:
            self.rejected(began)
            return
        with self._changed:
            self._limit = min(self._most, self._limit + 1.0 / self._limit)
            self._changed.notify_all()

    def rejected(self, began: float) -> None:
        """The server has too much to do. Of requests that were under way together, one counts."""
        with self._changed:
            if began >= self._lowered_at:
                self._limit = max(1.0, self._limit / 2.0)
                self._lowered_at = self._clock()
