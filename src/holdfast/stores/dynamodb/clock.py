"""The time of a server that only tells it in whole seconds, with each of its answers.

An answer's `Date` is never ahead of the server's clock. The best bound of the last minutes is kept and carried on by
this host's own monotonic clock: it is behind by less than a second at first, and by a round trip soon after. That is
good enough to tell when a sleeping row is due. Whether a node is dead is decided otherwise, see
`holdfast.leases.observed`.
"""

from __future__ import annotations

import time
from email.utils import parsedate_to_datetime

WINDOW = 120.0
"""Seconds after which a bound is too old to trust: clocks do not run equally fast."""


class ServerClock:
    """What the server's clock shows at least. May be used by several threads."""

    def __init__(self) -> None:
        self._bounds: tuple[tuple[float, float], ...] = ()
        """Pairs of when it was learned and how far the server is ahead of our monotonic clock; ever lower ones."""

    def heard(self, date: str | None) -> None:
        """An answer with this `Date` header has come just now."""
        try:
            told = parsedate_to_datetime(date or "").timestamp()
        except ValueError:
            return
        now = time.monotonic()
        ahead = told - now
        newer = tuple(bound for bound in self._bounds if bound[0] > now - WINDOW and bound[1] > ahead)
        self._bounds = (*newer, (now, ahead))

    def now(self) -> float | None:
        """Seconds since 1970; None if the server has said nothing of late."""
        now, bounds = time.monotonic(), self._bounds
        usable = [ahead for learned, ahead in bounds if learned > now - WINDOW]
        return now + usable[0] if usable else None
