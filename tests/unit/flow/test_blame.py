"""Take-overs: only deaths that a batch may have caused count against its partition."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from holdfast.flow.batch import Limits, Wait
from holdfast.flow.engine import Failed
from holdfast.leases.lease import Lease, Status
from holdfast.leases.transitions import RetryLimits
from tests.unit.flow.rig import Fleet, TestNode

STRICT = RetryLimits(max_takeovers=2)


def quiet_fleet(*keys: str) -> Fleet:
    """Partitions that live long and bring nothing."""
    fleet = Fleet(dict.fromkeys(keys, 10**9))
    fleet.source.lives_long = True

    def plan(leases: Sequence[Lease], limits: Limits) -> list[Wait]:
        return [Wait(1.0) for _ in leases]

    fleet.source.plan = plan  # type: ignore[method-assign,assignment]
    return fleet


def die(fleet: Fleet) -> None:
    """Nobody says anything for longer than a session lasts."""
    fleet.clock.wait(31)


def outage(node: TestNode) -> None:
    """No heartbeat gets through for longer than the session lasts; then the node notices it and joins anew."""
    node.fleet.clock.wait(40)
    node.node._turn([])


def test_a_quiet_partition_survives_any_number_of_unclean_deaths() -> None:
    fleet = quiet_fleet("p", "q")
    for life in range(15):
        TestNode(fleet, f"n{life}", retries=STRICT).start()
        assert {fleet.row(key).status for key in "pq"} == {Status.ASSIGNED}
        die(fleet)
    assert {fleet.row(key).history.takeovers for key in "pq"} == {0}


def test_a_partition_whose_turn_never_came_is_not_blamed_for_what_its_company_did() -> None:
    fleet = Fleet({"p": 3, "q": 3})
    for life in range(6):
        node = TestNode(fleet, f"n{life}", retries=STRICT, max_batches=1).join()
        node.engine._room = 1
        node.turn(3)
        die(fleet)
    statuses = {key: fleet.row(key).status for key in "pq"}
    assert statuses["p"] is Status.FAILED
    assert "its owner died 3 times" in str(fleet.row("p").history.halt_reason)
    assert fleet.row("q").history.takeovers <= 2


def test_a_batch_that_kills_its_node_is_halted_after_as_many_deaths_as_are_allowed() -> None:
    fleet = Fleet({"p": 3})
    deaths = 0
    while True:
        node = TestNode(fleet, f"n{deaths}").start()
        if fleet.row("p").status is Status.FAILED:
            break
        assert node.engine.out
        die(fleet)
        deaths += 1
    assert deaths == RetryLimits().max_takeovers + 1


def test_a_batch_costs_a_write_of_its_own_only_after_an_owner_has_died() -> None:
    fleet = Fleet({"p": 10})
    first = TestNode(fleet, "a", limits=Limits(max_records=2)).start()
    assert fleet.row("p").version == 1, "one write: the claim"
    die(fleet)
    heir = TestNode(fleet, "b", limits=Limits(max_records=2)).start()
    row = fleet.row("p")
    assert (row.history.begun, row.history.takeovers) == (True, 1)
    assert heir.engine.batch_of("p").lease == row
    before = row.version
    for number in (1, 2):
        heir.stage("p")
        heir.turn()
        assert fleet.row("p").version == before + 2 * number, "commit and publish, nothing else"
        assert fleet.row("p").history.begun is None
    assert first.engine.out


def test_a_batch_that_ended_before_its_node_died_is_not_blamed() -> None:
    fleet = Fleet({"p": 3})
    TestNode(fleet, "a").start()
    die(fleet)
    for life in range(5):
        node = TestNode(fleet, f"b{life}", retries=RetryLimits(max_retries=100, backoff=1.0, max_backoff=1.0)).start()
        node.engine.report(Failed(node.engine.batch_of("p").id, "broken"))
        node.turn()
        row = fleet.row("p")
        assert (row.status, row.history.begun, row.history.takeovers) == (Status.UNASSIGNED, False, 1)
        die(fleet)


def test_a_batch_that_came_back_before_another_round_was_sent_is_not_blamed_for_that_round() -> None:
    fleet = Fleet({"p": 3, "q": 3})
    for name in "ab":
        TestNode(fleet, name, retries=STRICT).start()
        die(fleet)
    node = TestNode(fleet, "c", retries=STRICT).start()
    (innocent,) = node.engine.out.values()
    node.engine.report(Failed(innocent.id, "an executor was lost", unavailable=True))
    node.turn()
    (killer,) = node.engine.out.values()
    assert killer.lease.key != innocent.lease.key, "suspects that have a single take-over left run alone"
    assert [fleet.row(batch.lease.key).history.begun for batch in (innocent, killer)] == [False, True]
    die(fleet)
    TestNode(fleet, "d", retries=STRICT).start()
    assert fleet.row(killer.lease.key).status is Status.FAILED
    row = fleet.row(innocent.lease.key)
    assert (row.status, row.history.takeovers) == (Status.ASSIGNED, 2)


def test_a_batch_that_came_back_without_a_result_costs_no_write_while_nothing_else_is_sent() -> None:
    fleet = Fleet({"p": 3})
    TestNode(fleet, "a").start()
    die(fleet)
    node = TestNode(fleet, "b").start()
    before = fleet.row("p")
    for _ in range(3):
        node.engine.report(Failed(node.engine.batch_of("p").id, "the bucket is down", unavailable=True))
        node.turn()
        fleet.clock.wait(10)
        node.session.heartbeat()
        node.turn(2)
    assert fleet.row("p").version == before.version


@pytest.mark.parametrize("retries", [STRICT, RetryLimits()])
def test_outages_of_the_store_are_not_blamed_on_what_a_node_had_out_or_held(retries: RetryLimits) -> None:
    fleet = Fleet({"p": 3})
    node = TestNode(fleet, retries=retries).start()
    for _ in range(15):
        assert node.engine.out, "the batch is read again each time"
        outage(node)
        node.turn(2)
        assert fleet.row("p").status is Status.ASSIGNED
    assert fleet.row("p").history.takeovers == 0


def test_a_session_that_takes_its_own_lease_again_counts_nothing() -> None:
    fleet = Fleet({"p": 3})
    node = TestNode(fleet, retries=STRICT).start()
    watcher = TestNode(fleet, "watcher").join()
    fleet.clock.wait(29)
    watcher.session.heartbeat()
    fleet.clock.wait(2)
    watcher.coordinator.sweep()
    (lease,) = node.coordinator.claim(1)
    assert (lease.owner, lease.token, lease.history.takeovers, lease.history.begun) == (node.session.id, 2, 0, None)


def test_a_death_that_was_planned_is_not_blamed() -> None:
    fleet = Fleet({"p": 3})
    TestNode(fleet, "a").start()
    die(fleet)
    for life in range(4):
        node = TestNode(fleet, f"b{life}", retries=STRICT).start()
        assert fleet.row("p").history.begun
        node.session.drain()
        node.session.heartbeat()  # it has announced that it stops, and is killed before it does
        die(fleet)
    row = fleet.row("p")
    assert (row.status, row.history.takeovers) == (Status.ASSIGNED, 1)


def test_what_a_lost_answer_left_with_a_node_that_has_left_in_order_is_not_blamed_on_it() -> None:
    fleet = Fleet({"p": 3})
    node = TestNode(fleet).start()
    node.session.drain()
    node.session.leave()  # without handing back
    TestNode(fleet, "b").join().coordinator.sweep()
    row = fleet.row("p")
    assert (row.status, row.owner, row.history.takeovers) == (Status.UNASSIGNED, None, 0)
