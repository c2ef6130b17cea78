"""The pace of a node: how many records per second it may read, and how fast it is.

Records that were read leave a debt of time behind; no round begins before it is paid. The rate may be changed at any
time, and holds from the next round on.
"""

from __future__ import annotations

from holdfast.leases.world import Clock

UNBOUNDED = 1_000_000


class Pace:
    """The pace of one pipeline or run on one node. Called by the loop's thread."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._paid_at = 0.0
        self._since = clock.monotonic()
        self._records = 0
        self.limit: float | None = None
        """Records per second; None: no limit."""
        self.most_leases = UNBOUNDED
        """How many leases the node holds at most, so that the last ones are shared."""

    @property
    def rate(self) -> float:
        """Records per second that the node has read since it began."""
        return self._records / max(1.0, self._clock.monotonic() - self._since)

    @property
    def allows(self) -> bool:
        """Whether a round may begin now."""
        return self.limit is None or self._clock.monotonic() >= self._paid_at

    def learn(self, records: int) -> None:
        """Note that so many records were read."""
        self._records += records
        if self.limit is not None:
            self._paid_at = max(self._paid_at, self._clock.monotonic()) + records / self.limit
