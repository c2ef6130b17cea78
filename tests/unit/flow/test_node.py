from __future__ import annotations

from typing import cast

import pytest

from holdfast.errors import StoreUnavailable
from holdfast.events import NodeJoined, NodeLeft, SessionEnded
from holdfast.flow.batch import Limits
from holdfast.flow.engine import Report
from holdfast.flow.loop import PipelineLoop
from holdfast.flow.node import BRIEF_WAIT, IDLE_WAIT, Node
from holdfast.leases.keeper import STOOD_STILL
from holdfast.leases.lease import Key, Partition, Status
from holdfast.leases.session import node_info
from holdfast.leases.source_coordinator import SourceCoordinator
from holdfast.leases.transitions import RetryLimits
from tests.unit.flow.rig import Fleet, TestNode


def stage_everything(node: TestNode) -> None:
    for batch in list(node.engine.out.values()):
        node.stage(batch.lease.key)


def test_a_node_ends_by_itself_when_its_bounded_pipelines_are_finished() -> None:
    fleet = Fleet({"p": 5, "q": 5})
    node = TestNode(fleet, limits=Limits(max_records=2))

    def script() -> None:
        stage_everything(node)
        node.session.heartbeat()

    node.engine.script = script
    node.node.run()
    assert sorted(fleet.visible()) == sorted([*range(5), *range(5)])
    assert node.engine.closed
    assert fleet.emitted(NodeLeft)


def test_a_node_takes_what_discovery_finds_without_waiting_for_its_next_idle_turn() -> None:
    fleet = Fleet({"p": 5})
    node = TestNode(fleet)
    begun: list[float] = []

    def script() -> None:
        if node.engine.out:
            begun.append(fleet.clock.time)
            node.node.stop()

    node.engine.script = script
    started = fleet.clock.time
    node.node.run()
    assert begun[0] - started <= BRIEF_WAIT + IDLE_WAIT, "the engine was polled once while it had work"


def test_a_node_that_is_stopped_hands_back_what_its_sources_coordinate() -> None:
    fleet = Fleet({"p": 5})
    node = TestNode(fleet)
    coordinator = SourceCoordinator(fleet.store, node.world, node.session, "listing")
    beside = Node(node.session, [node.loop], node.engine, node.world, coordinators=[coordinator])

    def script() -> None:
        if coordinator.create_partitions([Partition("page")]):
            assert coordinator.acquire_next() is not None
            beside.stop()

    node.engine.script = script
    beside.run()
    (row,) = fleet.store.get([Key("listing", "", "page")])
    assert row is not None
    assert (row.status, row.owner) == (Status.UNASSIGNED, None)


def test_a_node_that_is_stopped_finishes_what_is_nearly_done_and_hands_everything_back() -> None:
    fleet = Fleet({"p": 5, "q": 5})
    node = TestNode(fleet, limits=Limits(max_records=2))

    def script() -> None:
        if len(node.engine.out) == 2:
            node.node.stop()
        if node.engine.drained and len(node.engine.out) == 2:
            node.stage("p")

    node.engine.script = script
    started = fleet.clock.time
    node.node.run()
    assert fleet.clock.time - started < 10
    assert [(fleet.row(key).status, fleet.row(key).progress.position) for key in "pq"] == [
        (Status.UNASSIGNED, 2),
        (Status.UNASSIGNED, None),
    ]
    assert fleet.visible() == [0, 1]
    (session,) = fleet.store.get([Key("$nodes", "", node.session.id)])
    assert session is not None
    assert session.status is Status.COMPLETED, "nobody has to wait for its timeout"


def test_a_node_that_could_not_renew_in_time_drops_its_work_and_joins_as_somebody_else() -> None:
    fleet = Fleet({"p": 5})
    node = TestNode(fleet)
    first: list[str] = []

    def script() -> None:
        if node.engine.out and not first:
            first.append(node.session.id)
            fleet.clock.wait(40)
        elif first and node.session.id != first[0] and node.engine.out:
            node.node.stop()

    node.engine.script = script
    node.node.run()
    joined = [event.session for event in fleet.emitted(NodeJoined)]
    assert len(joined) == len(set(joined)) == 2
    assert fleet.emitted(SessionEnded) == [SessionEnded(first[0], STOOD_STILL)]
    assert fleet.row("p").token == 2


def test_an_error_in_the_loop_counts_a_take_over_so_that_a_partition_cannot_kill_every_node_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fleet = Fleet({"p": 5})
    TestNode(fleet).start().loop.hand_back()
    for life in range(2):
        node = TestNode(fleet, f"n{life}", retries=RetryLimits(max_takeovers=1))

        def broken(timeout: float, node: TestNode = node) -> list[Report]:
            if node.engine.out:
                raise KeyError("the engine's mistake")
            return []

        monkeypatch.setattr(node.engine, "poll", broken)
        with pytest.raises(KeyError):
            node.node.run()
        assert node.engine.closed
    assert fleet.row("p").history.takeovers == 1
    halted = TestNode(fleet, "last", retries=RetryLimits(max_takeovers=1))
    halted.engine.script = halted.node.stop
    halted.node.run()
    assert fleet.row("p").status is Status.FAILED


def test_a_node_that_is_stopped_while_the_store_is_away_ends_without_an_error() -> None:
    fleet = Fleet({"p": 5})
    node = TestNode(fleet)

    def script() -> None:
        if node.engine.out:
            fleet.clock.interrupted = True
            fleet.store.now = away  # type: ignore[method-assign]
            node.node.stop()

    def away() -> float:
        raise StoreUnavailable("it is away")

    node.engine.script = script
    assert node.node.run() is False
    assert node.engine.closed


def test_the_node_says_that_it_is_draining_before_it_leaves() -> None:
    fleet = Fleet({"p": 5})
    node = TestNode(fleet)
    said: list[bool] = []

    def script() -> None:
        if node.engine.drained:
            node.session.heartbeat()
            (row,) = fleet.store.get([Key("$nodes", "", node.session.id)])
            assert row is not None
            said.append(node_info(row).draining)
        elif node.engine.out:
            node.node.stop()

    node.engine.script = script
    node.node.run()
    assert said
    assert all(said)


class HandingOver:
    """A loop with an endless batch that ends as soon as it is drained."""

    hands_over = finished = True
    discovering = eager = False

    def __init__(self, fleet: Fleet, node: TestNode) -> None:
        self.busy = True
        self.drained_at = 0.0
        self.announced_at: float | None = None
        self._fleet = fleet
        self._node = node

    def turn(self, *_: object) -> None:
        (row,) = self._fleet.store.get([Key("$nodes", "", self._node.session.id)])
        if row is not None and node_info(row).draining and self.announced_at is None:
            self.announced_at = self._fleet.clock.time

    def take_no_more(self) -> None:
        assert self.busy

    def drain(self) -> None:
        self.busy, self.drained_at = False, self._fleet.clock.time

    def hand_back(self) -> None:
        assert not self.busy


def test_a_node_that_leaves_works_on_until_the_others_have_looked_at_the_store() -> None:
    fleet = Fleet({})
    node = TestNode(fleet)
    loop = HandingOver(fleet, node)
    Node(node.session, [cast("PipelineLoop", loop)], node.engine, node.world).run()
    assert loop.announced_at is not None
    assert loop.drained_at - loop.announced_at >= 3.0
