from __future__ import annotations

import dataclasses
import sys
from types import FrameType
from typing import Any

import pytest

from holdfast.errors import Interrupted, SessionExpired
from holdfast.events import Heartbeat, HeartbeatWithheld, NodeExpired, NodeJoined, NodeLeft, SessionEnded
from holdfast.leases.keeper import Keeper
from holdfast.leases.lease import Lease, Status
from holdfast.leases.query import Query
from holdfast.leases.session import Session, expire_silent_sessions, node_info, nodes_of
from holdfast.testing.faults import Fault
from tests.unit.leases.rig import Node, Rig

NODES = nodes_of("")


def session_row(rig: Rig, node: Node) -> Lease:
    return rig.row(node.session.id, NODES)


def keeper_of(node: Node) -> Keeper:
    keeper = Keeper(node.session, node.world)
    keeper.step("loop", 1e9)
    return keeper


def test_joining_makes_the_node_known() -> None:
    rig = Rig()
    node = rig.node("replica1")
    row = session_row(rig, node)
    assert (row.status, row.owner) == (Status.ASSIGNED, node.session.id)
    assert row.ownership.due_at == rig.clock.monotonic() + 30.0
    assert node_info(row).name == "replica1"
    assert node.session.id.startswith("replica1:")
    assert node.world.seen(NodeJoined) == [NodeJoined("replica1", node.session.id)]


def test_whoever_joins_again_is_somebody_else() -> None:
    node = Rig().node()
    first = node.session.id
    node.session.join()
    assert node.session.id != first


def test_a_heartbeat_renews_by_the_clock_of_the_store() -> None:
    rig = Rig()
    node = rig.node()
    rig.clock.turn(20.0)
    node.session.heartbeat()
    row = session_row(rig, node)
    assert row.ownership.due_at == rig.clock.monotonic() + 30.0
    assert (node_info(row).counter, node_info(row).last_heartbeat) == (1, rig.clock.monotonic())
    assert [event.counter for event in node.world.seen(Heartbeat)] == [1]


def test_the_time_of_the_store_goes_on_between_heartbeats_by_the_nodes_own_clock() -> None:
    rig = Rig()
    node = rig.node()
    rig.node_clock.turn(7.0)
    assert node.session.store_time == rig.store.now() + 7.0
    rig.clock.turn(20.0)
    node.session.heartbeat()
    assert node.session.store_time == rig.store.now()


def test_a_node_stops_using_its_leases_before_others_may_take_them() -> None:
    rig = Rig()
    node = rig.node()
    usable = []
    for seconds in (26.4, 0.2):
        rig.node_clock.turn(seconds)
        usable.append(node.session.usable)
    assert usable == [True, False], "30 s less 5 % for the rate of its clock, less a margin of 2 s"
    node.session.heartbeat()
    assert node.session.usable


def test_time_spent_waiting_for_the_answer_is_not_counted_as_kept() -> None:
    rig = Rig()
    node = rig.node()
    rig.store.order("swap", *[Fault.AWAY] * 8)
    node.session.heartbeat()
    (beat,) = node.world.seen(Heartbeat)
    assert beat.usable_for == pytest.approx(26.5)
    rig.node_clock.turn(26.5 - sum(rig.node_clock.waits) + 0.1)
    assert not node.session.usable


def test_an_abandoned_session_is_unusable_at_once_and_still_there() -> None:
    rig = Rig()
    node = rig.node()
    node.session.abandon()
    assert not node.session.usable
    assert session_row(rig, node).status is Status.ASSIGNED


def test_draining_is_told_with_the_next_heartbeat_and_over_with_the_next_session() -> None:
    rig = Rig()
    node = rig.node()
    node.session.drain()
    node.session.heartbeat()
    assert node_info(session_row(rig, node)).draining
    node.session.join()
    assert not node_info(session_row(rig, node)).draining


def test_draining_that_begins_while_a_heartbeat_is_measured_is_not_undone() -> None:
    rig = Rig()
    node = rig.node()

    def measured() -> dict[str, int]:
        node.session.drain()
        node.session.take_part("refunds", taking=True)
        return {"lag": 7}

    node.session.measured = measured
    node.session.heartbeat()
    info = node_info(session_row(rig, node))
    assert (info.draining, "refunds" in info.pipelines, info.measured) == (True, True, {"lag": 7})


@pytest.mark.parametrize("step", range(1, 30))
def test_what_other_threads_announce_during_any_step_of_a_heartbeat_is_not_undone(step: int) -> None:
    rig = Rig()
    node = rig.node()
    traced, lines = {Session.heartbeat.__code__, dataclasses.replace.__code__}, list[int]()

    def drain_at_step(frame: FrameType, event: str, _argument: Any) -> Any:
        if frame.f_code not in traced:
            return None
        if event == "line":
            lines.append(frame.f_lineno)
            if len(lines) == step:
                node.session.drain()
        return drain_at_step

    before = sys.gettrace()
    sys.settrace(drain_at_step)
    try:
        node.session.heartbeat()
    finally:
        sys.settrace(before)
    node.session.heartbeat()
    assert node_info(session_row(rig, node)).draining == (len(lines) >= step), f"undone at line {lines[-1]}"


def test_leaving_ends_the_session_at_once_and_may_be_repeated() -> None:
    rig = Rig()
    node = rig.node()
    node.session.leave()
    node.session.leave()
    assert session_row(rig, node).status is Status.COMPLETED
    assert not node.session.usable
    assert len(node.world.seen(NodeLeft)) == 1
    with pytest.raises(SessionExpired):
        node.session.heartbeat()


def test_nothing_can_be_renewed_before_joining() -> None:
    rig = Rig()
    node = rig.node()
    node.session._row = None
    with pytest.raises(SessionExpired, match="not joined"):
        node.session.heartbeat()


# --- silence -----------------------------------------------------------------------------------------------------


def test_a_silent_session_is_ended_once_and_for_all() -> None:
    rig = Rig()
    silent, watcher = rig.node("silent"), rig.node("watcher")
    rig.pass_time(29.0, watcher)
    watcher.leases.sweep()
    assert session_row(rig, silent).status is Status.ASSIGNED
    rig.pass_time(2.0, watcher)
    watcher.leases.sweep()
    watcher.leases.sweep()
    assert watcher.world.seen(NodeExpired) == [NodeExpired(silent.session.id, watcher.session.id)]
    with pytest.raises(SessionExpired, match="ended by another node"):
        silent.session.heartbeat()
    assert session_row(rig, silent).status is Status.COMPLETED
    assert not silent.session.usable


def test_a_renewal_that_comes_first_wins() -> None:
    rig = Rig()
    late, watcher = rig.node("late"), rig.node("watcher")
    rig.clock.turn(31.0)
    stale = rig.store.find(Query(NODES, statuses=(Status.ASSIGNED,), due=True))
    late.session.heartbeat()
    rig.store.find = lambda query: stale  # type: ignore[method-assign]
    expire_silent_sessions(rig.store, watcher.world, NODES, "watcher")
    late.session.heartbeat()


def test_a_store_that_is_away_ends_nobody() -> None:
    rig = Rig()
    silent, watcher = rig.node("silent"), rig.node("watcher")
    rig.pass_time(31.0, watcher)
    rig.store.order("find", Fault.AWAY, Fault.AWAY)
    watcher.leases.sweep()
    assert session_row(rig, silent).status is Status.ASSIGNED


def test_rows_of_sessions_that_ended_long_ago_are_removed_by_the_next_one_that_joins() -> None:
    rig = Rig()
    for name in ("old", "recent"):
        node = rig.node(name)
        node.session.leave()
        rig.clock.turn(20 * 3600.0)
    rig.node("new")
    names = [node_info(row).name for row in rig.table.find(Query(NODES))]
    assert sorted(names) == ["new", "recent"]


def test_fleets_are_named_by_their_prefix() -> None:
    assert (nodes_of(""), nodes_of("east")) == ("$nodes", "east|$nodes")


# --- the keeper --------------------------------------------------------------------------------------------------


def test_the_keeper_renews_until_it_is_stopped() -> None:
    rig = Rig()
    node = rig.node()
    keeper = keeper_of(node)
    keeper.start()
    rig.node_clock.on_wait = lambda: keeper.stop() if len(rig.node_clock.waits) == 5 else None
    (work,) = node.world.spawned
    work()
    assert len(node.world.seen(Heartbeat)) == 4
    assert all(10.0 <= wait <= 11.0 for wait in rig.node_clock.waits)


def test_the_keeper_withholds_the_heartbeat_while_a_step_is_overdue() -> None:
    rig = Rig()
    node = rig.node()
    keeper = Keeper(node.session, node.world)
    keeper.step("commit", 25.0)
    keeper.start()

    def loop() -> None:
        if len(rig.node_clock.waits) == 6:
            keeper.step("plan", 25.0)
        if len(rig.node_clock.waits) == 8:
            keeper.stop()

    rig.node_clock.on_wait = loop
    node.world.spawned[0]()
    withheld = node.world.seen(HeartbeatWithheld)
    kinds = [type(event) for event in node.world.events if isinstance(event, Heartbeat | HeartbeatWithheld)]
    assert kinds[0] is Heartbeat
    assert HeartbeatWithheld in kinds
    assert kinds[-1] is Heartbeat, "a loop that goes on is renewed again"
    assert {event.step for event in withheld} == {"commit"}
    assert all(event.seconds > 0 for event in withheld)


def test_a_keeper_whose_loop_never_begins_a_step_lets_the_session_go() -> None:
    rig = Rig()
    node = rig.node()
    keeper = Keeper(node.session, node.world)
    keeper.start()
    rig.node_clock.on_wait = lambda: keeper.stop() if rig.node_clock.monotonic() > 150.0 else None
    node.world.spawned[0]()
    assert node.world.seen(HeartbeatWithheld)


def test_the_keeper_reports_that_the_session_has_ended_and_stops() -> None:
    rig = Rig()
    node, watcher = rig.node(), rig.node("watcher")
    rig.pass_time(31.0, watcher)
    watcher.leases.sweep()
    keeper = keeper_of(node)
    keeper.start()
    node.world.spawned[0]()
    (ended,) = node.world.seen(SessionEnded)
    assert ended.session == node.session.id
    assert ended.reason.startswith("it was ended by another node")


def test_a_keeper_that_comes_back_from_a_heartbeat_of_the_former_session_does_not_report_the_new_one() -> None:
    rig = Rig()
    node = rig.node()
    former = node.session.id
    keeper = keeper_of(node)
    keeper.start()

    def join_anew() -> None:
        if len(rig.node_clock.waits) == 2:  # the keeper of the former session waits for the store
            node.session.tell_ended(former, "no answer came")
            node.session.join()

    rig.store.order("now", Fault.AWAY)
    rig.node_clock.on_wait = join_anew
    node.world.spawned[0]()
    assert node.world.seen(SessionEnded) == [SessionEnded(former, "no answer came")]
    assert node.session.usable


def test_an_end_is_reported_once_with_its_first_reason_and_not_after_the_session_was_left() -> None:
    rig = Rig()
    node = rig.node()
    for reason in ("first", "second"):
        node.session.tell_ended(node.session.id, reason)
    assert node.world.seen(SessionEnded) == [SessionEnded(node.session.id, "first")]
    node.session.join()
    node.session.leave()
    node.session.tell_ended(node.session.id, "too late")
    assert len(node.world.seen(SessionEnded)) == 1
    assert [event.session for event in node.world.seen(NodeLeft)] == [node.session.id]


def test_a_node_that_leaves_a_session_that_was_ended_says_so() -> None:
    rig = Rig()
    node, watcher = rig.node(), rig.node("watcher")
    rig.pass_time(31.0, watcher)
    watcher.leases.sweep()
    node.session.leave()
    assert [event.session for event in node.world.seen(SessionEnded)] == [node.session.id]
    assert node.world.seen(NodeLeft) == []


def test_a_second_shift_of_the_keeper_ends_the_first() -> None:
    rig = Rig()
    node = rig.node()
    keeper = keeper_of(node)
    keeper.start()
    keeper.start()
    first, second = node.world.spawned
    first()
    assert rig.node_clock.waits == []
    rig.node_clock.on_wait = keeper.stop
    second()
    assert len(rig.node_clock.waits) == 1


def test_the_keeper_ends_when_the_process_must_stop() -> None:
    rig = Rig()
    node = rig.node()
    keeper = keeper_of(node)
    keeper.start()
    rig.node_clock.interrupt_after(3)
    node.world.spawned[0]()
    assert len(node.world.seen(Heartbeat)) == 3
    with pytest.raises(Interrupted):
        rig.node_clock.wait(1.0)
