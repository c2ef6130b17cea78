"""Mutants of blame: whose death counts, who runs apart, whose error is whose, and what nodes say of their sessions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from holdfast.errors import Interrupted, SessionExpired, StoreError
from holdfast.events import SessionEnded
from holdfast.flow import plan
from holdfast.flow.acquire import Acquirer
from holdfast.flow.loop import PipelineLoop
from holdfast.flow.plan import Rounds
from holdfast.leases import coordinator, suspicion, transitions
from holdfast.leases.keeper import Keeper
from holdfast.leases.lease import Lease, Status
from holdfast.leases.session import Session
from holdfast.leases.store import ClaimRequest
from holdfast.leases.transitions import RetryLimits
from tests.simulation.mutation import Put, mutant, mutant_of_test


@mutant("months")
def every_death_counts(put: Put) -> None:
    put(transitions, "blamed", lambda takeovers, _begun, *, deadline: takeovers + 1)


@mutant("months")
def no_death_counts(put: Put) -> None:
    put(transitions, "blamed", lambda takeovers, _begun, *, deadline: takeovers)


@mutant("months")
def nobody_says_that_a_batch_is_out(put: Put) -> None:
    put(transitions, "begin", lambda lease, end, limits: lease)


@mutant("months")
def a_take_over_forgets_that_nothing_is_out_yet(put: Put) -> None:
    original = ClaimRequest.take

    def take(self: ClaimRequest, row: Lease, now: float) -> Lease:
        taken = original(self, row, now)
        return _with_begun(taken, True) if taken.history.begun is False else taken

    put(ClaimRequest, "take", take)


@mutant("months")
def a_node_that_joins_anew_counts_itself_as_dead(put: Put) -> None:
    put(PipelineLoop, "release_former", lambda self, session: None)


@mutant("months", start=157)
def a_node_that_was_asked_to_stop_counts_as_dead(put: Put) -> None:
    put(coordinator, "was_planned", lambda session: False)


@mutant("months", start=71)
def those_that_may_kill_the_node_have_company_on_it(put: Put) -> None:
    put(Rounds, "_compatible", lambda self, groups: groups)


@mutant("months", start=669)
def a_batch_that_is_back_counts_as_out_for_ever(put: Put) -> None:
    put(Rounds, "_back_from_earlier_rounds", lambda self, group: [])


@mutant("months")
def suspects_are_never_parted(put: Put) -> None:
    put(plan, "_suspects_per_round", lambda past, most, limits: most)


@mutant("months")
def an_error_of_one_plan_is_everybodys(put: Put) -> None:
    def call(ask: Callable[[Sequence[Any]], Sequence[Any]], items: Sequence[Any], *_: Any) -> list[Any]:
        return list(ask(items))

    put(plan, "call_isolated", call)


@mutant("months")
def a_batch_that_was_out_when_its_node_died_is_not_named(put: Put) -> None:
    put(transitions, "orphan", lambda lease, now, died, limits: _orphaned(lease, now))


@mutant("months")
def every_partition_of_a_dead_node_is_suspected(put: Put) -> None:
    def orphan(lease: Lease, now: float, died: str, limits: RetryLimits) -> Lease:
        error = suspicion.was_out(lease, died, None, limits.max_takeovers)
        return _orphaned(replace(lease, history=replace(lease.history, last_error=error)), now)

    put(transitions, "orphan", orphan)


@mutant("months")
def the_first_node_that_died_is_named_for_ever(put: Put) -> None:
    original = transitions.orphan

    def orphan(lease: Lease, now: float, died: str, limits: RetryLimits) -> Lease:
        orphaned = original(lease, now, died, limits)
        return replace(orphaned, history=replace(orphaned.history, died=lease.history.died or died))

    put(transitions, "orphan", orphan)
    begin = transitions.begin
    put(
        transitions,
        "begin",
        lambda lease, end, limits: _with_died(begin(lease, end, limits), lease.history.died),
    )


@mutant_of_test(
    killed_by="tests/unit/flow/test_suspicion.py"
    "::test_a_node_that_outlives_its_jvm_records_its_exit_in_the_rows_of_the_batches_that_were_out",
    because="a simulated node never outlives the engine that carries its batches",
)
def a_node_that_outlives_its_jvm_says_nothing(put: Put) -> None:
    put(PipelineLoop, "accuse", lambda self, reason: None)


@mutant("barred", start=218)
def a_node_that_may_not_claim_does_not_look_at_what_it_owns(put: Put) -> None:
    original = Acquirer._reconcile

    def reconcile(self: Acquirer) -> None:
        if self._permission.granted:
            original(self)

    put(Acquirer, "_reconcile", reconcile)


@mutant_of_test(
    killed_by="tests/unit/flow/test_blame.py::test_a_session_that_takes_its_own_lease_again_counts_nothing",
    because="a session whose leases were set free while it believes in itself stops using it before its next claim",
)
def a_session_that_takes_its_own_lease_again_counts_as_dead(put: Put) -> None:
    original = transitions._taken

    def taken(lease: Lease, ownership: Any, now: float) -> Any:
        history = original(lease, ownership, now)
        return replace(history, begun=False) if lease.status is Status.ASSIGNED else history

    put(transitions, "_taken", taken)


# --- what nodes say of their sessions -----------------------------------------------------------------------------


@mutant("meso")
def a_keeper_reports_the_end_of_whatever_session_is_current(put: Put) -> None:
    def run(self: Keeper, shift: int, _session: str) -> None:
        try:
            while self._renews_after_a_while(shift):
                self._session.heartbeat()
        except Interrupted:
            return
        except (SessionExpired, StoreError) as ended:
            self._world.emit(SessionEnded(self._session.id, str(ended)))

    put(Keeper, "_run", run)


@mutant("meso")
def an_end_is_told_by_everybody_who_notices_it(put: Put) -> None:
    put(Session, "tell_ended", lambda self, session, reason: self._world.emit(SessionEnded(session, reason)))


def _with_begun(lease: Lease, begun: bool) -> Lease:
    return replace(lease, history=replace(lease.history, begun=begun))


def _with_died(lease: Lease, died: str | None) -> Lease:
    return replace(lease, history=replace(lease.history, died=died))


def _orphaned(lease: Lease, now: float) -> Lease:
    return replace(lease, ownership=replace(lease.ownership, due_at=now))
