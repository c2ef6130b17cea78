"""What nodes may say of their sessions: each end once, of a session of their own, and of none that goes on."""

from __future__ import annotations

from collections.abc import Callable

from holdfast.events import Event, Heartbeat, NodeJoined, NodeLeft, SessionEnded


class SessionEvents:
    """Hears the events of all nodes."""

    def __init__(self, fail: Callable[[str], None]) -> None:
        self._fail = fail
        self._ended: set[str] = set()
        self._rules: dict[type[Event], Callable[[str, str], None]] = {
            NodeJoined: self._require_not_over,
            Heartbeat: self._require_not_over,
            SessionEnded: self._end,
            NodeLeft: self._end,
        }

    def heard(self, host: str, event: Event) -> None:
        """A process has said this."""
        rule = self._rules.get(type(event))
        if rule is not None:
            rule(host, event.session)  # type: ignore[attr-defined]

    def _require_not_over(self, host: str, session: str) -> None:
        if session in self._ended:
            self._fail(f"{host} has said that {session} ended, and goes on with it")

    def _end(self, host: str, session: str) -> None:
        if not session.startswith(f"{host}:"):
            self._fail(f"{host} says that {session} has ended, which is another's")
        if session in self._ended:
            self._fail(f"{host} says twice that {session} has ended")
        self._ended.add(session)
