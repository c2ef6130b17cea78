"""The node: the session of one process and the loops of its pipelines, from joining to leaving."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import suppress

from holdfast.errors import Interrupted, SessionExpired
from holdfast.flow.engine import Report, ReportsBatches
from holdfast.flow.loop import PipelineLoop
from holdfast.leases.keeper import Keeper
from holdfast.leases.session import Session
from holdfast.leases.source_coordinator import SourceCoordinator
from holdfast.leases.world import World

IDLE_WAIT = 0.5
BRIEF_WAIT = 0.05
"""Seconds between turns while discovery runs, leases are handed over or a run is made: work begins with the first."""
NOTICE = 1.2
"""Heartbeats after which every node has looked at the store once."""
MAX_NOTICE = 3.6
"""Seconds that other nodes have to notice that this one leaves, at most: it must leave before it is killed."""


class Companion(ABC):
    """Work beside the pipelines of a node that comes and goes, such as runs. Called by the node's thread."""

    @abstractmethod
    def turn(self) -> None:
        """Called with every turn of the node while its session is usable. Blocks only on the store."""

    @property
    def loops(self) -> Sequence[PipelineLoop]:
        """Loops that get a turn now, in addition to those of the node's pipelines."""
        return ()

    @property
    def finished(self) -> bool:
        """Whether the node may end when its pipelines are finished."""
        return True

    @property
    def eager(self) -> bool:
        """Whether its next turn should come soon, because it is about to find work."""
        return False

    def leave(self) -> None:
        """Hand back everything that is held, because the node leaves.

        Its loops have handed back their leases already.
        """


class Node:
    """Runs until its pipelines are finished or it is stopped. `run` is called once, by one thread."""

    def __init__(
        self,
        session: Session,
        loops: Sequence[PipelineLoop],
        engine: ReportsBatches,
        world: World,
        *,
        grace: float = 5.0,
        coordinators: Sequence[SourceCoordinator] = (),
        companions: Sequence[Companion] = (),
    ) -> None:
        """`grace`: seconds that running batches have to finish when the node is stopped.

        `coordinators` are those of sources: their leases are handed back too.
        """
        self._companions = companions
        self._session = session
        self._keeper = Keeper(session, world)
        self._loops = list(loops)
        self._engine = engine
        self._world = world
        self._grace = grace
        self._coordinators = coordinators
        self._stopping = False

    def stop(self) -> None:
        """Let the node finish or cancel running batches, hand back its leases and leave. Safe in a signal handler."""
        self._stopping = True

    def run(self) -> bool:
        """Join, work, leave. Returns True if all pipelines are finished, False if the node was stopped before.

        A node that stops hands its leases back. An error only ends the session: rows whose batch was out name the
        error, and their next owner counts a take-over, so that a partition that kills its nodes is not passed on for
        ever.
        """
        try:
            self._join()
            wait = 0.0
            while not self._stopping and not self.finished:
                self._turn(self._engine.poll(wait))
                wait = BRIEF_WAIT if self._eager else IDLE_WAIT
            self._finish_what_is_out()
            for loop in self._all_loops():
                loop.hand_back()
            for coordinator in self._coordinators:
                coordinator.give_up_all()
            for companion in self._companions:
                companion.leave()
            self._leave()
        except Interrupted:
            self._session.abandon()
        except Exception as error:
            self._accuse(str(error) or type(error).__name__)
            self._leave()
            raise
        finally:
            self._keeper.stop()
            self._engine.close()
        return self.finished

    @property
    def finished(self) -> bool:
        """Whether all pipelines are finished and no companion is still working."""
        return all(loop.finished for loop in self._loops) and all(beside.finished for beside in self._companions)

    @property
    def _eager(self) -> bool:
        is_found = any(loop.discovering or loop.eager for loop in self._loops)
        return is_found or any(companion.eager for companion in self._companions)

    def _all_loops(self) -> Sequence[PipelineLoop]:
        if not self._companions:
            return self._loops
        return [*self._loops, *(loop for companion in self._companions for loop in companion.loops)]

    def _turn(self, reports: Sequence[Report]) -> None:
        if not self._session.usable:
            self._rejoin()
            return
        for companion in self._companions:
            companion.turn()
        for loop in self._all_loops():
            loop.turn(reports, self._keeper.step)
        # Another pipeline comes first next time, or the first one would take all the room of the engine.
        self._loops = self._loops[1:] + self._loops[:1]

    def _join(self) -> None:
        self._session.join()
        self._keeper.step("join", self._session.timing.timeout)
        self._keeper.start()

    def _rejoin(self) -> None:
        """Drop all leases and join again, because other nodes may have ended this session."""
        former = self._session.id
        self._keeper.stop()  # the thread that kept the former session must not renew the new one
        self._session.tell_ended(former, self._keeper.hindrance)
        for loop in self._all_loops():
            loop.abandon()
        # The process lives: no node needs to wait for what its former session owns, and no take-over counts.
        for coordinator in self._coordinators:
            coordinator.give_up_all()
        self._join()
        for loop in self._all_loops():
            loop.release_former(former)

    def _accuse(self, reason: str) -> None:
        """Record in the rows of running batches why this node ends, as one of them may be the reason."""
        with suppress(Exception):  # the store may be the reason: the next owner only knows that this node has ended
            for loop in self._all_loops() if self._session.usable else ():
                loop.accuse(reason)

    def _leave(self) -> None:
        self._keeper.stop()
        try:
            self._session.leave()
        except Interrupted:
            self._session.abandon()

    def _finish_what_is_out(self) -> None:
        self._session.drain()
        if any(loop.hands_over for loop in self._all_loops()):
            self._let_others_notice()
        give_up_at = self._world.clock.monotonic() + self._grace
        for loop in self._all_loops():
            loop.drain()
        while self._session.usable and any(loop.busy for loop in self._all_loops()):
            if self._world.clock.monotonic() >= give_up_at:
                return
            self._turn(self._engine.poll(IDLE_WAIT / 5))

    def _let_others_notice(self) -> None:
        """Keep working until the other nodes know that this one leaves: then they take its leases without delay."""
        for loop in self._all_loops():
            loop.take_no_more()
        with suppress(SessionExpired):  # the session is not usable any more
            self._session.announce()
        until = self._world.clock.monotonic() + min(NOTICE * self._session.timing.heartbeat, MAX_NOTICE)
        while self._session.usable and self._world.clock.monotonic() < until:
            self._turn(self._engine.poll(IDLE_WAIT / 5))
