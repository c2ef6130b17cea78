"""Mutants: the product with one guard taken out, patched from outside. Each must die, or the simulator proves nothing.

A mutant names the scenario in which it lives and the functions it replaces. Some that come to mind are equivalent, because
another guard covers what they break; they are listed at the end, with the guard.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any

from holdfast.errors import LeaseLost, SinkUnavailable, StagedDataGone
from holdfast.flow import committing, names
from holdfast.flow.batch import Batch, Name
from holdfast.flow.committing import Committer
from holdfast.flow.engine import Advanced, Staged
from holdfast.flow.held import Held
from holdfast.flow.loop import PipelineLoop
from holdfast.flow.manifest import Manifest
from holdfast.flow.publishing import Publisher
from holdfast.leases import coordinator, session, transitions, writes
from holdfast.leases.coordinator import Coordinator
from holdfast.leases.discovery import Discovery
from holdfast.leases.lease import Lease, Partition, new_lease
from holdfast.leases.store import Outcome, Swap
from holdfast.leases.writes import FencedWrites
from holdfast.sinks.files import sink as files_sink
from holdfast.sinks.files.sink import FilesSink
from tests.simulation.runner import Failure, run_seeds

Put = Callable[[Any, str, Any], None]
"""Replaces an attribute of a module or class until the mutant is over."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """One way to break the product."""

    name: str
    scenario: str
    change: Callable[[Put], None]


MUTANTS: list[Mutant] = []


def mutant(scenario: str = "micro") -> Callable[[Callable[[Put], None]], Callable[[Put], None]]:
    """Register the function as a mutant under its own name."""

    def register(change: Callable[[Put], None]) -> Callable[[Put], None]:
        MUTANTS.append(Mutant(change.__name__, scenario, change))
        return change

    return register


def hunt(prey: Mutant, seeds: range) -> Failure | None:
    """The first of these seeds that catches the mutant."""
    with _patched(prey.change):
        failures = run_seeds(prey.scenario, seeds, stop_at_first=True).failures
    return failures[0] if failures else None


@contextmanager
def _patched(change: Callable[[Put], None]) -> Iterator[None]:
    kept: list[tuple[Any, str, Any]] = []

    def put(owner: Any, name: str, value: Any) -> None:
        kept.append((owner, name, owner.__dict__[name]))
        setattr(owner, name, value)

    try:
        change(put)
        yield
    finally:
        for owner, name, value in reversed(kept):
            setattr(owner, name, value)


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

    put(coordinator.ClaimRequest, "take", _with_take(take))


@mutant()
def a_swap_is_blind(put: Put) -> None:
    def send(self: Any, pending: list[Any]) -> None:
        rows = self._until_answered(lambda: self._store.get([one.lease.id for one in pending]))
        for one, row in zip(pending, rows, strict=True):
            if row is not None:
                one.lease, one.wanted = row, transitions.stamped(row, one.wanted, one.write_id)
        original(self, pending)

    original = FencedWrites._send
    put(FencedWrites, "_send", send)


@mutant()
def a_commit_looks_neither_at_the_sequence_nor_at_receipts(put: Put) -> None:
    original = transitions.commit

    def commit(lease: Lease, advance: Any, expected: Lease, now: float) -> Lease:
        clear = replace(lease, commit=replace(lease.commit, receipts=None))
        return original(clear, advance, lease, now)

    put(transitions, "commit", commit)


@mutant()
def a_row_that_lost_writes_is_trusted(put: Put) -> None:
    put(writes, "still_held", lambda row, held: row.token == held.token and row.owner == held.owner)


@mutant()
def an_unknown_write_counts_as_done(put: Put) -> None:
    put(FencedWrites, "_until_answered", _answers_turned(Outcome.UNKNOWN, Outcome.OK))


@mutant()
def a_conflict_counts_as_done(put: Put) -> None:
    put(FencedWrites, "_until_answered", _answers_turned(Outcome.CONFLICT, Outcome.OK))


# --- commit -------------------------------------------------------------------------------------------------------


@mutant()
def a_commit_may_cover_one_that_is_not_published(put: Put) -> None:
    original = transitions.commit

    def commit(lease: Lease, advance: Any, expected: Lease, now: float) -> Lease:
        return original(replace(lease, commit=replace(lease.commit, receipts=None)), advance, expected, now)

    put(transitions, "commit", commit)
    put(Held, "pending", property(lambda self: False))


@mutant()
def a_takeover_plans_before_it_publishes(put: Put) -> None:
    put(Held, "pending", property(lambda self: False))


@mutant()
def files_are_published_before_the_commit(put: Put) -> None:
    def commit(self: Committer, commits: Sequence[tuple[Held, Batch, Any]]) -> None:
        for _, batch, report in commits:
            for name, receipt in committing._receipts(batch, report).items():
                _publish_at_once(self._sinks[name], receipt)
        original(self, commits)

    original = Committer._commit
    put(Committer, "_commit", commit)


@mutant()
def the_position_moves_to_the_planned_end(put: Put) -> None:
    original = Committer._advance

    def advance(self: Committer, held: Held, batch: Batch, report: Any, now: float) -> Any:
        return original(self, held, batch, replace(report, end=batch.cut.end), now)

    put(Committer, "_advance", advance)


@mutant()
def an_owner_aborts_after_a_time_out(put: Put) -> None:
    put(FencedWrites, "_send", _send_and_give_up)
    put(Committer, "_committed", _cleaning_up_what_is_lost())


@mutant()
def an_owner_deletes_what_it_staged_when_its_commit_is_refused(put: Put) -> None:
    put(Committer, "_committed", _cleaning_up_what_is_lost())


# --- publish ------------------------------------------------------------------------------------------------------


@mutant()
def receipts_are_cleared_before_publishing(put: Put) -> None:
    def publish(self: Publisher, pending: Sequence[Held]) -> None:
        kept = [replace(held) for held in pending]
        self._clear_receipts(pending)
        self._through_all_sinks(kept)

    put(Publisher, "publish", publish)


@mutant("meso")
def one_sink_stands_for_all(put: Put) -> None:
    original = Publisher._settled

    def settled(self: Publisher, held: Held, results: dict[str, Any]) -> bool:
        return any(result is None for result in results.values()) or original(self, held, results)

    put(Publisher, "_settled", settled)


@mutant()
def no_manifest_is_written(put: Put) -> None:
    put(FilesSink, "_witnessed", lambda self, publication, files: None)


@mutant()
def the_manifest_follows_the_files(put: Put) -> None:
    original = FilesSink._publish

    def publish(self: FilesSink, publication: Any) -> Any:
        _publish_at_once(self, publication.receipt)
        return original(self, publication)

    put(FilesSink, "_publish", publish)


@mutant()
def a_foreign_manifest_is_taken_for_ours(put: Put) -> None:
    put(Manifest, "agrees_with", lambda self, other: True)


@mutant()
def a_manifest_is_compared_by_its_commit_alone(put: Put) -> None:
    put(Manifest, "agrees_with", lambda self, other: self.commit_id == other.commit_id)


@mutant()
def nobody_asks_the_witness(put: Put) -> None:
    put(FilesSink, "witness", lambda self, taken: [None] * len(taken))


@mutant()
def a_foreign_object_counts_as_published(put: Put) -> None:
    original = FilesSink._publish

    def publish(self: FilesSink, publication: Any) -> Any:
        trouble = original(self, publication)
        return None if "another object" in str(trouble) else trouble

    put(FilesSink, "_publish", publish)


@mutant()
def missing_staged_data_counts_as_published(put: Put) -> None:
    original = FilesSink._publish

    def publish(self: FilesSink, publication: Any) -> Any:
        trouble = original(self, publication)
        return None if isinstance(trouble, StagedDataGone) else trouble

    put(FilesSink, "_publish", publish)


@mutant()
def a_found_commit_completes_the_partition(put: Put) -> None:
    original = PipelineLoop._hold

    def hold(self: PipelineLoop, leases: Sequence[Lease]) -> None:
        original(self, leases)
        for held in self._holdings:
            held.complete_after_publish |= held.found_pending

    put(PipelineLoop, "_hold", hold)


@mutant("meso")
def a_rebuild_forgets_the_other_sink(put: Put) -> None:
    original = Committer._mended

    def mended(self: Committer, held: Held, fresh: Any) -> Any:
        return {name: receipt for name, receipt in original(self, held, fresh).items() if name in held.gone}

    put(Committer, "_mended", mended)


# --- staging ------------------------------------------------------------------------------------------------------


@mutant()
def a_staging_name_has_no_batch_in_it(put: Put) -> None:
    original = names.staging_key
    put(names, "staging_key", lambda name, token, batch, part: original(name, token, "batch", part))


@mutant()
def a_staging_name_has_neither_batch_nor_token(put: Put) -> None:
    original = names.staging_key
    put(names, "staging_key", lambda name, token, batch, part: original(name, 0, "batch", part))


@mutant()
def a_sweep_deletes_what_a_row_names(put: Put) -> None:
    put(FilesSink, "_pending_files", lambda self, lease: [])


@mutant()
def a_sweep_does_not_look_at_the_token(put: Put) -> None:
    def sweep(self: FilesSink, taken: Sequence[tuple[Lease, Name]]) -> None:
        original(self, [(replace(lease, ownership=replace(lease.ownership, token=1 << 60)), n) for lease, n in taken])

    original = FilesSink.sweep
    put(FilesSink, "sweep", sweep)


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


@mutant("streams")
def a_drained_batch_forgets_its_ranges(put: Put) -> None:
    original = Committer._advance

    def advance(self: Committer, held: Held, batch: Batch, report: Any, now: float) -> Any:
        ended = isinstance(report, Staged)
        return original(self, held, batch, replace(report, acked=()) if ended else report, now)

    put(Committer, "_advance", advance)


@mutant("streams")
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


@mutant()
def a_lost_claim_is_never_found(put: Put) -> None:
    put(PipelineLoop, "_reconcile", lambda self: None)


@mutant()
def attempts_are_not_counted(put: Put) -> None:
    original = transitions.fail_attempt

    def fail_attempt(lease: Lease, *args: Any) -> Lease:
        failed = original(replace(lease, history=replace(lease.history, attempts=0)), *args)
        return replace(failed, history=replace(failed.history, attempts=0))

    put(transitions, "fail_attempt", fail_attempt)


@mutant()
def attempts_do_not_begin_anew(put: Put) -> None:
    put(transitions, "_moved", lambda history, now: replace(history, updated_at=now))


@mutant()
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

    def run_under(self: Discovery, lease: Lease) -> bool:
        self._finish(lease, dict(lease.progress.state or {}))
        return original(self, lease)

    put(Discovery, "_run_under", run_under)


@mutant("meso")
def a_row_whose_answer_was_lost_counts_as_added(put: Put) -> None:
    put(coordinator, "add_surely", lambda store, world, rows: len(store.add(rows)))


@mutant("meso")
def a_lost_claim_of_discovery_is_never_found(put: Put) -> None:
    original = Discovery.__init__

    def init(self: Discovery, *args: Any, **settings: Any) -> None:
        original(self, *args, **settings)
        self._lock.owned = list  # type: ignore[method-assign]

    put(Discovery, "__init__", init)


@mutant()
def discovery_trusts_that_its_row_is_still_there(put: Put) -> None:
    original = Discovery._row
    seen: set[int] = set()

    def row(self: Discovery) -> Lease | None:
        found = original(self)
        if found is None and id(self) in seen:
            return new_lease(self._lock.pipeline, Partition("$discovery"), "", now=0.0)
        if found is not None:
            seen.add(id(self))
        return found

    put(Discovery, "_row", row)


# --- parts --------------------------------------------------------------------------------------------------------


def _with_take(take: Callable[..., Lease]) -> Callable[..., Lease]:
    def claim_take(self: Any, row: Lease, now: float) -> Lease:
        due_at = None if self.ownership_timeout is None else now + self.ownership_timeout
        return transitions.stamped(row, take(row, self.owner, now, due_at), self.write_id)

    return claim_take


def _answers_turned(told: Outcome, into: Outcome) -> Callable[..., Any]:
    """Answers to swaps with one kind taken for another."""
    original = FencedWrites._until_answered

    def until_answered(self: FencedWrites, call: Callable[[], Any]) -> Any:
        return [into if answer is told else answer for answer in original(self, call)]

    return until_answered


def _send_and_give_up(self: Any, pending: list[Any]) -> None:
    """As `FencedWrites._send`, but a write without an answer counts as lost."""
    outcomes = self._until_answered(lambda: self._store.swap([Swap(one.lease.version, one.wanted) for one in pending]))
    for one, outcome in zip(pending, outcomes, strict=True):
        if outcome is Outcome.OK:
            one.result = one.wanted
        elif outcome is Outcome.UNKNOWN:
            one.result = LeaseLost("no answer")
        else:
            self._read_back([one])


def _cleaning_up_what_is_lost() -> Callable[..., None]:
    original = Committer._committed

    def committed(self: Committer, held: Held, report: Any, result: Lease | LeaseLost) -> None:
        if isinstance(result, LeaseLost):
            for name, receipt in report.receipts.items():
                sink: Any = self._sinks[name]
                with suppress(SinkUnavailable):
                    sink._bucket.discard([file["staged"] for file in receipt["files"]])
        original(self, held, report, result)

    return committed


def _publish_at_once(sink: Any, receipt: Any) -> None:
    with suppress(SinkUnavailable):
        sink._bucket.publish(files_sink._staged_files(receipt))
