"""A node without the loop: it keeps a session and takes turns. For what lies beside batches and sinks."""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial

from holdfast.errors import Interrupted, LeaseLost, SessionExpired, StoreUnavailable
from holdfast.leases import transitions
from holdfast.leases.coordinator import Coordinator
from holdfast.leases.keeper import Keeper
from holdfast.leases.lease import Counts, Lease, Status
from holdfast.leases.session import NodeInfo, Session, SessionTiming
from holdfast.leases.transitions import Advance
from tests.simulation.host import Host
from tests.simulation.oracle import PIPELINE
from tests.simulation.scenario import Knobs
from tests.simulation.session_rules import NODES
from tests.simulation.store import StoreClient


def session_of(name: str, host: Host, store: StoreClient, knobs: Knobs) -> Session:
    """A node's presence, with the timing of its world."""
    timing = SessionTiming(knobs.ttl, knobs.heartbeat, knobs.ttl / 10)
    return Session(store, host.world, NODES, NodeInfo(name, host.name, (PIPELINE,)), timing)


class Worker:
    """Takes turns under a session until it is asked to stop; joins again when its session was ended."""

    def __init__(self, host: Host, session: Session, knobs: Knobs) -> None:
        self.host = host
        self.session = session
        self.knobs = knobs
        self.stopping = False

    def stop(self) -> None:
        self.stopping = True

    def run(self) -> None:
        while not self.stopping:
            self.session.join()
            keeper = Keeper(self.session, self.host.world)
            keeper.start()
            self.begin()
            while self.session.usable and not self.stopping:
                keeper.step("turn", self.knobs.step_limit)
                self._take_turn()
                self.host.wait(self._pause())
            keeper.stop()
        try:
            self.end()
            self.session.leave()
        except (StoreUnavailable, SessionExpired, Interrupted):
            return

    def _pause(self) -> float:
        # Once nothing goes wrong any more, few turns will do.
        return self.knobs.heartbeat * (self.host.kernel.random() if self.host.faults.active else 1.5)

    def _take_turn(self) -> None:
        try:
            self.turn()
        except StoreUnavailable:
            self.host.kernel.note(self.host.name, "the store is away")

    def begin(self) -> None:
        """A new session: nothing of the old one counts."""

    def turn(self) -> None:
        """One pass. May raise `StoreUnavailable`."""

    def end(self) -> None:
        """Before the session is left."""


class Hands:
    """The leases of one coordinator in a worker's hands, worked off item by item."""

    def __init__(
        self,
        leases: Coordinator,
        items: Callable[[Lease], int],
        works: Callable[[Lease], None],
        bad: Collection[str] = (),
    ) -> None:
        """`items`: how many a partition has; `bad`: which ones fail. `works` is called before work under a lease."""
        self.leases = leases
        self.held: dict[str, Lease] = {}
        self._items = items
        self._works = works
        self._bad = bad

    def take(self, room: int) -> None:
        """Claim, and find again what a lost answer left with this session."""
        self.leases.sweep()
        for lease in self.leases.claim(room):
            self.held[lease.key] = lease
        unknown = [row for row in self.leases.owned() if row.key not in self.held]
        for lease in self.leases.adopt(unknown):
            self.held[lease.key] = lease

    def step(self) -> None:
        """One item of each partition; one that is through is complete."""
        for lease in list(self.held.values()):
            self._works(lease)
            (result,) = self.leases.write([lease], partial(self._next, lease))
            if isinstance(result, LeaseLost) or result.status is not Status.ASSIGNED:
                del self.held[lease.key]
            else:
                self.held[lease.key] = result

    def _next(self, planned: Lease, row: Lease, now: float) -> Lease:
        if row.key in self._bad:
            return transitions.halt(row, "nobody can read it", now)
        position = planned.progress.position or 0
        if position >= self._items(row):
            return transitions.complete(row, now)
        advance = Advance(f"{self.leases.run}/{row.key}@{position}", position + 1, {}, Counts(1, 1))
        return transitions.commit(row, advance, planned, now)

    def release(self) -> None:
        """Hand back everything."""
        self.leases.release(list(self.held.values()))
        self.held.clear()

    def release_all(self) -> None:
        """Hand back everything, also what a lost answer left with this session."""
        for row in self.leases.owned():
            self.held.setdefault(row.key, row)
        if self.held:
            self.release()
