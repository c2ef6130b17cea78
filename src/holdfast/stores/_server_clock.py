"""The time of a server that stamps its responses: S3 and DynamoDB with `Date` in whole seconds, files with mtime.

A stamp is never ahead of the server's clock when it arrives. The best bound of the last minutes is kept and carried on
by this host's monotonic clock: it is behind by less than a second at first, and by a round trip soon after. That is
exact enough for deciding when a row is due, but not whether a node is dead, see `holdfast.leases.session_watch`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from email.utils import parsedate_to_datetime
from typing import Any

WINDOW = 120.0
"""Seconds after which a bound expires: clocks drift, and clocks of servers are set."""


class ServerClock:
    """A lower bound of the server's clock. Several threads may use it."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._bounds: tuple[tuple[float, float], ...] = ()
        """Bounds in descending order: when each was learned, and how far the server is ahead of the local monotonic
        clock."""

    def hear(self, stamp: float) -> None:
        """Note that a response has just arrived, which the server stamped with this time."""
        now = self._monotonic()
        ahead = stamp - now
        newer = tuple(bound for bound in self._bounds if bound[0] > now - WINDOW and bound[1] > ahead)
        self._bounds = (*newer, (now, ahead))

    def hear_response(self, response: Mapping[str, Any]) -> None:
        """Note the `Date` of a botocore response that has just arrived; ignored if it cannot be read."""
        date = response.get("ResponseMetadata", {}).get("HTTPHeaders", {}).get("date")
        try:
            stamp = parsedate_to_datetime(date or "").timestamp()
        except ValueError:
            return
        self.hear(stamp)

    def now(self) -> float | None:
        """Seconds since 1970 by the server's clock; None if there was no recent stamp."""
        now, bounds = self._monotonic(), self._bounds
        usable = [ahead for learned, ahead in bounds if learned > now - WINDOW]
        return now + usable[0] if usable else None
