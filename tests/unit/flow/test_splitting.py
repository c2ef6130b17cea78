"""When a node shares its partitions: only with nodes that are there, or with its own idle cores."""

from __future__ import annotations

import pytest

from holdfast.flow.source import SplitsPartitions
from holdfast.leases.lease import Lease
from holdfast.leases.split import Split
from holdfast.testing.flows import NumbersSource
from tests.unit.flow.rig import Fleet, TestNode


class Shared(NumbersSource, SplitsPartitions):
    """Notes which partitions it was asked to split, and splits none."""

    def __init__(self, sizes: dict[str, int]) -> None:
        super().__init__(sizes)
        self.asked: list[str] = []

    def split(self, lease: Lease) -> Split | None:
        self.asked.append(lease.key)
        return None


def fleet_of(partitions: int) -> tuple[Fleet, Shared]:
    sizes = {f"p{number}": 10 for number in range(partitions)}
    fleet, source = Fleet(sizes), Shared(sizes)
    fleet.source = source
    return fleet, source


def busy_node(fleet: Fleet) -> TestNode:
    """A node that holds all partitions, and whose engine takes no round."""
    node = TestNode(fleet).join()
    node.engine._room = 0
    node.turn(2)
    return node


def held(fleet: Fleet) -> int:
    return sum(fleet.row(key).owner is not None for key in fleet.source.sizes)


def test_a_node_that_is_alone_keeps_what_waits_there() -> None:
    fleet, _ = fleet_of(4)
    node = busy_node(fleet)
    for _ in range(5):
        fleet.clock.wait(2)
        node.session.heartbeat()
        node.turn()
    assert held(fleet) == 4


def test_half_of_what_waits_is_handed_back_when_another_node_is_there() -> None:
    fleet, _ = fleet_of(4)
    TestNode(fleet, "b").join()
    busy_node(fleet)
    assert held(fleet) == 2


@pytest.mark.parametrize(("partitions", "nodes", "is_split"), [(2, 1, False), (2, 2, True), (1, 1, True)])
def test_a_node_that_is_alone_splits_only_its_last_partition(partitions: int, nodes: int, is_split: bool) -> None:
    fleet, source = fleet_of(partitions)
    for name in "bc"[: nodes - 1]:
        TestNode(fleet, name).join()
    TestNode(fleet).start().turn()
    assert bool(source.asked) is is_split
