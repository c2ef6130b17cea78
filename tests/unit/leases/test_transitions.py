from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from holdfast.errors import TransitionRefused
from holdfast.leases import transitions
from holdfast.leases.lease import Commit, Counts, Lease, Ownership, Partition, Status, changed, new_lease
from holdfast.leases.transitions import Advance, RetryLimits
from holdfast.testing.rows import assigned_row, make_row

NOW = 1000.0
HELD = assigned_row("k", "me", position={"offset": 5}, attempts=2, takeovers=1, last_error="was bad")
LIMITS = RetryLimits(max_retries=3, backoff=5.0, max_backoff=300.0)


def advance(position: object = None, **fields: object) -> Advance:
    defaults: dict[str, object] = {"commit_id": "c1", "position": position or {"offset": 9}, "receipts": {"files": [1]}}
    return Advance(**{**defaults, **fields})  # type: ignore[arg-type]


def with_commit(lease: Lease, **fields: object) -> Lease:
    return replace(lease, commit=replace(lease.commit, **fields))  # type: ignore[arg-type]


# --- taking ------------------------------------------------------------------------------------------------------


def test_a_new_lease_is_free_and_unread() -> None:
    lease = new_lease("p", Partition("k", group="g", spec={"a": 1}, priority=3, work_units=9), "w", now=NOW, index=4)
    assert (lease.status, lease.owner, lease.token, lease.version, lease.progress.position) == (
        Status.UNASSIGNED, None, 0, 0, None,
    )  # fmt: skip
    assert lease.order.ordinal == 1_000_000_004
    assert (lease.group, lease.order.priority, lease.order.work_units) == ("g", 3, 9)
    assert transitions.claimable(lease, NOW)


@pytest.mark.parametrize(
    ("status", "due_at", "free"),
    [
        (Status.UNASSIGNED, 0.0, True),
        (Status.UNASSIGNED, NOW, True),
        (Status.UNASSIGNED, NOW + 0.1, False),
        (Status.CLOSED, NOW - 1, True),
        (Status.CLOSED, NOW + 1, False),
        (Status.ASSIGNED, None, False),
        (Status.ASSIGNED, NOW + 1, False),
        (Status.ASSIGNED, NOW - 1, True),
        (Status.COMPLETED, NOW - 1, False),
        (Status.FAILED, NOW - 1, False),
    ],
)
def test_only_what_is_due_and_unfinished_can_be_taken(status: Status, due_at: float | None, free: bool) -> None:
    lease = make_row("k", status=status, due_at=due_at)
    assert transitions.claimable(lease, NOW) is free
    if not free:
        with pytest.raises(TransitionRefused):
            transitions.take(lease, "me", NOW)


def test_taking_raises_the_token_and_names_the_owner() -> None:
    taken = transitions.take(make_row("k", token=4, version=7), "me", NOW, NOW + 60)
    assert taken.ownership == Ownership(Status.ASSIGNED, "me", token=5, version=7, due_at=NOW + 60)
    assert (taken.history.claimed_at, taken.history.started_at, taken.history.takeovers) == (NOW, NOW, 0)


def test_only_taking_over_from_a_lapsed_owner_counts() -> None:
    lapsed = assigned_row("k", "dead", due_at=NOW - 1, takeovers=1, started_at=5.0)
    taken = transitions.take(lapsed, "me", NOW)
    assert (taken.history.takeovers, taken.history.started_at) == (2, 5.0)
    closed = make_row("k", status=Status.CLOSED, due_at=0.0, takeovers=1)
    assert transitions.take(closed, "me", NOW).history.takeovers == 1


@pytest.mark.parametrize(
    ("takeovers", "begun", "counted"),
    [(0, None, 0), (0, False, 0), (3, False, 3), (1, True, 2), (3, None, 4)],
    ids=["first death", "nothing out since", "nothing out this time", "a batch out", "of an earlier version"],
)
def test_a_death_counts_if_a_batch_may_have_caused_it(takeovers: int, begun: bool | None, counted: int) -> None:
    lapsed = assigned_row("k", "dead", due_at=NOW - 1, takeovers=takeovers, begun=begun)
    taken = transitions.take(lapsed, "me", NOW)
    assert (taken.history.takeovers, taken.history.begun) == (counted, False)
    retaken = transitions.take(replace(lapsed, ownership=replace(lapsed.ownership, owner="me")), "me", NOW)
    assert retaken.history.takeovers == takeovers, "who takes its own lease again is alive"
    at_work = transitions.take(lapsed, "me", NOW, NOW + 60)
    assert at_work.history.takeovers == takeovers + 1, "with a deadline, work begins with the lease"


def test_a_first_death_counts_when_there_was_a_batch_to_begin() -> None:
    assert transitions.begin(HELD, 9, LIMITS) is HELD, "nobody has died here: nothing is written"
    taken = transitions.take(assigned_row("k", "dead", due_at=NOW - 1), "me", NOW)
    begun = transitions.begin(taken, 9, LIMITS)
    assert (begun.history.takeovers, begun.history.begun) == (1, True)
    assert transitions.begin(begun, 9, LIMITS) is begun
    with pytest.raises(TransitionRefused):
        transitions.begin(transitions.release(begun, NOW), 9, LIMITS)


def test_what_lets_a_lease_go_says_that_nothing_is_out_and_what_moves_it_forgets_the_dead() -> None:
    begun = replace(HELD, history=replace(HELD.history, begun=True))
    given = (transitions.release(begun, NOW), transitions.hand_off(begun, "you", NOW))
    assert [row.history.begun for row in given] == [False, False]
    assert transitions.commit(begun, advance(), begun, NOW).history.begun is None
    assert transitions.close(begun, NOW, NOW + 5).history.begun is None
    assert transitions.release(HELD, NOW).history.begun is None


def test_an_unreadable_row_cannot_be_taken() -> None:
    with pytest.raises(TransitionRefused, match="unreadable"):
        transitions.take(make_row("k", unreadable="{"), "me", NOW)


def test_a_row_is_stamped_as_the_successor_of_the_old_one() -> None:
    new = transitions.stamped(HELD, replace(HELD, group="g"), "w9")
    assert (new.version, new.ownership.write_id, new.group) == (HELD.version + 1, "w9", "g")


# --- commit ------------------------------------------------------------------------------------------------------


def test_a_commit_moves_position_receipts_and_sequence_together() -> None:
    held = replace(HELD, progress=replace(HELD.progress, state={"s": 1}, counts=Counts(1, 1)))
    done = transitions.commit(held, advance(counts=Counts(4, 2, 1, 1), acked=((12, 14),)), held, NOW)
    assert done.progress.position == {"offset": 9}
    assert (done.progress.counts, done.progress.acked) == (Counts(5, 3, 1, 1), ((12, 14),))
    assert done.progress.state == {"s": 1}
    assert done.commit == Commit(1, 1, "", "c1", {"files": [1]})
    assert done.ownership == held.ownership


def test_they_start_anew_too_when_a_source_saves_new_state_or_closes_the_partition() -> None:
    saved = transitions.save_state(HELD, {"page": 2}, NOW).history
    assert (saved.attempts, saved.takeovers) == (0, 0)
    renewed = transitions.save_state(HELD, HELD.progress.state, NOW).history
    assert (renewed.attempts, renewed.takeovers) == (2, 1)
    assert transitions.close(HELD, NOW, NOW + 5).history.takeovers == 0


def test_attempts_and_takeovers_start_anew_when_the_position_moves() -> None:
    moved = transitions.commit(HELD, advance(), HELD, NOW).history
    assert (moved.attempts, moved.takeovers, moved.last_error) == (0, 0, None)
    stuck = transitions.commit(HELD, advance({"offset": 5}), HELD, NOW).history
    assert (stuck.attempts, stuck.takeovers, stuck.last_error) == (2, 1, "was bad")


def test_a_mere_acknowledgement_leaves_nothing_to_publish() -> None:
    assert transitions.commit(HELD, advance(receipts={}), HELD, NOW).commit.receipts is None


@pytest.mark.parametrize("moved", [{"sequence": 1}, {"generation": 2}, {"incarnation": "other topic"}])
def test_a_commit_is_refused_when_the_row_has_moved_on(moved: dict[str, object]) -> None:
    with pytest.raises(TransitionRefused, match="moved on"):
        transitions.commit(with_commit(HELD, **moved), advance(), HELD, NOW)


def test_a_commit_is_refused_while_receipts_are_pending() -> None:
    pending = with_commit(HELD, receipts={"files": []})
    with pytest.raises(TransitionRefused, match="not published"):
        transitions.commit(pending, advance(), pending, NOW)


def test_publishing_clears_the_receipts_once_and_needs_no_owner() -> None:
    pending = with_commit(make_row("k"), commit_id="c1", receipts={"files": [1]})
    done = transitions.published(pending, "c1", NOW)
    assert (done.commit.receipts, done.commit.commit_id) == (None, "c1")
    assert transitions.published(done, "c1", NOW) is done
    assert transitions.published(pending, "another", NOW) is pending


def test_restaging_replaces_the_receipts_of_the_pending_commit_only() -> None:
    pending = with_commit(HELD, commit_id="c1", receipts={"files": ["gone"]})
    assert transitions.restage(pending, "c1", {"files": ["new"]}, NOW).commit.receipts == {"files": ["new"]}
    for wrong in (with_commit(pending, receipts=None), with_commit(pending, commit_id="c2")):
        with pytest.raises(TransitionRefused, match="not pending"):
            transitions.restage(wrong, "c1", {}, NOW)


# --- letting go --------------------------------------------------------------------------------------------------


def test_saving_state_renews_the_deadline_and_nothing_else() -> None:
    saved = transitions.save_state(HELD, {"page": 2}, NOW, NOW + 600)
    assert (saved.progress.state, saved.progress.position) == ({"page": 2}, {"offset": 5})
    assert saved.ownership == replace(HELD.ownership, due_at=NOW + 600)


def test_a_hand_back_counts_as_no_attempt() -> None:
    freed = transitions.release(HELD, NOW)
    assert (freed.status, freed.owner, freed.token, freed.ownership.due_at) == (Status.UNASSIGNED, None, 1, 0.0)
    assert (freed.history.attempts, freed.history.takeovers) == (2, 1)
    assert freed.progress == HELD.progress


def test_errors_are_counted_and_tried_again_after_a_growing_while() -> None:
    lease, delays = assigned_row("k", "me"), []
    for attempt in (1, 2, 3):
        failed = transitions.fail_attempt(lease, f"error {attempt}", LIMITS, NOW)
        assert (failed.status, failed.history.attempts, failed.history.last_error) == (
            Status.UNASSIGNED, attempt, f"error {attempt}",
        )  # fmt: skip
        delays.append((failed.ownership.due_at or 0.0) - NOW)
        lease = transitions.take(failed, "me", NOW + 999)
    assert delays == [5.0, 10.0, 20.0]
    last = transitions.fail_attempt(lease, "error 4", LIMITS, NOW)
    assert (last.status, last.owner, last.ownership.due_at) == (Status.FAILED, None, None)
    assert last.history.last_error == "error 4"


def test_the_delay_is_bounded_also_after_very_many_attempts() -> None:
    assert [LIMITS.delay(attempts) for attempts in (1, 6, 7, 8, 5000)] == [5.0, 160.0, 300.0, 300.0, 300.0]


@pytest.mark.parametrize("fail", [lambda text: transitions.fail_attempt(HELD, text, LIMITS, NOW),
                                  lambda text: transitions.halt(HELD, text, NOW)])  # fmt: skip
def test_a_long_error_is_cut_so_that_the_row_stays_small(fail: Callable[[str], Lease]) -> None:
    noted = fail("start " + "x" * 1_000_000 + " end").history
    assert noted.last_error is not None
    assert len(noted.last_error) < 5000
    assert noted.last_error.startswith("start ")
    assert noted.last_error.endswith(" end")
    assert len(noted.halt_reason or "") < 5000


def test_halting_keeps_receipts_and_tells_why() -> None:
    halted = transitions.halt(with_commit(HELD, receipts={"files": [1]}), "two manifests", NOW)
    assert (halted.status, halted.owner, halted.history.halt_reason) == (Status.FAILED, None, "two manifests")
    assert halted.commit.receipts == {"files": [1]}


def test_an_unreadable_row_is_failed_and_its_body_kept() -> None:
    halted = transitions.halt(make_row("k", unreadable="{oops"), "unreadable", NOW)
    assert (halted.status, halted.unreadable) == (Status.FAILED, "{oops")


def test_closing_sleeps_until_it_has_been_closed_often_enough() -> None:
    first = transitions.close(HELD, NOW, NOW + 60, max_closed=2)
    assert (first.status, first.ownership.due_at, first.history.closed_count) == (Status.CLOSED, NOW + 60, 1)
    later = transitions.take(first, "me", NOW + 60)
    last = transitions.close(later, NOW + 61, NOW + 121, max_closed=2)
    assert (last.status, last.owner, last.history.closed_count) == (Status.COMPLETED, None, 2)
    assert last.history.completed_at == NOW + 61


def test_without_a_limit_closing_goes_on_for_ever() -> None:
    lease = replace(HELD, history=replace(HELD.history, closed_count=10_000))
    assert transitions.close(lease, NOW, NOW + 1).status is Status.CLOSED


def test_completing_is_refused_while_receipts_are_pending() -> None:
    assert transitions.complete(HELD, NOW).status is Status.COMPLETED
    pending = with_commit(HELD, receipts={})
    with pytest.raises(TransitionRefused, match="not published"):
        transitions.complete(pending, NOW)
    with pytest.raises(TransitionRefused, match="not published"):
        transitions.close(pending, NOW, NOW + 1, max_closed=1)


def test_a_hand_off_names_the_target_under_the_next_token() -> None:
    given = transitions.hand_off(HELD, "you", NOW)
    assert (given.owner, given.token, given.status) == ("you", HELD.token + 1, Status.ASSIGNED)


def test_an_orphan_that_is_handed_off_is_the_targets_alone() -> None:
    """Its owner was ended by others and does not know it yet; the target is alive."""
    given = transitions.hand_off(transitions.orphan(HELD, NOW, "node a", LIMITS), "you", NOW)
    assert given.owner == "you"
    assert not transitions.claimable(given, NOW)


def test_an_orphan_is_claimable_at_once_and_still_names_its_owner() -> None:
    orphan = transitions.orphan(HELD, NOW, "node a", LIMITS)
    assert (orphan.owner, orphan.token) == ("me", HELD.token)
    assert transitions.claimable(orphan, NOW)


@pytest.mark.parametrize("status", [status for status in Status if status is not Status.ASSIGNED])
@pytest.mark.parametrize(
    "change",
    [
        lambda row: transitions.commit(row, advance(), row, NOW),
        lambda row: transitions.restage(row, "", {}, NOW),
        lambda row: transitions.save_state(row, 1, NOW),
        lambda row: transitions.release(row, NOW),
        lambda row: transitions.fail_attempt(row, "e", LIMITS, NOW),
        lambda row: transitions.close(row, NOW, NOW),
        lambda row: transitions.complete(row, NOW),
        lambda row: transitions.hand_off(row, "you", NOW),
        lambda row: transitions.orphan(row, NOW, "node a", LIMITS),
    ],
)
def test_what_nobody_holds_cannot_be_worked_on(status: Status, change: Callable[[Lease], Lease]) -> None:
    with pytest.raises(TransitionRefused, match=f"is {status}"):
        change(make_row("k", status=status))


# --- what a person does ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [Status.FAILED, Status.CLOSED, Status.COMPLETED])
def test_reopening_tries_again_from_where_it_stands(status: Status) -> None:
    row = make_row(
        "k",
        status=status,
        due_at=NOW + 99,
        token=7,
        position=5,
        attempts=4,
        takeovers=11,
        halt_reason="x",
        created_at=1.0,
    )
    later = transitions.reopen(row, NOW)
    assert transitions.claimable(later, NOW)
    assert (later.token, later.progress.position) == (7, 5)
    assert (later.history.attempts, later.history.takeovers, later.history.halt_reason) == (0, 0, None)


def test_a_purged_row_cannot_be_reopened() -> None:
    completed = transitions.complete(HELD, NOW)
    with pytest.raises(TransitionRefused, match="was purged"):
        transitions.reopen(transitions.strip(completed, NOW), NOW)


def test_what_is_being_worked_on_cannot_be_reopened() -> None:
    with pytest.raises(TransitionRefused, match="being worked on by me"):
        transitions.reopen(HELD, NOW)


def test_purging_leaves_what_dedupes_and_fences() -> None:
    row = make_row("k", run="r", group="g", spec={"a": 1}, status=Status.COMPLETED, token=7, version=3, position=9,
                   state="s", completed_at=5.0, created_at=1.0, due_at=None,
                   commit=Commit(4, 2, "topic", "c4"))  # fmt: skip
    kept = transitions.strip(row, NOW)
    assert (kept.id, kept.token, kept.version, kept.status) == (row.id, 7, 3, Status.COMPLETED)
    assert (kept.commit.sequence, kept.commit.generation, kept.commit.incarnation) == (4, 2, "topic")
    assert (kept.spec, kept.progress.state, kept.history.created_at) == ({}, None, None)
    assert kept.history.completed_at == 5.0


@pytest.mark.parametrize("status", [status for status in Status if status is not Status.COMPLETED])
def test_only_completed_rows_without_receipts_are_purged(status: Status) -> None:
    with pytest.raises(TransitionRefused, match="only COMPLETED"):
        transitions.strip(make_row("k", status=status), NOW)
    with pytest.raises(TransitionRefused, match="without receipts"):
        transitions.strip(with_commit(make_row("k", status=Status.COMPLETED), receipts={}), NOW)


# --- replaced --------------------------------------------------------------------------------------------------------

PLAN = {"plan": "p1", "to": 7}


def test_one_that_is_set_aside_belongs_to_nobody_and_its_owner_can_commit_no_more() -> None:
    row = held(committed=True)
    aside = transitions.set_aside(row, PLAN, "being replaced", NOW)
    assert (aside.status, aside.owner, aside.token) == (Status.FAILED, None, row.token + 1)
    assert not transitions.claimable(aside, NOW + 1e9)
    assert transitions.set_aside_for(aside) == PLAN
    assert transitions.set_aside(aside, PLAN, "again", NOW) == aside
    with pytest.raises(TransitionRefused):
        transitions.commit(aside, Advance("c", {"offset": 9}, {}), row, NOW)
    with pytest.raises(TransitionRefused, match="continues the replacement"):
        transitions.reopen(aside, NOW)


def test_nothing_is_set_aside_before_its_commit_is_published_nor_while_it_is_halted() -> None:
    pending = transitions.commit(held(), Advance("c", {"offset": 9}, {"files": {}}), held(), NOW)
    with pytest.raises(TransitionRefused, match="not published yet"):
        transitions.set_aside(pending, PLAN, "being replaced", NOW)
    with pytest.raises(TransitionRefused, match="manifest gone"):
        transitions.set_aside(transitions.halt(held(), "manifest gone", NOW), PLAN, "being replaced", NOW)


def test_work_begins_again_at_an_earlier_position_under_a_later_generation() -> None:
    row = held(committed=True)
    aside = transitions.set_aside(row, PLAN, "being replaced", NOW)
    anew = transitions.restart(aside, {"offset": 2}, 5, NOW)
    assert (anew.status, anew.progress.position, anew.commit.generation) == (Status.UNASSIGNED, {"offset": 2}, 5)
    assert (anew.token, anew.commit.sequence) == (aside.token, row.commit.sequence)
    assert (anew.history.halt_reason, transitions.set_aside_for(anew), anew.progress.state) == (None, None, None)
    assert transitions.claimable(anew, NOW)
    with pytest.raises(TransitionRefused, match="not set aside"):
        transitions.restart(anew, {"offset": 2}, 6, NOW)
    with pytest.raises(TransitionRefused, match="generation 1 already"):
        transitions.restart(aside, {"offset": 2}, 1, NOW)


def held(*, committed: bool = False) -> Lease:
    row = transitions.take(new_lease("p", Partition("orders|0"), "w", now=NOW), "a", NOW)
    return transitions.commit(row, Advance("c0", {"offset": 5}, {}), row, NOW) if committed else row


def test_a_changed_row_equals_one_that_was_replaced_and_the_row_stays_as_it_was() -> None:
    before = replace(HELD)
    assert changed(HELD, group="g", spec={"a": 1}) == replace(HELD, group="g", spec={"a": 1}) != HELD
    assert changed(HELD.history, attempts=3, begun=True) == replace(HELD.history, attempts=3, begun=True)
    assert before == HELD
    with pytest.raises(KeyError, match="no_such_field"):
        changed(HELD, no_such_field=1)
