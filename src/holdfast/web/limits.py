"""Limits on what clients may send, so that a loop in a script does not keep others from the dashboard."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass

MOST_CLIENTS = 4096


@dataclass(frozen=True)
class Limits:
    """How much a client may send. A rate is a number per second; a burst is a number that may come at once."""

    body_bytes: int = 1 << 20
    unknown_body_bytes: int = 8 << 10
    """Of a client that has not logged in; a login is much smaller."""
    body_seconds: float = 30.0
    requests_per_second: float = 100.0
    requests_burst: int = 500
    logins_per_second: float = 0.1
    logins_burst: int = 10
    sockets: int = 1000
    sockets_of_client: int = 300
    message_bytes: int = 64 * 1024
    messages_per_second: float = 10.0
    messages_burst: int = 50


class Rate:
    """Limits what each client sends, by a token bucket that refills over time."""

    def __init__(self, per_second: float, burst: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._per_second = per_second
        self._burst = burst
        self._clock = clock
        self._left: OrderedDict[Hashable, tuple[float, float]] = OrderedDict()

    def allows(self, client: Hashable) -> bool:
        """Count one more; return whether it is within the rate."""
        now = self._clock()
        left, at = self._left.pop(client, (float(self._burst), now))
        left = min(float(self._burst), left + (now - at) * self._per_second)
        allowed = left >= 1
        self._left[client] = (left - 1 if allowed else left, now)
        while len(self._left) > MOST_CLIENTS:
            self._left.popitem(last=False)
        return allowed

    def wait(self, client: Hashable) -> int:
        """Return the seconds, at least one, until the client may send again."""
        left, _ = self._left.get(client, (1.0, 0.0))
        return max(1, int((1 - left) / self._per_second) + 1)
