"""The keeper renews a node's session while its loop makes progress, and stops renewing when it does not.

The loop declares each step with a limit. Past that limit the keeper withholds the heartbeat: a loop that hangs must
lose its leases, or its node would seem alive and keep its partitions for ever. A running Spark job is not a step.
"""

from __future__ import annotations

from holdfast.errors import Interrupted, SessionExpired, StoreError
from holdfast.events import HeartbeatWithheld
from holdfast.leases.session import Session
from holdfast.leases.world import World

SPREAD = 0.1
"""Part of a heartbeat that is added at random, so that nodes do not write in step; never subtracted: writes cost."""

NO_RESPONSE = "the store did not respond to its heartbeat in time"
STOOD_STILL = "no heartbeat was sent in time: the process or its host stood still"


class Keeper:
    """Runs beside the loop, on a thread of its own, from `start` to `stop`."""

    def __init__(self, session: Session, world: World) -> None:
        self._session = session
        self._world = world
        self._step = ("start", world.clock.monotonic() + session.timing.timeout)
        self._shift = 0
        self.hindrance = STOOD_STILL
        """Why the session was not renewed in time, if it was not."""

    def start(self) -> None:
        """Begin to renew. Call after the session has joined; the thread of an earlier `start` ends on its own."""
        self._shift += 1
        shift, session = self._shift, self._session.id
        self.hindrance = STOOD_STILL
        self._world.spawn(lambda: self._run(shift, session))

    def stop(self) -> None:
        """Stop renewing; a heartbeat that was already sent may still be applied. Does not block; may be repeated."""
        self._shift += 1

    def step(self, name: str, limit: float) -> None:
        """The loop begins this step now and expects to end it within `limit` seconds. Does not block."""
        self._step = (name, self._world.clock.monotonic() + limit)

    def _run(self, shift: int, session: str) -> None:
        try:
            while self._renews_after_a_while(shift):
                self.hindrance = NO_RESPONSE
                self._session.heartbeat()
                self.hindrance = STOOD_STILL
        except Interrupted:
            return
        except (SessionExpired, StoreError) as ended:
            self._session.tell_ended(session, str(ended))

    def _renews_after_a_while(self, shift: int) -> bool:
        while shift == self._shift:
            self._world.clock.wait(self._session.timing.heartbeat * (1 + SPREAD * self._world.dice.random()))
            if shift == self._shift and not self._withheld():
                return True
        return False

    def _withheld(self) -> bool:
        name, deadline = self._step
        late = self._world.clock.monotonic() - deadline
        if late <= 0:
            return False
        self.hindrance = f"its heartbeat was withheld because the step {name!r} took longer than its limit"
        self._world.emit(HeartbeatWithheld(self._session.id, name, late))
        return True
