"""Leases that a lost answer or a hand-off gave to a node that may not work on them: it hands them back."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import pytest

from holdfast.errors import AnswerLost, StoreUnavailable
from holdfast.events import PartitionReleased
from holdfast.flow.batch import Limits, Wait
from holdfast.flow.generations import NodeGeneration
from holdfast.flow.loop import LoopSettings, PipelineLoop
from holdfast.flow.pipeline import Pipeline
from holdfast.flow.run import RunStatus
from holdfast.flow.runs import Runs
from holdfast.leases.lease import Lease, Partition, Status
from holdfast.leases.store import ClaimRequest, Swap
from holdfast.leases.transitions import hand_off, stamped
from holdfast.stores.memory import MemoryStore
from tests.unit.flow.rig import Fleet, TestNode


class LosingStore(MemoryStore):
    """Applies claims and loses the responses, while a test wants that."""

    losing = False

    def claim(self, request: ClaimRequest) -> list[Lease]:
        taken = super().claim(request)
        if self.losing and taken:
            raise AnswerLost("no answer to a claim")
        return taken


class Switched:
    """The generation of a node that the test switches."""

    def __init__(self, number: int | None) -> None:
        self.number = number

    def current(self) -> int | None:
        return self.number

    def has_parsing_of(self, number: int) -> bool:
        return number == self.number

    def seal(self, number: int) -> bool:
        return True


def loop_of(
    node: TestNode,
    runs: Runs | None = None,
    generation: NodeGeneration | None = None,
    may_claim: Callable[[], bool] = lambda: True,
) -> PipelineLoop:
    coordinator = node.coordinator if runs is None else runs.coordinator("r")
    return PipelineLoop(
        coordinator,
        Pipeline(node.fleet.source, (), {}),
        node.engine,
        settings=LoopSettings(),
        may_claim=may_claim,
        generation=generation,
    )


def test_a_run_that_is_stopped_just_after_a_claim_whose_answer_was_lost_comes_to_its_end() -> None:
    fleet = Fleet({})
    store = fleet.store = LosingStore(fleet.clock.monotonic)
    node = TestNode(fleet).join()
    runs = Runs(node.coordinator)
    runs.add("r", configuration=None, created_by="ann")
    runs.create("r", 1, [Partition("p", spec={"size": 5})])
    runs.start("r", 1)
    node.loop = loop_of(node, runs, may_claim=lambda: runs.is_running("r"))
    store.losing = True
    node.turn()
    store.losing = False
    runs.stop("r")
    for _ in range(2):
        fleet.clock.wait(15)
        node.session.heartbeat()
        node.turn()
    assert runs.settle_stop("r").status is RunStatus.STOPPED
    assert [event.key for event in fleet.emitted(PartitionReleased)] == ["p"]


@pytest.mark.parametrize("names", list(itertools.permutations(["x", "b", "c"])))
def test_what_is_handed_to_a_node_after_its_generation_has_passed_is_handed_back(names: Sequence[str]) -> None:
    fleet = Fleet({f"p{number:02}": 10**9 for number in range(12)})
    fleet.source.lives_long = True

    def plan(leases: Sequence[Lease], limits: Limits) -> list[Wait]:
        return [Wait(0.5) for _ in leases]

    fleet.source.plan = plan  # type: ignore[method-assign,assignment]
    nodes = [TestNode(fleet, name) for name in names]
    generations = [Switched(1), Switched(None), Switched(None)]
    for node, generation in zip(nodes, generations, strict=True):
        node.loop = loop_of(node, generation=generation)
        node.join()

    def passes(*chosen: TestNode) -> None:
        for node in chosen:
            node.loop._acquirer._next_look = node.loop._acquirer._next_pass = 0.0
            node.turn()

    old, new, newer = nodes
    old.session.heartbeat()
    passes(old, old, old, new, newer)
    for generation, number in zip(generations, (None, 1, 1), strict=True):
        generation.number = number
    passes(old, new)
    for node in (new, newer, old):
        node.session.heartbeat()
        passes(new, newer, new)
    for _ in range(10):
        fleet.clock.wait(3.0)
        for node in nodes:
            node.session.heartbeat()
        passes(*nodes)
    owners = [fleet.row(key).owner for key in fleet.source.sizes]
    assert sorted(map(owners.count, {new.session.id, newer.session.id})) == [6, 6]


def test_a_node_whose_pipeline_is_finished_hands_back_what_is_given_to_it_later() -> None:
    fleet = Fleet({"p": 2})
    node = TestNode(fleet).start()
    node.stage("p")
    node.turn(3)
    assert node.loop.finished
    giver = TestNode(fleet, "b").join()
    giver.coordinator.create([Partition("late", spec={"size": 1})])
    (lease,) = giver.coordinator.claim(1)
    given = stamped(lease, hand_off(lease, node.session.id, fleet.clock.time), "given")
    fleet.store.swap([Swap(lease.version, given)])
    fleet.clock.wait(15)
    node.node._turn([])
    assert (fleet.row("late").status, fleet.row("late").owner) == (Status.UNASSIGNED, None)


def test_a_run_whose_row_cannot_be_read_for_a_moment_goes_on() -> None:
    fleet = Fleet({"p": 5})
    node = TestNode(fleet).join()
    answers = iter([True])

    def may_claim() -> bool:
        try:
            return next(answers)
        except StopIteration:
            raise StoreUnavailable("it is away") from None

    node.loop = loop_of(node, may_claim=may_claim)
    node.turn(2)
    fleet.clock.wait(15)
    node.session.heartbeat()
    node.turn()
    assert fleet.row("p").status is Status.ASSIGNED
    assert node.engine.out
