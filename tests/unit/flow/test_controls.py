"""People pause pipelines and drain nodes: nodes notice it within a heartbeat, and nothing is lost."""

from __future__ import annotations

import pytest

from holdfast.flow.loop import LoopSettings, PipelineLoop
from holdfast.flow.pipeline import Pipeline
from holdfast.leases.controls import Controls
from holdfast.leases.lease import Status
from holdfast.service import permission_of
from tests.unit.flow.rig import PIPELINE, Fleet, TestNode


class Controlled(TestNode):
    """A node that reads the controls on each pass."""

    def __init__(self, fleet: Fleet, name: str) -> None:
        super().__init__(fleet, name)
        self.loop = PipelineLoop(
            self.coordinator,
            Pipeline(fleet.source, (), {}),
            self.engine,
            settings=LoopSettings(),
            may_claim=permission_of(self.coordinator),
        )

    def pass_by(self, heartbeats: int = 1) -> None:
        for _ in range(heartbeats):
            self.fleet.clock.wait(13)
            self.session.heartbeat()
            self.loop.turn([], lambda _name, _limit: None)


@pytest.fixture
def fleet() -> Fleet:
    return Fleet({f"p{number}": 5 for number in range(4)})


@pytest.fixture
def controls(fleet: Fleet) -> Controls:
    return Controls(fleet.store, lambda: next(fleet.ids), "$nodes")


def started(fleet: Fleet, name: str) -> Controlled:
    node = Controlled(fleet, name)
    node.join()
    node.coordinator.create(fleet.source.discover({}))
    node.loop.turn([], lambda _name, _limit: None)
    return node


def test_a_paused_pipeline_is_handed_back_until_it_is_resumed(fleet: Fleet, controls: Controls) -> None:
    node = started(fleet, "a")
    assert len(node.engine.out) == 4
    controls.pause(PIPELINE, "ann")
    controls.pause(PIPELINE, "ann")
    node.pass_by()
    assert (dict(node.engine.out), fleet.row("p0").status) == ({}, Status.UNASSIGNED)
    assert (controls.paused(), controls.drained()) == ({PIPELINE}, set())
    node.pass_by(3)
    assert not node.engine.out
    controls.resume(PIPELINE)
    node.pass_by(2)
    assert (len(node.engine.out), controls.paused()) == (4, set())


def test_a_drained_node_works_on_nothing_and_the_others_go_on(fleet: Fleet, controls: Controls) -> None:
    drained, other = started(fleet, "a"), started(fleet, "b")
    controls.drain("a", "ann")
    assert controls.drained() == {"a"}
    drained.pass_by()
    other.pass_by(2)
    assert (len(drained.engine.out), len(other.engine.out)) == (0, 4)
    restarted = started(fleet, "a")
    restarted.pass_by(2)
    assert not restarted.engine.out
    controls.undrain("a")
    assert controls.permit(PIPELINE, "a")


def test_controls_of_another_pipeline_or_node_change_nothing(fleet: Fleet, controls: Controls) -> None:
    node = started(fleet, "a")
    controls.pause("another", "ann")
    controls.drain("b", "ann")
    node.pass_by(2)
    assert len(node.engine.out) == 4
