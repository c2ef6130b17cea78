"""Plan: where the next batch of each lease ends, and which batches one job carries.

Partitions that may have killed their node run apart from the others: in groups of half a round, and of half as many
each time that the node of a group dies, so that the culprit is found in a few jobs and not in one for each suspect. A
partition that has a single take-over left runs alone. While such a group runs, no other batch of the pipeline runs on
its node; otherwise a partition could be halted for a crash that another one caused. A partition whose own batch has
failed runs alone in its round.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import TypeAlias

from holdfast.errors import BatchError, BeyondRepair, Halt, LeaseLost, Unavailable
from holdfast.events import BatchCancelled, RoundSubmitted
from holdfast.flow.batch import Batch, Close, Cut, Done, Limits, Plan, Wait
from holdfast.flow.commit import Committer
from holdfast.flow.engine import Advanced, Engine, Report, Staged
from holdfast.flow.holdings import SUSPECT_AFTER_TAKEOVERS, Capacity, Held, Holdings
from holdfast.flow.pipeline import ReportsEvents, TimedStep, call_isolated, describe, reported
from holdfast.flow.source import AfterPublish, Source, SplitsPartitions, StagingListener
from holdfast.flow.splitting import Splitter
from holdfast.leases import transitions
from holdfast.leases.coordinator import Coordinator
from holdfast.leases.lease import History
from holdfast.leases.transitions import RetryLimits
from holdfast.leases.writes import Change

Planned: TypeAlias = tuple[Held, Cut]


class Planner:
    """Plans the batches of one pipeline's holdings and sends them off in rounds."""

    def __init__(
        self,
        coordinator: Coordinator,
        source: Source,
        holdings: Holdings,
        *,
        committer: Committer,
        rounds: Rounds,
        capacity: Capacity,
        limits: Limits,
    ) -> None:
        self._coordinator = coordinator
        self._world = coordinator.world
        self._source = source
        self._holdings = holdings
        self._listener = source if isinstance(source, StagingListener) else None
        self._reporter = source if isinstance(source, ReportsEvents) else None
        self._splitter: Splitter | None = None
        if isinstance(source, SplitsPartitions):
            self._splitter = Splitter(coordinator, source, holdings)
        self._committer = committer
        self._rounds = rounds
        self._capacity = capacity
        self._limits = limits

    def learn(self, reports: Sequence[Report]) -> None:
        """Process reports: a sign of life postpones its batch's deadline; the source is notified of staged batches."""
        source = self._listener
        for report in reports:
            held = self._holdings.carrying(report.batch_id)
            if held is None or held.batch is None:
                continue
            if isinstance(report, Advanced):
                held.cancel_at = self._rounds.deadline()
            elif source is not None and isinstance(report, Staged):
                with reported(self._world.emit, f"{self._coordinator.pipeline}: `staged` of the source"):
                    source.staged(held.batch, report.end, report.counts.processed, report.size)

    def plan_rounds(self, generation: int | None) -> None:
        """Plan idle leases and send as many rounds as the engine has room for; the rest is planned again later.

        Before that, leases are split or handed back if other nodes could do more of the work.
        """
        if self._splitter is not None:
            self._splitter.turn(has_room=self._rounds.has_room)
        if not self._rounds.has_room or not self._capacity.may_begin:
            return
        now = self._world.clock.monotonic()
        ready = self._holdings.ready(now, lambda held: held.admitted and held.batch is None)
        if gone := [held for held in ready if held.gone]:
            self._rebuild(gone, generation)
            ready = [held for held in ready if self._holdings.get(held.lease.key) is held]
        idle = [held for held in ready if not held.pending and held.hand_to is None and self.is_at(generation, held)]
        if idle:
            most = self._capacity.round_size
            self._rounds.send(self.plan(idle)[:most], most)
        else:
            self._emit_noticed()

    def _rebuild(self, gone: Sequence[Held], generation: int | None) -> None:
        """Stage again the pending commits whose staged data is gone."""
        ranges = ((held, self._committer.range_to_rebuild(held, generation)) for held in gone)
        self._rounds.send([(held, cut) for held, cut in ranges if cut is not None], self._capacity.round_size)

    def plan(self, idle: Sequence[Held]) -> list[Planned]:
        """The next batch of each lease that has one; the others wait, are closed or complete, or have a failed attempt.

        An error that the source raises for one partition is an attempt of that partition.
        """
        try:
            with TimedStep(self._world, self._coordinator.pipeline, "plan"):
                plans = call_isolated(self._ask, idle, Unavailable)
        except Unavailable as away:
            self._committer.put_off(idle, "source", away)
            return []
        if done := [held for held, plan in zip(idle, plans, strict=True) if isinstance(plan, Done)]:
            self._complete(done)
        # Before partitions are halted: what is reported of one afterwards would stay for ever, such as its lag.
        self._emit_noticed()
        return [
            (held, plan)
            for held, plan in zip(idle, plans, strict=True)
            if self._worth_reading(held, plan) and isinstance(plan, Cut)
        ]

    def _emit_noticed(self) -> None:
        for event in self._reporter.noticed() if self._reporter else ():
            self._world.emit(event)

    def _ask(self, idle: Sequence[Held]) -> Sequence[Plan]:
        return self._source.plan([held.lease for held in idle], self._limits)

    def is_at(self, generation: int | None, held: Held) -> bool:
        """Whether batches of this lease belong to that generation; switches the row to it if that is allowed."""
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

    def _worth_reading(self, held: Held, plan: Plan | Exception) -> bool:
        if isinstance(plan, Cut):
            return True
        if isinstance(plan, Halt):
            self._coordinator.halt(held.lease, str(plan), plan.lost)
            self._holdings.drop(held)
        elif isinstance(plan, BatchError):
            self._committer.count_attempt(held, str(plan), last=isinstance(plan, BeyondRepair))
        elif isinstance(plan, Exception):
            self._committer.count_attempt(held, f"its batch could not be planned: {describe(plan)}")
        elif isinstance(plan, Close):
            self._committer.close(held, plan)
        elif isinstance(plan, Wait):
            held.put_off(self._world.clock.monotonic() + plan.seconds)
        return False

    def _complete(self, done: Sequence[Held]) -> None:
        errors: Sequence[Exception | None] = [None] * len(done)
        source = self._source
        if isinstance(source, AfterPublish):
            errors = call_isolated(lambda part: source.after_publish([held.lease for held in part]), done)
        for held, error in zip(done, errors, strict=True):
            if error is not None:
                self._committer.put_off([held], "source", error)
        self._committer.complete(*(held for held, error in zip(done, errors, strict=True) if error is None))


class Rounds:
    """Sends the batches of one pipeline's holdings to the engine, and cancels those that take too long."""

    def __init__(
        self,
        coordinator: Coordinator,
        engine: Engine,
        holdings: Holdings,
        committer: Committer,
        *,
        timeout: float,
    ) -> None:
        """`timeout`: seconds that a batch may run before it is cancelled, which counts as an attempt."""
        self._coordinator = coordinator
        self._engine = engine
        self._holdings = holdings
        self._committer = committer
        self._timeout = timeout

    @property
    def has_room(self) -> bool:
        return self._engine.room() > 0

    def send(self, planned: Sequence[Planned], most: int) -> None:
        """Begin as many rounds of up to `most` batches as the engine has room for."""
        if not planned:
            return
        groups = self._compatible(grouped(planned, most, self._coordinator.policy.limits))
        for group in groups[: max(self._engine.room(), 0)]:
            begun = self._begin(group)
            if begun:
                self._submit(begun)

    def _compatible(self, groups: Sequence[list[Planned]]) -> Sequence[list[Planned]]:
        """The rounds that may run beside each other and beside the running ones."""
        if self._engine.endless:
            return groups
        out = self._holdings.running
        if any(held.deadly for held in out):
            return []
        deadly = [group for group in groups if group[0][0].deadly]
        if not deadly:
            return groups
        return [] if out else deadly[:1]

    def _begin(self, group: Sequence[Planned]) -> list[Planned]:
        """Record in the rows that need it which batches run; returns the batches whose leases are still held."""
        limits = self._coordinator.policy.limits
        changes = [(held, _begun(cut, limits)) for held, cut in group if held.lease.history.begun is False]
        changes += [(held, transitions.come_back) for held in self._back_from_earlier_rounds(group)]
        results = self._coordinator.write_each([(held.lease, change) for held, change in changes])
        for (held, _), result in zip(changes, results, strict=True):
            if isinstance(result, LeaseLost):
                self._holdings.drop(held)
            else:
                held.lease = result
        return [(held, cut) for held, cut in group if self._holdings.get(held.lease.key) is held]

    def _back_from_earlier_rounds(self, group: Sequence[Planned]) -> list[Held]:
        """Leases whose rows say that a batch is out although it has come back: this round is not their doing."""
        idle = self._holdings.where(lambda held: held.batch is None and held.lease.history.begun is True)
        sent = {held.lease.key for held, _ in group} if idle else set()
        return [held for held in idle if held.lease.key not in sent]

    def _submit(self, group: Sequence[Planned]) -> None:
        cancel_at, now = self._deadline_of_round(), self._coordinator.world.clock.monotonic()
        planned_at = self._coordinator.session.store_time
        batches = [self._batch(held, cut, planned_at) for held, cut in group]
        for (held, _), batch in zip(group, batches, strict=True):
            self._holdings.send(held, batch, cancel_at)
            held.sent_at = now
        self._engine.submit(self._coordinator.pipeline, batches)
        self._coordinator.world.emit(RoundSubmitted(self._coordinator.pipeline, len(batches)))

    def _batch(self, held: Held, cut: Cut, planned_at: float) -> Batch:
        restages = held.lease.commit.commit_id if held.pending else None
        return Batch(self._coordinator.world.new_id(), held.lease, held.name, cut, restages, planned_at)

    # --- deadlines ---------------------------------------------------------------------------------------------

    def deadline(self) -> float:
        """The deadline of a batch that has just given a sign of life."""
        return self._coordinator.world.clock.monotonic() + self._timeout

    def _deadline_of_round(self) -> float:
        """Twice the timeout if another round is running, because the engine gives the cores to that round first."""
        return self.deadline() + (self._timeout if self._holdings.running else 0.0)

    def cancel_overdue(self) -> None:
        """Cancel the batches whose deadline has passed; each counts as an attempt."""
        running = self._holdings.running
        # A node that was held up cannot tell how long its batches took, and they are lost anyway.
        if not running or not self._coordinator.session.usable:
            return
        now = self._coordinator.world.clock.monotonic()
        for held in [held for held in running if held.cancel_at <= now]:
            reason = f"the batch took longer than {self._timeout:g} s"
            self._holdings.cancel([held])
            self._coordinator.world.emit(BatchCancelled(self._coordinator.pipeline, held.lease.key, reason))
            self._committer.count_attempt(held, reason)


def grouped(planned: Sequence[Planned], most: int, limits: RetryLimits) -> list[list[Planned]]:
    """The rounds in which these batches run, ordered by how much their partitions are suspected. Pure.

    Rounds of partitions that are not suspected come second, after one round of suspects, so that neither kind waits for
    ever if there is room for few rounds.
    """
    innocent: list[Planned] = []
    suspects: defaultdict[int, list[Planned]] = defaultdict(list)
    for held, cut in planned:
        kind = suspects[_suspects_per_round(held.lease.history, most, limits)] if held.suspect else innocent
        kind.append((held, cut))
    rounds = [part for size in sorted(suspects, reverse=True) for part in _parts(suspects[size], size)]
    rounds[1:1] = _parts(innocent, most)
    return rounds


def _suspects_per_round(past: History, most: int, limits: RetryLimits) -> int:
    """How many suspects may share a round with a partition of this history, itself included."""
    if past.attempts > 0 or past.takeovers >= limits.max_takeovers:
        return 1
    return max(1, most >> (past.takeovers - SUSPECT_AFTER_TAKEOVERS + 1))


def _parts(group: Sequence[Planned], size: int) -> list[list[Planned]]:
    return [list(group[at : at + size]) for at in range(0, len(group), size)]


def _begun(cut: Cut, limits: RetryLimits) -> Change:
    return lambda row: transitions.begin(row, cut.end, limits)
