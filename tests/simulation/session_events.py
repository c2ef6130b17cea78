"""What nodes may say of their sessions: each end once, of a session of their own, and of none that goes on."""

from __future__ import annotations

from collections.abc import Callable

from holdfast.events import Event, Heartbeat, NodeJoined, NodeLeft, SessionEnded


class SessionEvents:
    """Hears the events of all nodes."""

    def __init__(self, fail: Callable[[str], None]) -> None:
        self._fail = fail
        self._ended: set[str] = set()

    def heard(self, host: str, event: Event) -> None:
        """A process has said this."""
        if isinstance(event, NodeJoined | Heartbeat):
            self._require_not_over(host, event.session)
        elif isinstance(event, SessionEnded | NodeLeft):
            self._require_own_and_new(host, event.session)
            self._ended.add(event.session)

    def _require_not_over(self, host: str, session: str) -> None:
        if session in self._ended:
            self._fail(f"{host} has said that {session} ended, and goes on with it")

    def _require_own_and_new(self, host: str, session: str) -> None:
        if not session.startswith(f"{host}:"):
            self._fail(f"{host} says that {session} has ended, which is another's")
        if session in self._ended:
            self._fail(f"{host} says twice that {session} has ended")
