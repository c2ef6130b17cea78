"""What the threads of one session have in hand, so that a lease which a lost answer left with the session is told from
one that another thread has just taken: the store knows sessions, not threads.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable

from holdfast.leases.lease import Lease
from holdfast.leases.world import World

MOST_GONE = 1000
"""Leases that were let go and are remembered, for reads of the store that were under way meanwhile."""


class Hands:
    """Leases of one pipeline and run in the hands of one session's threads, by key and token. Any thread may ask."""

    def __init__(self, world: World) -> None:
        self._lock = world.lock()
        self._held: set[tuple[str, int]] = set()
        self._gone: deque[tuple[str, int]] = deque(maxlen=MOST_GONE)
        self._claims_under_way = 0

    def claimed(self, claim: Callable[[], list[Lease]]) -> list[Lease]:
        """What the claim took; it is in the caller's hands now."""
        with self._lock:
            self._claims_under_way += 1
        taken: list[Lease] = []
        try:
            taken = claim()
        finally:
            with self._lock:
                self._claims_under_way -= 1
                self._held.update(map(_id, taken))
        return taken

    def left_over(self, owned: Callable[[], Iterable[Lease]]) -> list[Lease]:
        """Of what the session owns, at most one lease that no thread has in hand; it is in the caller's hands now.

        None while a claim is under way: what it takes shows in the store before its thread hears of it.
        """
        if self._is_unclear():
            return []
        rows = owned()
        with self._lock:
            left = [] if self._is_unclear() else [row for row in rows if self._is_nobodys(row)][:1]
            self._held.update(map(_id, left))
        return left

    def _is_unclear(self) -> bool:
        return self._claims_under_way > 0

    def _is_nobodys(self, row: Lease) -> bool:
        return _id(row) not in self._held and _id(row) not in self._gone

    def let_go(self, lease: Lease) -> None:
        """The lease is in nobody's hands any more: it was written so, or is lost."""
        with self._lock:
            self._held.discard(_id(lease))
            self._gone.append(_id(lease))


def _id(lease: Lease) -> tuple[str, int]:
    return lease.key, lease.token
