"""The watchdog: how long a batch may be out before it is cancelled and counts an attempt."""

from __future__ import annotations

from holdfast.flow.holdings import Held, Holdings
from holdfast.leases.world import Clock


class Watchdog:
    """Of one pipeline on one node."""

    def __init__(self, clock: Clock, holdings: Holdings, timeout: float) -> None:
        self._clock = clock
        self._holdings = holdings
        self._timeout = timeout

    @property
    def reason(self) -> str:
        """Why a batch is cancelled."""
        return f"the batch took longer than {self._timeout:g} s"

    def deadline(self) -> float:
        """Of a batch that has just given a sign of life."""
        return self._clock.monotonic() + self._timeout

    def deadline_of_a_round(self) -> float:
        """Of one that is sent now: as long again where another is out, to which the engine gives the cores first."""
        is_second = any(held.batch is not None for held in self._holdings)
        return self.deadline() + (self._timeout if is_second else 0.0)

    def overdue(self) -> list[Held]:
        now = self._clock.monotonic()
        return self._holdings.where(lambda held: held.batch is not None and held.cancel_at <= now)
