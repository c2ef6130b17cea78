"""How many requests a task has in flight: more when the server keeps up, fewer when it does not.

Additive increase, multiplicative decrease: each round of successes adds one; a rejection or a slow response halves.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

INITIAL_LIMIT = 2.0


class AdaptiveConcurrency:
    """The thread of the task acquires; the threads that send report the result and release."""

    def __init__(self, most: int, slow_after: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._most = float(most)
        self._slow_after = slow_after
        self._clock = clock
        self._limit = min(INITIAL_LIMIT, self._most)
        self._in_flight = 0
        self._lowered_at = float("-inf")
        self._changed = threading.Condition()

    @property
    def limit(self) -> float:
        """The current limit; only whole requests count."""
        return self._limit

    def acquire(self, timeout: float | None = None) -> bool:
        """Wait until another request may be sent. False if none may after `timeout` seconds."""
        with self._changed:
            free = self._changed.wait_for(lambda: self._in_flight < int(self._limit), timeout)
            self._in_flight += free
        return free

    def release(self) -> None:
        """A request has ended, with whatever result."""
        with self._changed:
            self._in_flight -= 1
            self._changed.notify_all()

    def succeeded(self, began: float) -> None:
        """The server has accepted a request that was sent at `began`."""
        if self._clock() - began > self._slow_after:
            self.rejected(began)
            return
        with self._changed:
            self._limit = min(self._most, self._limit + 1.0 / self._limit)
            self._changed.notify_all()

    def rejected(self, began: float) -> None:
        """The server is overloaded. Of requests that were in flight at the same time, only one counts."""
        with self._changed:
            if began >= self._lowered_at:
                self._limit = max(1.0, self._limit / 2.0)
                self._lowered_at = self._clock()
