from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from holdfast.errors import PartitionNotFound, PartitionNotOwned, PartitionUpdateFailed
from holdfast.events import NothingAcquired, PartitionClosed, PartitionCompleted, PartitionErrorRaised
from holdfast.leases.lease import Partition, Status
from holdfast.leases.operate import Operator
from holdfast.leases.source_coordinator import SourceCoordinator
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
