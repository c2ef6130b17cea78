"""Sessions in a store that has no clock: one has ended when it was watched for its whole timeout and did not move.

Only the observer's own clock is used, and only for how long it has watched; no two nodes' clocks are ever compared. A
node that comes new watches everybody for a whole timeout before it ends anybody.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from holdfast.leases.lease import Lease

LONGEST_GAP = 0.5
"""Between two looks at most this part of the timeout counts: a host that slept has not watched anybody meanwhile."""

UNREADABLE_TIMEOUT = 60.0
"""For a row that does not say how long its node may be silent."""


@dataclass(frozen=True, slots=True)
class _Watched:
    """What is known of one session: the version that it had, when it was last looked at, how long it was silent."""

    version: int
    looked_at: float
    silence: float = 0.0


class ObservedSessions:
    """What one node has seen of the sessions of its fleet. May be asked from several threads."""

    def __init__(self) -> None:
        self._watched: dict[str, _Watched] = {}

    def silent(self, sessions: Sequence[Lease], now: float) -> list[Lease]:
        """Of all live sessions as they are in the store, those that have been silent for their whole timeout.

        `now` is the observer's monotonic clock. What is not among `sessions` any more is forgotten. A row that was read
        late does no harm: whoever ends a session does so by its version.
        """
        before = self._watched
        after = {row.key: _looked(before.get(row.key), row, now) for row in sessions}
        self._watched = after
        return [row for row in sessions if after[row.key].silence >= timeout_of(row)]


def timeout_of(session: Lease) -> float:
    """How long this session may be silent, as its node has said with the last heartbeat."""
    said, due_at = session.progress.state, session.ownership.due_at
    if not isinstance(said, dict) or due_at is None:
        return UNREADABLE_TIMEOUT
    return max(0.0, due_at - float(said.get("last_heartbeat", due_at)))


def _looked(before: _Watched | None, row: Lease, now: float) -> _Watched:
    if before is None or before.version != row.version:
        return _Watched(row.version, now)
    gap = min(max(0.0, now - before.looked_at), LONGEST_GAP * timeout_of(row))
    return _Watched(row.version, now, before.silence + gap)
