"""Whether a node is alive and ready, for what watches over processes: `/healthz` and `/readyz` beside the metrics.

Alive: the loop is within its step. A restart mends a node that is not. Ready: the node has joined, and the store has
responded to its last heartbeat. A restart does not mend a node that is not ready: its store may be away.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from holdfast.events import Event, Heartbeat, HeartbeatWithheld, NodeJoined, NodeLeft, SessionEnded, Unreachable

STORE = "store"


class Health:
    """Follows the events of one node. Thread-safe."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._hangs_in: str | None = None
        self._joined = False
        self._store_away: str | None = None
        self._usable_until: float | None = None
        self._lock = threading.Lock()

    def __call__(self, event: Event) -> None:
        """Note the event if it says something of the node."""
        with self._lock:
            if isinstance(event, Heartbeat):
                self._hangs_in = self._store_away = None
                self._joined, self._usable_until = True, self._clock() + event.usable_for
            elif isinstance(event, NodeJoined):
                self._joined, self._hangs_in, self._store_away = True, None, None
            elif isinstance(event, SessionEnded | NodeLeft):
                self._joined, self._usable_until = False, None
            elif isinstance(event, HeartbeatWithheld):
                self._hangs_in = event.step
            elif isinstance(event, Unreachable) and event.what == STORE:
                self._store_away = event.error

    def trouble(self) -> str | None:
        """Return why the node is not alive; None if it is. A node that starts or waits for a server is alive."""
        with self._lock:
            return None if self._hangs_in is None else f"the loop hangs in its step {self._hangs_in!r}"

    def not_ready(self) -> str | None:
        """Return why the node cannot work; None if it can."""
        if (trouble := self.trouble()) is not None:
            return trouble
        with self._lock:
            if not self._joined:
                return "the node has not joined"
            if self._store_away is not None:
                return f"the store does not respond: {self._store_away}"
            if self._usable_until is not None and self._clock() >= self._usable_until:
                return "the session was not renewed in time"
            return None

    @property
    def usable_for(self) -> float:
        """Seconds for which the node can rely on its session; 0 without one."""
        with self._lock:
            return 0.0 if self._usable_until is None else max(0.0, self._usable_until - self._clock())
