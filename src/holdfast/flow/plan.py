"""Plan: ask the source where the next batch of each lease ends, and see to those that have none."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.errors import BatchError, BeyondRepair, Halt, LeaseLost, Unavailable
from holdfast.events import Unreachable
from holdfast.flow.apart import call_apart, described
from holdfast.flow.batch import Close, Cut, Done, Limits, Plan, Wait
from holdfast.flow.commit import Committer
from holdfast.flow.holdings import Held, Holdings
from holdfast.flow.pipeline import ReportsEvents
from holdfast.flow.source import AfterPublish, Source
from holdfast.leases import transitions
from holdfast.leases.coordinator import Coordinator

SOURCE_PAUSE = 5.0


class Planner:
    """Plans the batches of one pipeline's holdings."""

    def __init__(
        self, coordinator: Coordinator, source: Source, committer: Committer, holdings: Holdings, limits: Limits
    ) -> None:
        self._coordinator = coordinator
        self._world = coordinator.world
        self._source = source
        self._committer = committer
        self._holdings = holdings
        self._limits = limits

    def plan(self, idle: Sequence[Held]) -> list[tuple[Held, Cut]]:
        """The next batch of each lease that has one; the others wait, sleep, are complete, or count an attempt.

        An error that the source raises for one partition is an attempt of that partition.
        """
        try:
            plans = call_apart(self._ask, idle, Unavailable)
        except Unavailable as away:
            self.put_off(idle, "source", away)
            return []
        self._complete([held for held, plan in zip(idle, plans, strict=True) if isinstance(plan, Done)])
        for event in self._source.noticed() if isinstance(self._source, ReportsEvents) else ():
            self._world.emit(event)
        return [
            (held, plan)
            for held, plan in zip(idle, plans, strict=True)
            if self._worth_reading(held, plan) and isinstance(plan, Cut)
        ]

    def _ask(self, idle: Sequence[Held]) -> Sequence[Plan]:
        return self._source.plan([held.lease for held in idle], self._limits)

    def is_at(self, generation: int | None, held: Held) -> bool:
        """Whether batches of this lease belong to that generation; the row is switched to it where that is allowed."""
        present = held.lease.commit.generation
        if present == generation:
            return True
        if generation is None or present > generation:
            self._committer.hand_back_later(held, self._coordinator.session.timing.timeout)
            return False
        (result,) = self._coordinator.write(
            [held.lease], lambda row, now: transitions.switch_generation(row, generation, now)
        )
        if isinstance(result, LeaseLost):
            self._holdings.drop(held)
            return False
        held.lease = result
        return True

    def put_off(self, helds: Sequence[Held], what: str, away: Exception) -> None:
        """Something outside does not answer: leave these alone for a while."""
        pause = self._world.jittered(SOURCE_PAUSE)
        self._world.emit(Unreachable(what, str(away), pause, self._coordinator.pipeline))
        for held in helds:
            held.put_off(self._world.clock.monotonic() + pause)

    def _worth_reading(self, held: Held, plan: Plan | Exception) -> bool:
        if isinstance(plan, Halt):
            self._coordinator.halt(held.lease, str(plan), plan.lost)
            self._holdings.drop(held)
        elif isinstance(plan, BatchError):
            self._committer.count_attempt(held, str(plan), last=isinstance(plan, BeyondRepair))
        elif isinstance(plan, Exception):
            self._committer.count_attempt(held, f"its batch could not be planned: {described(plan)}")
        elif isinstance(plan, Close):
            self._committer.close(held, plan)
        elif isinstance(plan, Wait):
            held.put_off(self._world.clock.monotonic() + plan.seconds)
        return isinstance(plan, Cut)

    def _complete(self, done: Sequence[Held]) -> None:
        troubles: Sequence[Exception | None] = [None] * len(done)
        source = self._source
        if isinstance(source, AfterPublish):
            troubles = call_apart(lambda some: source.after_publish([held.lease for held in some]), done)
        for held, trouble in zip(done, troubles, strict=True):
            if trouble is not None:
                self.put_off([held], "source", trouble)
        self._committer.complete(*(held for held, trouble in zip(done, troubles, strict=True) if trouble is None))
