"""Watching sessions in a store without a clock: a session has ended when its row did not change for its whole timeout.

Only the observer's own clock is used, to measure how long it has watched; no two nodes' clocks are ever compared. A
node that has just joined watches each session for a whole timeout before it ends it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from holdfast.leases.lease import Lease

LONGEST_GAP = 0.5
"""Maximum part of the timeout that counts between two observations: a suspended host observes nothing."""

UNREADABLE_TIMEOUT = 60.0
"""Seconds; the timeout of a session whose row has none that can be read."""


@dataclass(frozen=True, slots=True)
class _Watched:
    """One session: its version, when it was last observed, and for how long it was silent."""

    version: int
    looked_at: float
    silence: float = 0.0


class SessionWatch:
    """One node's observations of the sessions of its fleet. Thread-safe."""

    def __init__(self) -> None:
        self._watched: dict[str, _Watched] = {}

    def silent(self, sessions: Sequence[Lease], now: float) -> list[Lease]:
        """Of all live sessions in the store, those that have been silent for their whole timeout.

        `now` is the observer's monotonic clock. Sessions that are missing from `sessions` are forgotten. A row that was
        read late does no harm: a session is ended only if its row still has the version that was read.
        """
        before = self._watched
        after = {row.key: _looked(before.get(row.key), row, now) for row in sessions}
        self._watched = after
        return [row for row in sessions if after[row.key].silence >= timeout_of(row)]


def timeout_of(session: Lease) -> float:
    """How long this session may be silent, as of its last heartbeat."""
    info, due_at = session.progress.state, session.ownership.due_at
    if not isinstance(info, dict) or due_at is None:
        return UNREADABLE_TIMEOUT
    return max(0.0, due_at - float(info.get("last_heartbeat", due_at)))


def _looked(before: _Watched | None, row: Lease, now: float) -> _Watched:
    if before is None or before.version != row.version:
        return _Watched(row.version, now)
    gap = min(max(0.0, now - before.looked_at), LONGEST_GAP * timeout_of(row))
    return _Watched(row.version, now, before.silence + gap)
