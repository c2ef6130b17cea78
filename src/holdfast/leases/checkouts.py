"""Checkouts: which leases of a session its threads work on.

Rows of the store name sessions, not threads. A lease that a lost response has left with the session must not be
mistaken for a lease that another thread of the same session has just taken.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable

from holdfast.leases.lease import Lease
from holdfast.leases.world import World

RETURNED = 1000
"""Leases that were checked in and are remembered, for reads of the store that were under way meanwhile."""


class Checkouts:
    """Leases of one pipeline and run that threads of one session have checked out, by key and token. Thread-safe."""

    def __init__(self, world: World) -> None:
        self._lock = world.lock()
        self._held: set[tuple[str, int]] = set()
        self._returned: deque[tuple[str, int]] = deque(maxlen=RETURNED)
        self._claims_under_way = 0

    def check_out(self, claim: Callable[[], list[Lease]]) -> list[Lease]:
        """Run the claim and check out the leases that it took."""
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

    def check_out_left_over(self, owned: Callable[[], Iterable[Lease]]) -> list[Lease]:
        """Check out a lease that the session owns and no thread has; at most one.

        None while a claim is in progress: the store shows its leases before its thread gets the response.
        """
        if self._is_unclear():
            return []
        rows = owned()
        with self._lock:
            left = [] if self._is_unclear() else [row for row in rows if self._is_left_over(row)][:1]
            self._held.update(map(_id, left))
        return left

    def _is_unclear(self) -> bool:
        return self._claims_under_way > 0

    def _is_left_over(self, row: Lease) -> bool:
        return _id(row) not in self._held and _id(row) not in self._returned

    def check_in(self, lease: Lease) -> None:
        """Note that no thread works on the lease any more: a write has ended it, or it is lost."""
        with self._lock:
            self._held.discard(_id(lease))
            self._returned.append(_id(lease))


def _id(lease: Lease) -> tuple[str, int]:
    return lease.key, lease.token
