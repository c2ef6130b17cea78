from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from holdfast.errors import (
    PartitionNotFound,
    PartitionNotOwned,
    PartitionUpdateFailed,
    SessionExpired,
    SourceUnavailable,
    StoreUnavailable,
    SupplierFailed,
)
from holdfast.events import (
    DiscoveryFailed,
    NothingAcquired,
    PartitionClosed,
    PartitionCompleted,
    PartitionErrorRaised,
)
from holdfast.leases import transitions
from holdfast.leases.lease import Partition, Status
from holdfast.leases.operator import Operator
from holdfast.leases.source_coordinator import SourceCoordinator
from holdfast.leases.token_floor import REST, read_floor
from holdfast.testing.faults import Fault
from holdfast.testing.rows import PIPELINE
from tests.unit.leases.rig import Node, Rig


@pytest.fixture
def rig() -> Rig:
    return Rig()


@pytest.fixture
def node(rig: Rig) -> Node:
    return rig.node()


def acquired(source: SourceCoordinator) -> str | None:
    lease = source.acquire_next()
    return lease.key if lease else None


def errors(node: Node) -> list[tuple[str, str]]:
    return [(event.kind, event.action) for event in node.world.seen(PartitionErrorRaised)]


# --- acquiring ---------------------------------------------------------------------------------------------------


def test_the_supplier_is_asked_only_when_nothing_is_free(rig: Rig, node: Node) -> None:
    source = node.source()
    source.create_partitions([Partition("first")])
    calls: list[dict[str, Any]] = []

    def supplier(state: dict[str, Any]) -> Iterable[Partition]:
        calls.append(dict(state))
        state["calls"] = len(calls)
        return [Partition(f"found {len(calls)}")]

    keys = [lease.key for _ in range(3) if (lease := source.acquire_next(supplier))]
    assert keys == ["first", "found 1", "found 2"]
    assert calls == [{}, {"calls": 1}]


def test_nothing_to_acquire_is_told(node: Node) -> None:
    assert node.source().acquire_next(lambda state: []) is None
    assert len(node.world.seen(NothingAcquired)) == 1


def test_a_supplier_that_failed_is_not_taken_for_one_that_found_nothing(rig: Rig, node: Node) -> None:
    def broken(state: dict[str, Any]) -> Iterable[Partition]:
        raise SourceUnavailable("cannot list the book")

    with pytest.raises(SupplierFailed, match="cannot list the book") as caught:
        node.source().acquire_next(broken)
    assert isinstance(caught.value.__cause__, SourceUnavailable)
    assert node.world.seen(NothingAcquired) == []
    # It is not run again before its backoff is over; until then every node hears why there is nothing.
    runs: list[object] = []

    def mended(state: dict[str, Any]) -> Iterable[Partition]:
        runs.append(state)
        return []

    with pytest.raises(SupplierFailed, match="cannot list the book"):
        rig.node("b").source().acquire_next(mended)
    assert runs == []
    rig.pass_time(6.0, node)
    assert node.source().acquire_next(mended) is None
    assert len(runs) == 1


def test_a_supplier_that_failed_keeps_nobody_from_what_is_free(node: Node) -> None:
    def broken(state: dict[str, Any]) -> Iterable[Partition]:
        yield Partition("k")
        raise SourceUnavailable("the second page is missing")

    source = node.source()
    lease = source.acquire_next(broken)
    assert lease is not None
    assert lease.key == "k"
    with pytest.raises(SupplierFailed, match="the second page"):
        source.acquire_next(broken)


def test_a_state_that_is_too_large_fails_the_supplier_and_blocks_nobody(rig: Rig, node: Node) -> None:
    def boundless(state: dict[str, Any]) -> Iterable[Partition]:
        state["seen"] = "x" * (rig.store.max_body_bytes + 1)
        return []

    with pytest.raises(SupplierFailed, match="bytes"):
        node.source().acquire_next(boundless)
    rig.pass_time(6.0, node)
    assert node.source().acquire_next(lambda state: [Partition("k")]) is not None


def test_a_store_that_is_away_is_not_an_empty_one(rig: Rig, node: Node) -> None:
    source = node.source(patience=5.0)
    source.create_partitions([Partition("k")])
    rig.store.order("claim", Fault.AWAY)
    assert acquired(source) == "k"
    rig.store.order("claim", *[Fault.AWAY] * 20)
    with pytest.raises(StoreUnavailable):
        source.acquire_next()


def test_nothing_is_acquired_for_a_session_that_may_have_ended(rig: Rig, node: Node) -> None:
    source = node.source()
    source.create_partitions([Partition("k")])
    rig.node_clock.turn(29.0)
    with pytest.raises(SessionExpired):
        source.acquire_next()
    assert rig.row("k").status is Status.UNASSIGNED
    node.session.join()
    assert acquired(source) == "k"


def test_whether_everything_was_found_once_is_told(rig: Rig, node: Node) -> None:
    source = node.source()
    assert not source.supplied()
    source.acquire_next(lambda state: [])
    assert source.supplied()
    assert rig.node("b").source().supplied()


def test_the_supplier_can_be_forced_to_run_before_anything_is_acquired(node: Node) -> None:
    source = node.source()
    source.create_partitions([Partition("old")])

    def supplier(state: dict[str, Any]) -> Iterable[Partition]:
        return [Partition("urgent", priority=1)]

    lease = source.acquire_next(supplier, force_supplier=True)
    assert lease is not None
    assert lease.key == "urgent"
    assert acquired(source) == "old"


def test_a_forced_supplier_that_fails_keeps_nobody_from_what_is_free(node: Node) -> None:
    source = node.source()
    source.create_partitions([Partition("old")])

    def broken(state: dict[str, Any]) -> Iterable[Partition]:
        raise SourceUnavailable("cannot list the book")

    lease = source.acquire_next(broken, force_supplier=True)
    assert lease is not None
    assert lease.key == "old"
    assert len(node.world.seen(DiscoveryFailed)) == 1


def test_partitions_are_made_once_and_in_order(rig: Rig, node: Node) -> None:
    source = node.source()
    assert source.create_partitions(Partition(str(number)) for number in range(3)) == 3
    rig.clock.turn(1.0)
    assert source.create_partitions([Partition("1"), Partition("3")]) == 1
    assert [acquired(source) for _ in range(5)] == ["0", "1", "2", "3", None]


def test_closed_partitions_come_before_or_after_new_ones(rig: Rig, node: Node) -> None:
    source = node.source()
    source.create_partitions([Partition("old")])
    assert acquired(source) == "old"
    source.close("old", reopen_after=10.0, max_closed_count=9)
    source.create_partitions([Partition("new")])
    rig.clock.turn(11.0)
    assert acquired(node.source(closed_last=True)) == "new"
    assert acquired(source) == "old"


def test_the_deadline_is_ten_minutes_and_saving_state_renews_it(rig: Rig, node: Node) -> None:
    source = node.source()
    source.create_partitions([Partition("k")])
    acquired(source)
    assert rig.row("k").ownership.due_at == rig.clock.monotonic() + 600.0
    rig.pass_time(300.0, node)
    source.save_state("k", {"page": 1})
    assert rig.row("k").ownership.due_at == rig.clock.monotonic() + 600.0
    rig.pass_time(300.0, node)
    source.renew("k", 50.0)
    assert rig.row("k").ownership.due_at == rig.clock.monotonic() + 50.0
    source.renew("k")
    assert rig.row("k").ownership.due_at == rig.clock.monotonic() + 600.0
    assert rig.row("k").progress.state == {"page": 1}


def test_the_next_owner_finds_the_saved_state(rig: Rig, node: Node) -> None:
    source = node.source()
    source.create_partitions([Partition("k", spec={"path": "a"})])
    acquired(source)
    source.save_state("k", {"page": 4})
    source.give_up("k")
    lease = rig.node("b").source().acquire_next()
    assert lease is not None
    assert (lease.progress.state, lease.spec, lease.history.takeovers) == ({"page": 4}, {"path": "a"}, 0)


# --- letting go --------------------------------------------------------------------------------------------------


def test_a_closed_partition_sleeps_and_is_completed_at_last(rig: Rig, node: Node) -> None:
    source = node.source()
    source.create_partitions([Partition("k")])
    for _ in range(2):
        assert acquired(source) == "k"
        source.close("k", reopen_after=60.0, max_closed_count=3)
        assert acquired(source) is None
        rig.pass_time(61.0, node)
    assert acquired(source) == "k"
    source.close("k", reopen_after=60.0, max_closed_count=3)
    assert rig.row("k").status is Status.COMPLETED
    assert [event.key for event in node.world.seen(PartitionClosed)] == ["k", "k"]
    assert [event.key for event in node.world.seen(PartitionCompleted)] == ["k"]


def test_a_completed_partition_is_never_acquired_again(rig: Rig, node: Node) -> None:
    source = node.source()
    source.create_partitions([Partition("k")])
    acquired(source)
    source.complete("k")
    rig.pass_time(10_000.0, node)
    assert source.create_partitions([Partition("k")]) == 0
    assert acquired(source) is None


def test_giving_up_everything_hands_it_back_at_once(rig: Rig, node: Node) -> None:
    source = node.source()
    source.create_partitions([Partition("a"), Partition("b")])
    acquired(source), acquired(source)
    Operator(rig.store, node.world.new_id, PIPELINE).release("a")
    source.give_up_all()
    assert rig.table.count(PIPELINE) == {Status.UNASSIGNED: 2}
    assert errors(node) == []
    with pytest.raises(PartitionNotOwned):
        source.save_state("b", 1)


def test_what_is_given_up_with_a_priority_is_acquired_by_it(rig: Rig, node: Node) -> None:
    source = node.source()
    source.create_partitions([Partition("a"), Partition("b"), Partition("c")])
    assert [acquired(source) for _ in range(2)] == ["a", "b"]
    source.give_up("a", priority=-1)
    source.give_up("b", priority=5)
    assert [acquired(source) for _ in range(3)] == ["b", "c", "a"]
    source.give_up("b")
    assert rig.row("b").order.priority == 5


def test_a_deleted_partition_leaves_its_key_below_the_token_floor(rig: Rig, node: Node) -> None:
    source = node.source()
    source.create_partitions([Partition("k", spec={"path": "a"})])
    lease = source.acquire_next()
    assert lease is not None
    source.save_state("k", {"page": 1})
    source.delete("k")
    row = rig.row("k")
    assert (row.status, row.spec, row.progress.state) == (Status.COMPLETED, {}, None)
    assert transitions.is_stripped(row)
    assert read_floor(rig.table, PIPELINE) > row.version > lease.token
    assert source.create_partitions([Partition("k")]) == 0

    rig.pass_time(REST + 1.0, node)
    operator = Operator(rig.store, node.world.new_id, PIPELINE)
    assert operator.forget(list(operator.forgettable())) == 1
    assert source.create_partitions([Partition("k")]) == 1
    reacquired = source.acquire_next()
    assert reacquired is not None
    assert reacquired.token > row.version
    with pytest.raises(PartitionNotOwned):
        source.save_state(lease, {"page": 2})


def test_a_partition_is_deleted_only_by_who_owns_it(rig: Rig, node: Node) -> None:
    source = node.source()
    source.create_partitions([Partition("k")])
    with pytest.raises(PartitionNotOwned):
        source.delete("k")
    assert rig.row("k").status is Status.UNASSIGNED
    assert errors(node) == [("not_owned", "delete")]


# --- the three errors --------------------------------------------------------------------------------------------


def test_what_was_not_acquired_is_not_owned(node: Node) -> None:
    source = node.source()
    source.create_partitions([Partition("k")])
    with pytest.raises(PartitionNotOwned, match="'k'"):
        source.save_state("k", 1)
    with pytest.raises(PartitionNotOwned):
        source.close("k", 1.0, 1)
    with pytest.raises(PartitionNotOwned):
        source.complete("k")
    with pytest.raises(PartitionNotOwned):
        source.give_up("k")
    actions = ["saveState", "close", "complete", "giveUp"]
    assert errors(node) == [("not_owned", action) for action in actions]


def test_what_another_node_took_over_is_not_owned(rig: Rig, node: Node) -> None:
    source, other = node.source(ownership_timeout=20.0), rig.node("b")
    source.create_partitions([Partition("k")])
    acquired(source)
    rig.pass_time(21.0, node, other)
    taken = other.source().acquire_next()
    assert taken is not None
    for _ in range(2):
        with pytest.raises(PartitionNotOwned) as caught:
            source.complete("k")
        assert caught.value.key == "k"
    assert rig.row("k") == taken


def test_a_row_that_is_gone_is_not_found(rig: Rig, node: Node) -> None:
    source = node.source()
    source.create_partitions([Partition("k")])
    acquired(source)
    rig.table.remove([rig.row("k")])
    with pytest.raises(PartitionNotFound):
        source.save_state("k", 1)
    assert errors(node) == [("not_found", "saveState")]


@pytest.mark.parametrize("verb", ["now", "swap"])
def test_a_store_that_stays_away_fails_the_update_and_the_lease_is_kept(rig: Rig, node: Node, verb: Any) -> None:
    source = node.source(patience=5.0)
    source.create_partitions([Partition("k")])
    acquired(source)
    rig.store.order(verb, *[Fault.AWAY] * 12)
    with pytest.raises(PartitionUpdateFailed):
        source.save_state("k", 1)
    assert errors(node) == [("update", "saveState")]
    rig.store._ordered.clear()
    source.save_state("k", 2)
    assert rig.row("k").progress.state == 2


def test_state_that_is_too_large_fails_the_update(rig: Rig, node: Node) -> None:
    source = node.source()
    source.create_partitions([Partition("k")])
    acquired(source)
    with pytest.raises(PartitionUpdateFailed, match="bytes"):
        source.save_state("k", "x" * (rig.store.max_body_bytes + 1))
    source.save_state("k", "small")
