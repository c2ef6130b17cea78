"""What the source `kafka` tells people of its partitions, each thing once, or again after a while if it goes on."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime

from holdfast.events import Event, LagMeasured, Notice, RecordsLost, TopicDenied, WaitsBehindTransaction
from holdfast.leases.lease import Lease

TELL_EVERY = 60.0
"""Seconds until an open transaction is told of, and until what goes on is told of again."""


class Telling:
    """Of one node. `now` is seconds since 1970."""

    def __init__(self, tell: Callable[[Event], None], now: Callable[[], float]) -> None:
        self._tell = tell
        self._now = now
        self._told_at: dict[tuple[type[Event], str], float] = {}
        self._told_lost: set[tuple[str, int]] = set()
        self._told_deleted: set[str] = set()

    def lag(self, lease: Lease, records: int, seconds: float | None, kept: float | None) -> None:
        self._told_deleted.discard(lease.key)
        self._tell(LagMeasured(lease.pipeline, lease.key, max(records, 0), seconds, kept))

    def lost(self, lease: Lease, start: int, end: int) -> None:
        """Offsets from `start` up to `end` are gone before they were read."""
        if (lease.key, end) not in self._told_lost:
            self._told_lost.add((lease.key, end))
            self._tell(RecordsLost(lease.pipeline, lease.key, start, end))

    def deleted(self, lease: Lease, position: int | None) -> None:
        """Its topic was deleted, and nothing is known to be lost by that."""
        if lease.key not in self._told_deleted:
            self._told_deleted.add(lease.key)
            read = "nothing of it was ever seen"
            if position is not None:
                read = f"everything that was seen of it, up to offset {position}, has been read"
            self._tell(Notice(f"the topic of {lease.key} was deleted; {read}"))

    def denied(self, lease: Lease, error: str) -> None:
        if self._is_due(TopicDenied, lease):
            self._tell(TopicDenied(lease.pipeline, lease.key, error))

    def transaction(self, lease: Lease, offset: int, stood: float, waited: float) -> None:
        """Everything that can be read is read, for `stood` seconds, and records wait behind an open transaction."""
        if stood >= TELL_EVERY and self._is_due(WaitsBehindTransaction, lease):
            since = datetime.fromtimestamp(self._now() - waited, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
            self._tell(WaitsBehindTransaction(lease.pipeline, lease.key, offset, since, round(waited, 1)))

    def _is_due(self, kind: type[Event], lease: Lease) -> bool:
        now = self._now()
        if now < self._told_at.get((kind, lease.key), -TELL_EVERY) + TELL_EVERY:
            return False
        self._told_at[kind, lease.key] = now
        return True
