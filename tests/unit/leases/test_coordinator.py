from __future__ import annotations

from dataclasses import replace

import pytest

from holdfast.errors import LeaseLost
from holdfast.events import (
    PartitionAcquired,
    PartitionChanged,
    PartitionHalted,
    PartitionLost,
    PartitionOrphaned,
    PartitionReleased,
    PartitionsCreated,
    Unreachable,
)
from holdfast.leases import transitions
from holdfast.leases.coordinator import ClaimPolicy
from holdfast.leases.lease import Lease, Partition, Status
from holdfast.leases.query import Query
from holdfast.leases.session import nodes_of
from holdfast.leases.store import Swap
from holdfast.leases.transitions import RetryLimits
from holdfast.testing.faults import Fault
from holdfast.testing.rows import PIPELINE, make_row, touched
from tests.unit.leases.rig import Rig


@pytest.fixture
def rig() -> Rig:
    return Rig()


def test_a_claim_is_reported_with_its_token(rig: Rig) -> None:
    node = rig.node()
    lease = rig.held(node)
    assert [(event.key, event.token) for event in node.world.seen(PartitionAcquired)] == [("k", 1)]
    assert node.leases.owned() == [lease]
    assert node.leases.claim(0) == []


def test_a_store_that_is_away_gives_no_lease_and_is_reported(rig: Rig) -> None:
    node = rig.node()
    node.leases.create([Partition("k")])
    rig.store.order("claim", Fault.AWAY)
    assert node.leases.claim(1) == []
    assert len(node.world.seen(Unreachable)) == 1


def test_a_partition_that_kills_its_owners_is_halted(rig: Rig) -> None:
    policy = ClaimPolicy(limits=RetryLimits(max_takeovers=2))
    rig.node("first", policy=policy).leases.create([Partition("poison"), Partition("good")])
    for takeovers in range(3):
        node = rig.node(f"n{takeovers}", policy=policy)
        (lease,) = node.leases.write(node.leases.claim(1), lambda row, _: transitions.begin(row, 9, RetryLimits()))
        assert isinstance(lease, Lease)
        assert (lease.key, lease.history.takeovers) == ("poison", takeovers)
        rig.table.swap(
            [Swap(lease.version, touched(transitions.orphan(lease, rig.clock.monotonic(), "node a", RetryLimits())))]
        )
    node = rig.node("last", policy=policy)
    assert [lease.key for lease in node.leases.claim(2)] == ["good"]
    assert rig.row("poison").status is Status.FAILED
    (halted,) = node.world.seen(PartitionHalted)
    assert "died 3 times" in halted.reason


def test_a_lease_of_an_ended_session_is_freed_and_told(rig: Rig) -> None:
    dead, alive = rig.node("dead"), rig.node("alive")
    rig.held(dead)
    dead.session.leave()
    alive.leases.sweep()
    assert alive.world.seen(PartitionOrphaned) == [PartitionOrphaned(PIPELINE, "k", dead.session.id)]
    assert rig.row("k").owner == dead.session.id
    alive.leases.sweep()
    assert len(alive.world.seen(PartitionOrphaned)) == 1, "what is free already is left alone"


def test_a_node_that_joins_and_claims_during_a_sweep_keeps_its_lease(rig: Rig) -> None:
    sweeper = rig.node("sweeper")
    find = rig.table.find

    def find_and_let_one_join(query: Query) -> object:
        found = find(query)
        if query.pipeline == nodes_of("") and not query.due:
            rig.store.find = find  # type: ignore[method-assign]
            rig.held(rig.node("newcomer"))
        return found

    rig.store.find = find_and_let_one_join  # type: ignore[assignment,method-assign]
    sweeper.leases.sweep()
    assert sweeper.world.seen(PartitionOrphaned) == []


def test_rows_of_unknown_owners_are_freed(rig: Rig) -> None:
    node = rig.node()
    rig.table.add([make_row("k", status=Status.ASSIGNED, owner="nobody knows", due_at=None, token=4)])
    node.leases.sweep()
    (lease,) = node.leases.claim(1)
    assert lease.token == 5


def test_a_write_is_told_with_the_row_before_and_after(rig: Rig) -> None:
    node = rig.node()
    lease = rig.held(node)
    node.leases.write([lease], transitions.complete)
    (change,) = node.world.seen(PartitionChanged)
    assert (change.before["status"], change.after["status"]) == ("ASSIGNED", "COMPLETED")


def test_a_lost_lease_is_told_and_not_raised(rig: Rig) -> None:
    node = rig.node()
    lease = rig.held(node)
    taken = replace(lease, ownership=replace(lease.ownership, owner="you", token=2))
    rig.table.swap([Swap(lease.version, touched(taken))])
    (lost,) = node.leases.write([lease], transitions.complete)
    assert isinstance(lost, LeaseLost)
    assert [event.key for event in node.world.seen(PartitionLost)] == ["k"]


def test_leases_are_handed_back_at_once(rig: Rig) -> None:
    node = rig.node()
    node.leases.create([Partition("a"), Partition("b")])
    node.leases.release(node.leases.claim(2))
    assert rig.table.count(PIPELINE) == {Status.UNASSIGNED: 2}
    assert [event.key for event in node.world.seen(PartitionReleased)] == ["a", "b"]


def test_very_many_partitions_are_made_in_the_order_given(rig: Rig) -> None:
    node = rig.node()
    keys = [f"{(number * 7919) % 1201:04d}" for number in range(1201)]
    assert node.leases.create(Partition(key) for key in keys) == 1201
    assert node.leases.create(Partition(key) for key in keys) == 0
    assert [event.count for event in node.world.seen(PartitionsCreated)] == [1201]
    assert [lease.key for lease in node.leases.claim(1201)] == keys
    assert node.leases.counts() == {Status.ASSIGNED: 1201}
