"""Where the queue of unassigned leases begins, as far as one process knows.

A claimed lease leaves a dead entry in the index, which stays there until the server vacuums the table. All of them are
at the head of the queue, and a claim that begins at the beginning walks over each one: within a minute of busy
claiming it takes several times as long. So a process that has claimed many goes on behind the last one. What comes to
lie before that place (a lease that was handed back, one whose time has come, one whose owner is gone) is found by
looking at the whole queue again: about once a second, and whenever nothing more is found.
"""

from __future__ import annotations

from typing import NamedTuple

from holdfast.leases.lease import FINISHED, Lease, Status

WORTH_REMEMBERING = 100
"""So many claims leave enough behind to be worth avoiding. Below that, every claim looks at everything."""
LOOK_EVERY, LOOK_EVERY_AT_LEAST = 1.0, 5.0
TIME_FOR_LOOKING = 0.05
"""Part of the time that a process may spend on looking at the whole queue."""


class Place(NamedTuple):
    """A place in the queue."""

    priority: int
    ordinal: int
    key: str


def _rank(place: Place) -> tuple[int, int, str]:
    return (-place.priority, place.ordinal, place.key)


class Head:
    """The head of the queue of one pipeline and run. Threads may share it: a wrong guess costs a look."""

    def __init__(self) -> None:
        self._place: Place | None = None
        self._claimed = 0
        self._look_at = 0.0

    def place(self, now: float) -> Place | None:
        """Behind which place to go on; None if it is time to look at everything."""
        return self._place if now < self._look_at and self._claimed >= WORTH_REMEMBERING else None

    def looked(self, number: int, last: Place | None, started: float, now: float) -> None:
        """A look at everything, begun at `started`, has taken so many leases; the last of them was there."""
        wait = min(max(LOOK_EVERY, (now - started) / TIME_FOR_LOOKING), LOOK_EVERY_AT_LEAST)
        self._look_at = now + wait
        self.went_on(number, last)

    def went_on(self, number: int, last: Place | None) -> None:
        """So many leases were taken behind the remembered place. None of them is unassigned: look next time."""
        self._claimed += number
        self._place = last

    def written(self, lease: Lease) -> None:
        """This process has written such a row: if it can be claimed before the remembered place, look next time."""
        if self._place is None or lease.status in FINISHED or lease.ownership.due_at is None:
            return
        order = lease.order
        place = Place(order.priority, order.ordinal, lease.key)
        if lease.status is not Status.UNASSIGNED or _rank(place) <= _rank(self._place):
            self._place = None
