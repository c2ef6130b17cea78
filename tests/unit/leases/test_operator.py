from __future__ import annotations

from typing import Any

import pytest

from holdfast.errors import LeaseLost, PartitionNotFound, PartitionUpdateFailed, StoreUnavailable, TransitionRefused
from holdfast.leases import transitions
from holdfast.leases.lease import Commit, Lease, Partition, Status
from holdfast.leases.operator import Operator
from holdfast.leases.store import Outcome, Swap
from holdfast.leases.token_floor import REST, read_floor
from holdfast.leases.transitions import RetryLimits
from holdfast.testing.faults import Fault
from holdfast.testing.rows import PIPELINE, make_row, touched
from holdfast.testing.worlds import make_world
from tests.unit.leases.rig import Rig


@pytest.fixture
def rig() -> Rig:
    return Rig()


@pytest.fixture
def operator(rig: Rig) -> Operator:
    return Operator(rig.store, make_world("op").new_id, PIPELINE)


def completed(key: str, at: float, **fields: Any) -> Lease:
    return make_row(key, status=Status.COMPLETED, due_at=None, created_at=1.0, completed_at=at, token=3, **fields)


def test_rows_come_page_by_page_and_all_of_them(rig: Rig, operator: Operator) -> None:
    rig.table.add([make_row(f"{number:05d}") for number in range(2500)])
    assert [row.key for row in operator.rows()] == [f"{number:05d}" for number in range(2500)]
    assert list(operator.rows((Status.FAILED,))) == []


def test_a_failed_partition_is_reopened_from_where_it_stands(rig: Rig, operator: Operator) -> None:
    node = rig.node()
    lease = rig.held(node)
    limits = RetryLimits(max_retries=0)
    node.leases.write([lease], lambda row, now: transitions.fail_attempt(row, "bad record", limits, now))
    assert node.leases.claim(1) == []
    assert operator.reopen("k").status is Status.UNASSIGNED
    (reclaimed,) = node.leases.claim(1)
    assert (reclaimed.token, reclaimed.history.attempts) == (2, 0)


def test_a_release_takes_the_partition_from_its_owner(rig: Rig, operator: Operator) -> None:
    node, other = rig.node("a"), rig.node("b")
    lease = rig.held(node)
    operator.release("k")
    (late,) = node.leases.write([lease], transitions.complete)
    assert isinstance(late, LeaseLost)
    (taken,) = other.leases.claim(1)
    assert taken.token == 2


def test_failing_stops_the_work_and_tells_why(rig: Rig, operator: Operator) -> None:
    node = rig.node()
    lease = rig.held(node)
    assert operator.fail("k", "wrong bucket").history.halt_reason == "wrong bucket"
    (late,) = node.leases.write([lease], transitions.complete)
    assert isinstance(late, LeaseLost)
    assert rig.row("k").status is Status.FAILED


def test_what_cannot_be_is_refused(rig: Rig, operator: Operator) -> None:
    with pytest.raises(PartitionNotFound):
        operator.show("nothing")
    with pytest.raises(PartitionNotFound):
        operator.reopen("nothing")
    rig.held(rig.node())
    with pytest.raises(TransitionRefused):
        operator.reopen("k")


@pytest.mark.parametrize("fault", [fault for fault in Fault if fault not in (Fault.AWAY, Fault.ANSWER_LOST)])
def test_an_unknown_answer_is_looked_up(rig: Rig, operator: Operator, fault: Fault) -> None:
    rig.table.add([make_row("k", status=Status.FAILED, due_at=None, created_at=1.0)])
    rig.store.order("swap", fault)
    assert operator.reopen("k") == rig.row("k")
    assert rig.row("k").version == 1


def test_a_store_that_is_away_is_told_at_once(rig: Rig, operator: Operator) -> None:
    rig.store.order("get", Fault.AWAY)
    with pytest.raises(StoreUnavailable):
        operator.show("k")


def test_a_row_that_changes_all_the_time_is_given_up(rig: Rig, operator: Operator) -> None:
    rig.table.add([make_row("k", status=Status.FAILED, due_at=None, created_at=1.0)])
    get = rig.store.inner.get

    def get_and_disturb(keys: object) -> object:
        rows = get([rig.row("k").id])
        rig.table.swap([Swap(rig.row("k").version, touched(rig.row("k")))])
        return rows

    rig.store.get = get_and_disturb  # type: ignore[assignment,method-assign]
    with pytest.raises(PartitionUpdateFailed):
        operator.reopen("k")


# --- purge and forget --------------------------------------------------------------------------------------------


def test_only_old_completed_rows_without_receipts_are_purged(rig: Rig, operator: Operator) -> None:
    now = rig.clock.monotonic()
    rig.table.add(
        [
            completed("old", now - 100, spec={"a": 1}),
            completed("young", now - 10),
            completed("pending", now - 100, commit=Commit(receipts={"files": []})),
            make_row("failed", status=Status.FAILED, due_at=None, completed_at=now - 100),
        ]
    )
    rows = list(operator.purgeable(older_than=50.0))
    assert [row.key for row in rows] == ["old"]
    assert operator.purge(rows) == 1
    assert (rig.row("old").spec, rig.row("old").token) == ({}, 3)
    assert list(operator.purgeable(older_than=50.0)) == []


def test_a_row_that_changed_since_is_not_purged(rig: Rig, operator: Operator) -> None:
    rig.table.add([completed("k", 1.0, spec={"a": 1})])
    rows = list(operator.purgeable(older_than=0.0))
    operator.reopen("k")
    assert operator.purge(rows) == 0
    assert rig.row("k").spec == {"a": 1}


def test_the_floor_is_raised_before_anything_is_purged(rig: Rig, operator: Operator) -> None:
    rig.table.add([completed("k", 1.0, version=7)])
    rig.store.order("swap", None, Fault.AWAY)
    with pytest.raises(StoreUnavailable):
        operator.purge([rig.row("k")])
    assert not transitions.is_stripped(rig.row("k"))
    assert read_floor(rig.table, PIPELINE) == 9


def test_the_floor_never_sinks(rig: Rig, operator: Operator) -> None:
    for key, token in (("high", 9), ("low", 2)):
        rig.table.add([make_row(key, status=Status.COMPLETED, due_at=None, created_at=1.0, token=token)])
        purge_and_forget(rig, operator, key)
    node = rig.node()
    node.leases.create([Partition("low")])
    (lease,) = node.leases.claim(1)
    assert lease.token == 10


def test_a_row_made_anew_has_no_version_that_the_deleted_one_had(rig: Rig, operator: Operator) -> None:
    rig.table.add([completed("k", 1.0, version=7)])
    tombstone = purge_and_forget(rig, operator, "k")
    rig.node().leases.create([Partition("k")])
    assert rig.row("k").version > tombstone.version
    assert rig.table.remove([tombstone]) == [Outcome.CONFLICT], "a late removal hits the new row"


def test_only_what_was_purged_long_ago_is_forgotten(rig: Rig, operator: Operator) -> None:
    rig.table.add([completed("k", 1.0), completed("whole", 1.0)])
    operator.purge([rig.row("k")])
    rig.clock.turn(REST - 1)
    assert list(operator.forgettable()) == []
    assert operator.forget(list(operator.rows())) == 0
    rig.clock.turn(1)
    assert [row.key for row in operator.forgettable()] == ["k"]
    assert operator.forget(list(operator.rows())) == 1
    assert [row.key for row in operator.rows()] == ["whole"]


def test_nothing_changes_a_tombstone_but_another_purge(rig: Rig, operator: Operator) -> None:
    rig.table.add([completed("k", 1.0, spec={"a": 1})])
    operator.purge([rig.row("k")])
    tombstone = rig.row("k")
    for act in (operator.reopen, operator.release, lambda key: operator.fail(key, "no")):
        with pytest.raises(TransitionRefused):
            act("k")
    with pytest.raises(TransitionRefused):
        operator.change("k", lambda row, now: transitions.set_aside(row, {}, "replaced", now))
    node = rig.node()
    node.leases.sweep()
    assert (node.leases.create([Partition("k")]), node.leases.claim(1)) == (0, [])
    assert rig.row("k") == tombstone
    assert operator.purge([tombstone]) == 1
    assert read_floor(rig.table, PIPELINE) > rig.row("k").version


def test_the_rest_begins_after_the_floor_was_raised(rig: Rig, operator: Operator) -> None:
    rig.table.add([completed("k", 1.0)])
    swap = rig.store.swap

    def raise_slowly(swaps: Any) -> Any:
        rig.clock.turn(REST)
        rig.store.swap = swap  # type: ignore[method-assign]
        return swap(swaps)

    rig.store.swap = raise_slowly  # type: ignore[method-assign]
    assert operator.purge([rig.row("k")]) == 1
    assert list(operator.forgettable()) == []


def test_every_try_to_add_rows_reads_the_floor_anew(rig: Rig, operator: Operator) -> None:
    rig.table.add([completed("gone", 1.0, version=7)])
    node = rig.node()
    add = rig.store.add

    def purge_meanwhile(leases: Any) -> Any:
        rig.store.add = add  # type: ignore[method-assign]
        operator.purge([rig.row("gone")])
        return [Outcome.UNKNOWN]

    rig.store.add = purge_meanwhile  # type: ignore[method-assign]
    assert node.leases.create([Partition("k")]) == 1
    assert (rig.row("k").token, rig.row("k").version) == (9, 9)


def test_rows_with_receipts_are_neither_purged_nor_forgotten(rig: Rig, operator: Operator) -> None:
    pending = completed("pending", 1.0, commit=Commit(receipts={}))
    assert rig.table.add([make_row("free"), pending]) == [Outcome.OK] * 2
    with pytest.raises(TransitionRefused):
        operator.purge([pending])
    rig.clock.turn(2 * REST)
    assert operator.forget([make_row("free"), pending]) == 0
    assert rig.table.count(PIPELINE) == {Status.UNASSIGNED: 1, Status.COMPLETED: 1}


def purge_and_forget(rig: Rig, operator: Operator, key: str) -> Lease:
    """Delete the row as a person would; answers what was left of it before."""
    assert operator.purge([rig.row(key)]) == 1
    tombstone = rig.row(key)
    rig.clock.turn(REST)
    assert operator.forget([tombstone]) == 1
    return tombstone
