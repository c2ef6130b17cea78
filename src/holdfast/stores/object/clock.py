"""The time of a server, from what it says in passing.

A server stamps its answers (S3: `Date`, in whole seconds; a file system: the time of a new file). A stamp is never
ahead of the server's clock when it arrives, so that the largest difference to our own clock seen lately is the best.
Good enough for times when leases are due; no session is ended by it.
"""

from __future__ import annotations

import time
from collections.abc import Callable

WINDOW = 600.0
"""Seconds after which an old difference is forgotten: clocks drift, and servers are set."""


class ServerClock:
    """What is known of a server's clock. Safe to use from several threads: the worst race loses one stamp."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._ahead: float | None = None
        self._before: float | None = None
        self._window_ends = 0.0

    @property
    def heard(self) -> bool:
        """Whether there was a stamp at all."""
        return self._ahead is not None or self._before is not None

    def hear(self, stamp: float) -> None:
        """The server's time, as an answer says that has just come."""
        now = self._monotonic()
        if now >= self._window_ends:
            self._before, self._ahead, self._window_ends = self._ahead, None, now + WINDOW
        ahead = stamp - now
        self._ahead = ahead if self._ahead is None else max(self._ahead, ahead)

    def now(self) -> float:
        """Seconds since 1970 by the server's clock. Call it when something was heard."""
        known = [ahead for ahead in (self._ahead, self._before) if ahead is not None]
        return self._monotonic() + max(known)
