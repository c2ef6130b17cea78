"""Rounds: which batches one job carries together, and how they are sent.

Partitions that may have killed their node run apart from the others: in groups of half a round, and of half as many
each time that the node of a group dies, so that the culprit is found in a few jobs and not in one for each suspect. One
that has a single take-over left runs alone. While such a group is out, nothing else of the pipeline is out on its node,
or a partition would be halted for what another did. One whose own batch has failed runs alone in its round.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from holdfast.errors import LeaseLost
from holdfast.events import RoundSubmitted
from holdfast.flow.batch import Batch, Cut
from holdfast.flow.engine import Engine
from holdfast.flow.holdings import SUSPECT_AFTER_TAKEOVERS, Held, Holdings
from holdfast.flow.watchdog import Watchdog
from holdfast.leases import transitions
from holdfast.leases.coordinator import Coordinator
from holdfast.leases.lease import History, Lease
from holdfast.leases.transitions import RetryLimits

Planned = tuple[Held, Cut]


class Rounds:
    """Sends the batches of one pipeline's holdings to the engine."""

    def __init__(self, coordinator: Coordinator, engine: Engine, holdings: Holdings, watchdog: Watchdog) -> None:
        self._coordinator = coordinator
        self._engine = engine
        self._holdings = holdings
        self._watchdog = watchdog

    def send(self, planned: Sequence[Planned], most: int) -> None:
        """Begin as many rounds of up to `most` batches as the engine has room for; the others are planned again."""
        groups = self._apart(grouped(planned, most, self._coordinator.policy.limits))
        for group in groups[: max(self._engine.room(), 0)]:
            begun = self._begin(group)
            if begun:
                self._submit(begun)

    def _apart(self, groups: Sequence[list[Planned]]) -> Sequence[list[Planned]]:
        """Of these rounds, those that may be out beside each other and beside what is out."""
        if self._engine.endless:
            return groups
        out = self._holdings.where(lambda held: held.batch is not None)
        if any(held.deadly for held in out):
            return []
        deadly = [group for group in groups if group[0][0].deadly]
        if not deadly:
            return groups
        return [] if out else deadly[:1]

    def _begin(self, group: Sequence[Planned]) -> list[Planned]:
        """Those that are still ours, after the rows of those that need it tell that a batch is out."""
        doubtful = [held for held, _ in group if held.lease.history.begun is False]
        results = self._coordinator.write([held.lease for held in doubtful], _begun) if doubtful else []
        for held, result in zip(doubtful, results, strict=True):
            if isinstance(result, LeaseLost):
                self._holdings.drop(held)
            else:
                held.lease = result
        return [(held, cut) for held, cut in group if self._holdings.get(held.lease.key) is held]

    def _submit(self, group: Sequence[Planned]) -> None:
        cancel_at = self._watchdog.deadline_of_a_round()
        batches = [self._batch(held, cut) for held, cut in group]
        for (held, _), batch in zip(group, batches, strict=True):
            self._holdings.send(held, batch, cancel_at)
        self._engine.submit(self._coordinator.pipeline, batches)
        self._coordinator.world.emit(RoundSubmitted(self._coordinator.pipeline, len(batches)))

    def _batch(self, held: Held, cut: Cut) -> Batch:
        restages = held.lease.commit.commit_id if held.pending else None
        return Batch(self._coordinator.world.new_id(), held.lease, held.name, cut, restages)


def grouped(planned: Sequence[Planned], most: int, limits: RetryLimits) -> list[list[Planned]]:
    """The rounds in which these batches run, those of the least suspected first. Pure.

    Those above suspicion come second, so that neither kind waits for ever where there is room for few rounds.
    """
    innocent: list[Planned] = []
    suspects: defaultdict[int, list[Planned]] = defaultdict(list)
    for held, cut in planned:
        kind = suspects[_company(held.lease.history, most, limits)] if held.suspect else innocent
        kind.append((held, cut))
    rounds = [part for size in sorted(suspects, reverse=True) for part in _parts(suspects[size], size)]
    rounds[1:1] = _parts(innocent, most)
    return rounds


def _company(past: History, most: int, limits: RetryLimits) -> int:
    """How many suspects may share a round with one that has this past, itself included."""
    if past.attempts > 0 or past.takeovers >= limits.max_takeovers:
        return 1
    return max(1, most >> (past.takeovers - SUSPECT_AFTER_TAKEOVERS + 1))


def _parts(group: Sequence[Planned], size: int) -> list[list[Planned]]:
    return [list(group[at : at + size]) for at in range(0, len(group), size)]


def _begun(row: Lease, _now: float) -> Lease:
    return transitions.begin(row)
