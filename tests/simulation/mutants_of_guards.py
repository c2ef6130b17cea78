"""Mutants of the loop's guards: what a node may still do under a lease, and what ends with it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from holdfast.errors import Halt, Unavailable
from holdfast.flow import commit
from holdfast.flow.acquire import Acquirer
from holdfast.flow.commit import Committer
from holdfast.flow.holdings import Held, Holdings
from holdfast.flow.plan import Rounds
from holdfast.flow.publish import Publisher
from holdfast.functions.acks import ShardAcks
from holdfast.leases import keeper, session, session_watch, transitions, writes
from holdfast.leases.coordinator import Coordinator
from holdfast.leases.discovery import Discovery
from holdfast.leases.keeper import Keeper
from holdfast.leases.lease import Lease, Status
from holdfast.leases.query import Query
from holdfast.leases.session import Session
from holdfast.leases.store import Swap
from holdfast.leases.transitions import stamped
from holdfast.sinks.files.sink import FilesSink
from tests.simulation.mutation import Put, mutant, mutant_of_test

# --- the fence ----------------------------------------------------------------------------------------------------


@mutant(start=8257)
def a_sequence_that_is_behind_is_ignored(put: Put) -> None:
    def still_held(row: Lease, held: Lease) -> bool:
        return row.token == held.token and row.owner == held.owner and row.version >= held.version

    put(writes, "still_held", still_held)


@mutant(start=3562)
def a_write_is_fenced_by_its_owner_alone(put: Put) -> None:
    put(writes, "still_held", lambda row, held: row.owner == held.owner)


# --- what ends with a lease ---------------------------------------------------------------------------------------


@mutant("streams", start=503)
def a_lease_that_comes_again_does_not_cancel_its_batch(put: Put) -> None:
    def hold(self: Acquirer, leases: Sequence[Lease]) -> None:
        for lease in leases:
            name = self._source.name(lease)
            self._holdings.add(Held(lease, name, found_pending=lease.commit.receipts is not None))

    put(Acquirer, "_hold", hold)


@mutant("streams", start=503)
def a_pass_leaves_the_batch_of_a_lost_lease_running(put: Put) -> None:
    def reconcile(self: Acquirer) -> None:
        rows = {row.key: row for row in self._coordinator.owned()}
        for held in self._holdings:
            row = rows.get(held.lease.key)
            if row is None or row.token != held.lease.token:
                self._holdings.drop(held)
            else:
                del rows[row.key]
        self._hold(self._coordinator.adopt(rows.values()))

    put(Acquirer, "_reconcile", reconcile)


@mutant("streams")
def a_node_that_joins_anew_keeps_what_it_held(put: Put) -> None:
    put(Acquirer, "abandon", lambda self: None)


@mutant()
def what_is_handed_back_is_not_cancelled(put: Put) -> None:
    def hand_back(self: Acquirer) -> None:
        self._coordinator.release([held.lease for held in self._holdings])
        self._holdings.clear()

    put(Acquirer, "hand_back", hand_back)


@mutant(start=60)
def a_failed_attempt_leaves_the_lease_in_hand(put: Put) -> None:
    put(Committer, "_let_go", lambda self, held: None)


@mutant()
def a_batch_that_hangs_is_never_cancelled(put: Put) -> None:
    put(Rounds, "cancel_overdue", lambda self: None)


@mutant()
def a_batch_that_takes_too_long_is_not_cancelled(put: Put) -> None:
    original = Rounds.cancel_overdue

    def cancel_overdue(self: Rounds) -> None:
        cancel, self._holdings.cancel = self._holdings.cancel, lambda helds: None  # type: ignore[method-assign]
        try:
            original(self)
        finally:
            self._holdings.cancel = cancel  # type: ignore[method-assign]

    put(Rounds, "cancel_overdue", cancel_overdue)


@mutant()
def retries_are_never_used_up(put: Put) -> None:
    original = transitions.fail_attempt

    def fail_attempt(lease: Lease, error: str, limits: Any, now: float) -> Lease:
        return original(lease, error, replace(limits, max_retries=1 << 30), now)

    put(transitions, "fail_attempt", fail_attempt)


@mutant(start=987)
def a_batch_that_has_ended_is_not_recalled(put: Put) -> None:
    put(Holdings, "recall", lambda self, held: None)


@mutant("streams", start=137)
def reports_of_one_batch_are_received_together(put: Put) -> None:
    put(commit, "waves", lambda reports: [list(reports)])


# --- evidence that disagrees --------------------------------------------------------------------------------------


@mutant()
def a_halt_forgets_the_pending_commit(put: Put) -> None:
    original = transitions.halt

    def halt(lease: Lease, reason: str, now: float) -> Lease:
        return original(replace(lease, commit=replace(lease.commit, receipts=None)), reason, now)

    put(transitions, "halt", halt)


@mutant()
def a_halt_is_only_put_off(put: Put) -> None:
    original = Publisher._settled

    def settled(self: Publisher, held: Held, results: dict[str, Any]) -> bool:
        soft = {
            name: Unavailable(str(result)) if isinstance(result, Halt) else result for name, result in results.items()
        }
        return original(self, held, soft)

    put(Publisher, "_settled", settled)


@mutant()
def the_witness_is_asked_for_the_commit_that_the_row_knows(put: Put) -> None:
    original = FilesSink._ahead

    def ahead(self: FilesSink, lease: Lease, name: Any) -> Any:
        return original(self, replace(lease, commit=replace(lease.commit, sequence=lease.commit.sequence - 1)), name)

    put(FilesSink, "_ahead", ahead)


@mutant()
def a_file_is_not_published_where_another_was_missing(put: Put) -> None:
    original = Publisher._through_all_sinks

    def through_all_sinks(self: Publisher, pending: Sequence[Held]) -> Any:
        results = original(self, pending)
        return {key: dict.fromkeys(by_sink) for key, by_sink in results.items()}

    put(Publisher, "_through_all_sinks", through_all_sinks)


# --- sessions -----------------------------------------------------------------------------------------------------


@mutant("meso")
def an_earlier_shift_of_the_keeper_goes_on(put: Put) -> None:
    def renews_after_a_while(self: Keeper, _shift: int) -> bool:
        while True:
            self._world.clock.wait(self._session.timing.heartbeat * (1 + keeper.SPREAD * self._world.dice.random()))
            if not self._withheld():
                return True

    put(Keeper, "_renews_after_a_while", renews_after_a_while)


@mutant()
def a_session_is_ended_before_its_time(put: Put) -> None:
    def silent(store: Any, _world: Any, fleet: str, _observed: Any) -> list[Lease]:
        return list(store.find(Query(fleet, statuses=(Status.ASSIGNED,))))

    put(session, "_silent_sessions", silent)


@mutant(start=104)
def a_sweep_does_not_look_at_the_sessions_row(put: Put) -> None:
    def orphan(self: Coordinator, rows: list[Lease]) -> None:
        now = self.store.now()
        if rows:
            free = [
                stamped(row, transitions.orphan(row, now, "", self.policy.limits), self.world.new_id()) for row in rows
            ]
            self.store.swap([Swap(row.version, freed) for row, freed in zip(rows, free, strict=True)])

    put(Coordinator, "_orphan", orphan)


@mutant(start=130)
def a_node_joins_again_under_its_old_name(put: Put) -> None:
    put(Session, "_new_session_id", lambda self: f"{self._process}:0")


@mutant_of_test(
    killed_by="tests/unit/leases/test_transitions.py::test_an_orphan_that_is_handed_off_is_the_targets_alone",
    because="whoever takes the lease from its new owner does so under the next token, which costs work and no record",
)
def a_lease_is_handed_off_with_the_deadline_of_its_giver(put: Put) -> None:
    original = transitions.hand_off

    def hand_off(lease: Lease, target: str, now: float) -> Lease:
        given = original(lease, target, now)
        return replace(given, ownership=replace(given.ownership, due_at=lease.ownership.due_at))

    put(transitions, "hand_off", hand_off)


@mutant_of_test(
    killed_by="tests/unit/leases/test_session_watch.py::test_time_in_which_nobody_looked_does_not_count",
    because="a session that is ended too early costs a take-over and breaks no promise",
)
def time_in_which_nobody_looked_counts_in_full(put: Put) -> None:
    put(session_watch, "LONGEST_GAP", 10.0)


# --- discovery ----------------------------------------------------------------------------------------------------


@mutant("meso")
def a_discovery_that_failed_counts_as_complete(put: Put) -> None:
    def put_off(self: Discovery, lease: Lease, error: str) -> None:
        self._finish(lease, {}, None)

    put(Discovery, "_put_off", put_off)


# --- acks of a shard ------------------------------------------------------------------------------------------------


@mutant("streams")
def an_ack_counts_for_all_records_before_it(put: Put) -> None:
    def ack(self: ShardAcks, offset: int) -> bool:
        for earlier in [out for out in self._out if out <= offset]:
            del self._out[earlier]
        return True

    put(ShardAcks, "ack", ack)


@mutant("streams")
def ranges_of_the_row_are_delivered_again(put: Put) -> None:
    put(ShardAcks, "_was_acked_ahead", lambda self, offset: False)


@mutant("streams", start=1535)
def ranges_of_the_row_are_forgotten_with_the_next_commit(put: Put) -> None:
    put(ShardAcks, "acked", property(lambda self: tuple(self._runs())))
