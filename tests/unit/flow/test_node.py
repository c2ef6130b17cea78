from __future__ import annotations

from holdfast.events import NodeJoined, NodeLeft, SessionEnded
from holdfast.flow.batch import Limits
from holdfast.leases.lease import Key, Status
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
    assert fleet.told(NodeLeft)


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
    joined = [event.session for event in fleet.told(NodeJoined)]
    assert len(joined) == len(set(joined)) == 2
    assert [event.session for event in fleet.told(SessionEnded)] == first
    assert fleet.row("p").token == 2
