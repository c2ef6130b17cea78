"""Mutants of ownership: the fence, sessions, attempts, acknowledgements, hand-off, discovery."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from holdfast.flow.acquire import Acquirer
from holdfast.flow.batch import Batch
from holdfast.flow.commit import Committer
from holdfast.flow.engine import Advanced, Staged
from holdfast.flow.holdings import Held
from holdfast.flow.loop import PipelineLoop
from holdfast.leases import coordinator, session, sharing, transitions, writes
from holdfast.leases.coordinator import Coordinator
from holdfast.leases.discovery import Discovery
from holdfast.leases.lease import Lease
from holdfast.leases.sharing import FairShare, SharePlan
from holdfast.leases.store import ClaimRequest, Outcome
from holdfast.leases.writes import FencedWrites
from tests.simulation.mutation import Put, mutant, mutant_of_test

# --- the fence: tokens, versions, sequences -----------------------------------------------------------------------


@mutant()
def a_write_is_fenced_by_no_token(put: Put) -> None:
    put(writes, "still_held", lambda row, held: True)


@mutant()
def a_take_does_not_raise_the_token(put: Put) -> None:
    original = transitions.take

    def take(lease: Lease, *args: Any) -> Lease:
        taken = original(lease, *args)
        return replace(taken, ownership=replace(taken.ownership, token=lease.token))

    put(ClaimRequest, "take", _with_take(take))


@mutant()
def a_swap_is_blind(put: Put) -> None:
    def send(self: Any, pending: list[Any]) -> None:
        rows = self._until_answered(lambda: self._store.get([write.lease.id for write in pending]))
        for write, row in zip(pending, rows, strict=True):
            if row is not None:
                unstamped = replace(write.wanted, ownership=replace(write.wanted.ownership, version=row.version))
                write.lease, write.wanted = row, transitions.stamped(row, unstamped, write.write_id)
        original(self, pending)

    original = FencedWrites._send
    put(FencedWrites, "_send", send)


@mutant("streams", start=219)
def a_commit_does_not_look_at_the_sequence(put: Put) -> None:
    original = transitions.commit
    put(transitions, "commit", lambda lease, advance, expected, now: original(lease, advance, lease, now))


@mutant(start=5307)
def a_commit_looks_neither_at_the_sequence_nor_at_receipts(put: Put) -> None:
    original = transitions.commit

    def commit(lease: Lease, advance: Any, expected: Lease, now: float) -> Lease:
        clear = replace(lease, commit=replace(lease.commit, receipts=None))
        return original(clear, advance, lease, now)

    put(transitions, "commit", commit)


@mutant("streams", start=2506)
def a_row_that_lost_writes_is_trusted(put: Put) -> None:
    put(writes, "still_held", lambda row, held: row.token == held.token and row.owner == held.owner)


@mutant(start=158)
def an_unknown_write_counts_as_done(put: Put) -> None:
    put(FencedWrites, "_until_answered", _answers_turned(Outcome.UNKNOWN, Outcome.OK))


@mutant()
def a_conflict_counts_as_done(put: Put) -> None:
    put(FencedWrites, "_until_answered", _answers_turned(Outcome.CONFLICT, Outcome.OK))


# --- acknowledgements ---------------------------------------------------------------------------------------------


@mutant("streams")
def the_position_moves_to_the_last_acknowledged_record(put: Put) -> None:
    original = Committer._advance

    def advance(self: Committer, held: Held, batch: Batch, report: Any, now: float) -> Any:
        if isinstance(report, Advanced) and report.acked:
            report = replace(report, position=report.acked[-1][1], acked=())
        return original(self, held, batch, report, now)

    put(Committer, "_advance", advance)


@mutant("streams")
def acknowledged_ranges_are_not_kept(put: Put) -> None:
    original = Committer._advance

    def advance(self: Committer, held: Held, batch: Batch, report: Any, now: float) -> Any:
        return original(self, held, batch, replace(report, acked=()), now)

    put(Committer, "_advance", advance)


@mutant("streams", start=1535)
def a_drained_batch_forgets_its_ranges(put: Put) -> None:
    original = Committer._advance

    def advance(self: Committer, held: Held, batch: Batch, report: Any, now: float) -> Any:
        ended = isinstance(report, Staged)
        return original(self, held, batch, replace(report, acked=()) if ended else report, now)

    put(Committer, "_advance", advance)


@mutant("streams", start=343)
def draining_releases_at_once(put: Put) -> None:
    def drain(self: PipelineLoop) -> None:
        original(self)
        self._coordinator.release([held.lease for held in self._holdings])
        self._holdings.clear()

    original = PipelineLoop.drain
    put(PipelineLoop, "drain", drain)


@mutant("streams")
def a_long_lived_batch_outlives_its_lease(put: Put) -> None:
    put(Committer, "_let_go", lambda self, held: self._holdings.drop(held))


@mutant("streams")
def a_lease_is_handed_off_while_a_batch_is_out(put: Put) -> None:
    put(Held, "at_rest", property(lambda self: not self.pending))


@mutant("streams")
def a_hand_off_keeps_the_token(put: Put) -> None:
    original = transitions.hand_off

    def hand_off(lease: Lease, *args: Any) -> Lease:
        given = original(lease, *args)
        return replace(given, ownership=replace(given.ownership, token=lease.token))

    put(transitions, "hand_off", hand_off)


# --- fair share ---------------------------------------------------------------------------------------------------


@mutant("meso", start=30)
def the_odd_lease_is_in_nobodys_share(put: Put) -> None:
    original = sharing.share

    def share(
        me: str, members: Sequence[str], owners: Sequence[str], free: Sequence[str], replicas: int = 0
    ) -> SharePlan:
        plan = original(me, members, owners, free, replicas)
        return replace(plan, quota=(len(owners) + len(free)) // (replicas or len(members)))

    put(sharing, "share", share)


@mutant("meso")
def ended_sessions_have_a_share(put: Put) -> None:
    put(FairShare, "_members", lambda self, sessions: [row.key for row in sessions])


@mutant("meso")
def a_lease_of_a_dead_node_is_not_shared_out(put: Put) -> None:
    original = transitions.claimable
    put(sharing, "claimable", lambda row, now: row.owner is None and original(row, now))


@mutant("replicas")
def an_ended_session_keeps_its_place_among_the_replicas(put: Put) -> None:
    ended_sessions_have_a_share.change(put)


@mutant_of_test(
    "tests/unit/flow/test_sharing.py::"
    "test_the_next_node_of_a_killed_replica_waits_for_its_shards_and_the_others_keep_theirs",
    "partitions that move for nothing lose nothing, and those of the simulator come to an end",
)
def more_sessions_than_replicas_have_a_share(put: Put) -> None:
    original = sharing.share

    def share(
        me: str, members: Sequence[str], owners: Sequence[str], free: Sequence[str], replicas: int = 0
    ) -> SharePlan:
        return original(me, members, owners, free, max(len(members), replicas))

    put(sharing, "share", share)


# --- leases and sessions ------------------------------------------------------------------------------------------


@mutant()
def a_dead_session_can_heartbeat_again(put: Put) -> None:
    put(session, "_require_live", lambda row: None)


@mutant()
def silent_sessions_are_never_ended(put: Put) -> None:
    put(coordinator, "expire_silent_sessions", lambda *args: None)


@mutant()
def nobody_sweeps(put: Put) -> None:
    put(Coordinator, "sweep", lambda self: None)


@mutant(start=247)
def a_lost_claim_is_never_found(put: Put) -> None:
    put(Acquirer, "_reconcile", lambda self: None)


@mutant()
def attempts_are_not_counted(put: Put) -> None:
    original = transitions.fail_attempt

    def fail_attempt(lease: Lease, *args: Any) -> Lease:
        failed = original(replace(lease, history=replace(lease.history, attempts=0)), *args)
        return replace(failed, history=replace(failed.history, attempts=0))

    put(transitions, "fail_attempt", fail_attempt)


@mutant(start=5977)
def attempts_do_not_begin_anew(put: Put) -> None:
    put(transitions, "_moved", lambda history, now: replace(history, updated_at=now))


@mutant()
def a_fault_of_the_host_counts_an_attempt(put: Put) -> None:
    def wait_for_outside(self: Committer, away: Sequence[tuple[Held, str]]) -> None:
        for held, error in away:
            self.count_attempt(held, error)

    put(Committer, "_wait_for_outside", wait_for_outside)


@mutant(start=158)
def a_hand_back_counts_as_an_attempt(put: Put) -> None:
    original = transitions.release

    def release(lease: Lease, *args: Any) -> Lease:
        freed = original(lease, *args)
        return replace(freed, history=replace(freed.history, attempts=freed.history.attempts + 1))

    put(transitions, "release", release)


# --- discovery ----------------------------------------------------------------------------------------------------


@mutant("meso")
def discovery_is_complete_before_its_rows_are_there(put: Put) -> None:
    original = Discovery._run_under

    def run_under(self: Discovery, lease: Lease) -> None:
        state = dict(lease.progress.state or {})
        self._finish(lease, state, self._rerun_after(state))
        original(self, lease)

    put(Discovery, "_run_under", run_under)


@mutant("meso", start=1373)
def a_row_whose_answer_was_lost_counts_as_added(put: Put) -> None:
    put(coordinator, "ensure_rows", lambda store, world, make: len(store.add(make())))


@mutant("meso", start=333)
def a_lost_claim_of_discovery_is_never_found(put: Put) -> None:
    original = Discovery.__init__

    def init(self: Discovery, *args: Any, **settings: Any) -> None:
        original(self, *args, **settings)
        self.lock.owned = list  # type: ignore[method-assign]

    put(Discovery, "__init__", init)


# --- parts ---


def _with_take(take: Callable[..., Lease]) -> Callable[..., Lease]:
    def claim_take(self: Any, row: Lease, now: float) -> Lease:
        due_at = None if self.ownership_timeout is None else now + self.ownership_timeout
        return transitions.stamped(row, take(row, self.owner, now, due_at), self.write_id)

    return claim_take


def _answers_turned(original_outcome: Outcome, into: Outcome) -> Callable[..., Any]:
    """Answers to swaps with one kind taken for another."""
    original = FencedWrites._until_answered

    def until_answered(self: FencedWrites, call: Callable[[], Any]) -> Any:
        return [into if answer is original_outcome else answer for answer in original(self, call)]

    return until_answered


@mutant("resharded")
def a_partition_does_not_wait_for_those_that_come_first(put: Put) -> None:
    put(Coordinator, "_without_waiting", lambda _coordinator, partitions: partitions)
