"""What must be true of sessions, and of leases whose owner is gone, seen in rows as they are written."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping

from holdfast.leases.lease import Key, Lease, Status
from tests.simulation.host import Host

NODES = "$nodes"
FASTEST_CLOCK = 1.11
"""How much faster than virtual time a node's clock may run, with a little to spare."""


class SessionRules:
    """Judges rows of sessions and who is taken for dead. `fail` gets the first violation."""

    def __init__(self, rows: Callable[[], Mapping[Key, Lease]], fail: Callable[[str], None]) -> None:
        self.heartbeat = 0.0
        """Seconds between two heartbeats, by the node's clock; 0 while nobody has said so."""
        self.ends_by_clock = True
        """Whether the store has a clock, by which sessions end."""
        self._early: Counter[str] = Counter()
        """How often each session was renewed too soon."""
        self._in_time: dict[str, float] = {}
        """When each session was last renewed in time."""
        self._rows = rows
        self._fail = fail

    def session_written(self, before: Lease, row: Lease, sender: Host, now: float) -> None:
        """The store has accepted this row of a session in place of the other, at that time of its clock."""
        if before.status is Status.COMPLETED:
            self._fail(f"session {row.key} had ended and was written again")
        if row.status is Status.COMPLETED:
            due_at = before.ownership.due_at
            by_another = not row.key.startswith(f"{sender.name}:")
            if by_another and self.ends_by_clock and due_at is not None and now < due_at:
                self._fail(f"session {row.key} was ended by {sender.name} {due_at - now:.3f} s before its time")
        elif not sender.asked_to_stop:
            self._require_pace(before, row)

    def _require_pace(self, before: Lease, row: Lease) -> None:
        was, now = before.progress.state, row.progress.state
        if now["counter"] > was["counter"] and self.heartbeat:
            pause = now["last_heartbeat"] - self._in_time.setdefault(row.key, was["last_heartbeat"])
            if pause >= self.heartbeat / FASTEST_CLOCK:
                self._in_time[row.key] = now["last_heartbeat"]
                return
            self._early[row.key] += 1
            # One may come from the shift that kept the session before, which ends when it looks.
            if self._early[row.key] > 1:
                self._fail(f"session {row.key} was renewed after {pause:.3f} s of {self.heartbeat:.3f} s")

    def lease_written(self, before: Lease, row: Lease, sender: Host) -> None:
        """A lease may be made claimable in its owner's place only when the owner's session has ended."""
        if before.ownership.due_at is not None or row.ownership.due_at is None:
            return
        if before.owner is None or row.owner != before.owner or row.token != before.token:
            return
        session = self._rows().get(Key(NODES, "", str(before.owner)))
        if session is not None and session.status is Status.ASSIGNED:
            self._fail(f"{row.key}: {sender.name} takes its owner {before.owner} for dead, whose session lives")
