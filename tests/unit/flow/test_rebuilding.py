"""A commit whose staged data is gone: who makes it again, from what, and when nobody can."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from holdfast.events import PartitionHalted
from holdfast.flow.batch import Cut, Done, Limits, Wait
from holdfast.flow.generations import FixedGeneration
from holdfast.flow.manifest import decode_manifest
from holdfast.leases.lease import Lease, Status
from holdfast.leases.operator import Operator
from holdfast.testing.flows import NumbersSource
from tests.unit.flow.rig import PIPELINE, Fleet, TestNode


def committed_without_staged_data(fleet: Fleet) -> None:
    """A commit of generation 1 is pending, its staged data has expired, and its owner has left."""
    bucket = fleet.buckets["files"]
    old = TestNode(fleet, "old", generation=1).start()
    old.stage("p")
    bucket.away = True
    old.turn()
    bucket.away = False
    bucket.staged.clear()
    old.loop.hand_back()
    old.session.leave()


def turned_until(fleet: Fleet, node: TestNode, reached: Callable[[Lease], bool], turns: int = 30) -> Lease:
    for _ in range(turns):
        if reached(fleet.row("p")):
            break
        fleet.clock.time += 10.0
        node.session.heartbeat()
        node.turn()
    return fleet.row("p")


def test_a_commit_that_no_node_can_make_again_halts_with_the_reason() -> None:
    fleet = Fleet({"p": 10})
    committed_without_staged_data(fleet)
    receipts = fleet.row("p").commit.receipts
    new = TestNode(fleet, "new", generation=2).join()
    row = turned_until(fleet, new, lambda row: row.status is Status.FAILED)
    assert row.status is Status.FAILED
    reason = str(row.history.halt_reason)
    assert "only the parsing of generation 1" in reason
    assert "generation 2 is current" in reason
    assert [event.key for event in fleet.emitted(PartitionHalted)] == ["p"]
    assert (row.commit.receipts, row.commit.generation, fleet.visible()) == (receipts, 1, [])


def test_a_node_that_has_not_heard_of_the_switch_leaves_the_commit_to_the_others() -> None:
    fleet = Fleet({"p": 10})
    committed_without_staged_data(fleet)
    late = TestNode(fleet, "late", generation=0).join()
    row = turned_until(fleet, late, lambda row: row.token > 3)
    assert row.token > 3
    assert (row.history.halt_reason, row.history.attempts, late.engine.rounds) == (None, 0, [])


class ParsingOfTheFirst(FixedGeneration):
    def has_parsing_of(self, number: int) -> bool:
        return number in {1, self.number}

    def seal(self, number: int) -> bool:
        return True


def test_the_same_parsing_under_a_later_number_makes_the_commit_again_as_that_of_its_generation() -> None:
    fleet = Fleet({"p": 10})
    committed_without_staged_data(fleet)
    new = TestNode(fleet, "new", generation=2).join()
    turned_until(fleet, new, lambda row: row.status is Status.FAILED)
    new.session.leave()
    Operator(fleet.store, lambda: "by-hand", PIPELINE).reopen("p")
    back = TestNode(fleet, "back", followed=ParsingOfTheFirst(3)).join()
    turned_until(fleet, back, lambda _row: bool(back.engine.out))
    back.stage("p")
    row = turned_until(fleet, back, lambda row: row.status is Status.COMPLETED)
    assert row.status is Status.COMPLETED
    assert fleet.visible() == list(range(10))
    assert [key.rpartition("/")[2][:2] for key in fleet.buckets["files"].data()] == ["1_"]


class Aged(NumbersSource):
    """The source has lost the first four numbers before anybody read them."""

    def plan(self, leases: Sequence[Lease], limits: Limits) -> list[Cut | Wait | Done]:  # type: ignore[override]
        return [Done() if lease.progress.position else Cut(0, 10, last=True, gaps=((0, 4),)) for lease in leases]


def test_a_rebuild_keeps_the_gaps_of_its_commit() -> None:
    fleet = Fleet({"p": 10})
    fleet.source = Aged({"p": 10})
    node = TestNode(fleet).start()
    node.stage("p")
    fleet.buckets["files"].staged.clear()
    node.turn()
    assert node.engine.batch_of("p").restages == fleet.row("p").commit.commit_id
    assert node.engine.batch_of("p").cut.gaps == ((0, 4),)
    node.stage("p")
    node.turn(2)
    (manifest,) = [data for key, data in fleet.buckets["files"].visible.items() if "/commits/" in key]
    assert decode_manifest(manifest).gaps == ((0, 4),)
    assert fleet.row("p").status is Status.COMPLETED
