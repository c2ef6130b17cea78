"""Partitions that live long are shared fairly: every node holds its part, and hands over only what it must."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from holdfast.events import PartitionHandedOff
from holdfast.flow.batch import Limits
from holdfast.leases.lease import Partition, Status
from holdfast.observe.insights import ranges
from holdfast.testing.flows import NumbersSource
from tests.unit.flow.rig import Fleet, TestNode


class LongLived(Fleet):
    """Twelve partitions that live long."""

    def __init__(self) -> None:
        super().__init__({f"p{i:02d}": 100 for i in range(12)})
        self.source.lives_long = True
        self.nodes: list[TestNode] = []

    def join(self, name: str, replicas: int = 0) -> TestNode:
        node = TestNode(self, name, limits=Limits(max_records=5), replicas=replicas).join()
        self.nodes.append(node)
        return node

    def passes(self, times: int = 1) -> None:
        """Every node renews its session and has a pass; all batches that are out come back."""
        for _ in range(times):
            self.clock.wait(12)
            for node in self.nodes:
                node.session.heartbeat()
            for node in self.nodes:
                for batch in list(node.engine.out.values()):
                    node.stage(batch.lease.key)
                node.turn(2)

    def shares(self) -> Counter[str]:
        rows = [self.row(key) for key in self.source.sizes]
        return Counter(str(row.owner).split(":")[0] for row in rows if row.status is Status.ASSIGNED)


def test_a_node_that_joins_gets_its_share_by_the_fewest_hand_offs_and_nothing_moves_after() -> None:
    fleet = LongLived()
    fleet.join("a")
    fleet.passes(3)
    assert fleet.shares() == {"a": 12}
    fleet.join("b")
    fleet.passes(4)
    assert fleet.shares() == {"a": 6, "b": 6}
    fleet.join("c")
    fleet.passes(4)
    assert fleet.shares() == {"a": 4, "b": 4, "c": 4}
    assert len(fleet.emitted(PartitionHandedOff)) == 6 + 4
    fleet.passes(3)
    assert len(fleet.emitted(PartitionHandedOff)) == 6 + 4


def test_a_handed_off_partition_goes_on_where_it_stood_under_the_next_token() -> None:
    fleet = LongLived()
    fleet.join("a")
    fleet.passes(3)
    fleet.join("b")
    fleet.passes(6)
    moved = [fleet.row(event.key) for event in fleet.emitted(PartitionHandedOff)]
    assert {row.token for row in moved} == {2}
    assert all(len(set(numbers)) == len(numbers) for numbers in [fleet.visible_of(row.key) for row in moved])


def test_a_lease_is_handed_off_only_when_its_batch_is_in_and_published() -> None:
    fleet = LongLived()
    first = fleet.join("a")
    fleet.passes(2)
    second = fleet.join("b")
    for _ in range(3):
        fleet.clock.wait(12)
        first.session.heartbeat()
        second.session.heartbeat()
        first.turn()
        second.turn()
    assert fleet.shares() == {"a": 12}, "everything is out"
    fleet.passes(2)
    assert fleet.shares() == {"a": 6, "b": 6}


def test_leases_of_a_node_that_leaves_are_shared_by_the_others_at_their_next_pass() -> None:
    fleet = LongLived()
    for name in "abc":
        fleet.join(name)
    fleet.passes(4)
    leaver = fleet.nodes.pop()
    leaver.loop.hand_back()
    leaver.session.leave()
    fleet.passes(1)
    assert fleet.shares() == {"a": 6, "b": 6}
    assert not fleet.emitted(PartitionHandedOff)


def test_a_fixed_number_of_replicas_fixes_the_share() -> None:
    fleet = LongLived()
    fleet.join("a", replicas=3)
    fleet.passes(3)
    assert fleet.shares() == {"a": 4}


class Numbered(NumbersSource):
    """Shards whose keys do not sort as their numbers do."""

    lives_long = True

    def discover(self, state: dict[str, Any]) -> Iterator[Partition]:
        for partition in super().discover(state):
            yield replace(partition, index=int(partition.key[2:]))


class Stream(LongLived):
    """Twelve shards of a stream."""

    def __init__(self) -> None:
        super().__init__()
        self.source = Numbered({f"s/{number}": 10_000 for number in range(12)})

    def leave(self, node: TestNode) -> None:
        self.nodes.remove(node)
        node.loop.hand_back()
        node.session.leave()

    def numbers(self) -> dict[str, str]:
        held: dict[str, list[int]] = {}
        for key in self.source.sizes:
            row = self.row(key)
            if row.status is Status.ASSIGNED:
                held.setdefault(str(row.owner).split(":")[0], []).append(int(key[2:]))
        return {name: ranges(numbers) for name, numbers in sorted(held.items())}


def test_replicas_share_twelve_shards_as_nuclio_does_also_while_one_node_is_up() -> None:
    fleet = Stream()
    fleet.join("replica1", replicas=3)
    fleet.passes(3)
    assert fleet.numbers() == {"replica1": "0-3"}
    fleet.join("replica2", replicas=3)
    fleet.passes(3)
    fleet.join("replica3", replicas=3)
    fleet.passes(3)
    assert fleet.numbers() == {"replica1": "0-3", "replica2": "4-7", "replica3": "8-11"}
    # A rolling update replaces the nodes one after the other.
    for number in (1, 2, 3):
        fleet.leave(fleet.nodes[0])
        fleet.join(f"replica{number}", replicas=3)
        fleet.passes(3)
        assert fleet.numbers() == {"replica1": "0-3", "replica2": "4-7", "replica3": "8-11"}
    # Whatever becomes free first, each node gets neighbours.
    for node in (fleet.nodes[2], fleet.nodes[0]):
        fleet.leave(node)
        fleet.passes(1)
    fleet.join("replica4", replicas=3)
    fleet.join("replica5", replicas=3)
    fleet.passes(4)
    assert sorted(fleet.numbers().values()) == ["0-3", "4-7", "8-11"]


SEED = {"replica1": "0-3", "replica2": "4-7", "replica3": "8-11"}


def seed() -> Stream:
    """Three replicas with the shards of Nuclio's table."""
    fleet = Stream()
    for name in SEED:
        fleet.join(name, replicas=3)
        fleet.passes(3)
    assert fleet.numbers() == SEED
    return fleet


def test_the_next_node_of_a_killed_replica_waits_for_its_shards_and_the_others_keep_theirs() -> None:
    fleet = seed()
    fleet.nodes.pop(0)
    fleet.join("replica1", replicas=3)
    fleet.passes(6)
    assert fleet.numbers() == SEED
    assert not fleet.emitted(PartitionHandedOff)


def test_a_node_beyond_the_replicas_is_spare_until_one_of_them_leaves() -> None:
    fleet = seed()
    fleet.join("spare", replicas=3)
    fleet.passes(3)
    assert fleet.numbers() == SEED
    fleet.leave(fleet.nodes[1])
    fleet.passes(3)
    assert fleet.numbers() == {"replica1": "0-3", "replica3": "8-11", "spare": "4-7"}
    assert not fleet.emitted(PartitionHandedOff)


def test_a_spare_node_takes_the_place_of_a_dead_one_long_before_its_next_heartbeat() -> None:
    fleet = seed()
    spare = fleet.join("spare", replicas=3)
    fleet.passes(3)
    fleet.nodes.pop(0)
    fleet.passes(2)
    assert fleet.numbers() == SEED, "the session of the dead node has not ended"
    fleet.clock.wait(6.5)
    spare.turn()
    assert fleet.numbers() == {"replica2": "4-7", "replica3": "8-11", "spare": "0-3"}


def test_a_node_that_is_alone_begins_at_once_and_two_wait_until_they_have_shown_that_they_stay() -> None:
    fleet = LongLived()
    first = fleet.join("a")
    first.turn(3)
    assert fleet.shares() == {"a": 12}
    pair = LongLived()
    for node in (pair.join("a"), pair.join("b")):
        node.turn(3)
    assert pair.shares() == {}
    pair.passes(2)
    assert pair.shares() == {"a": 6, "b": 6}


def test_a_node_that_waits_for_its_share_looks_again_long_before_its_next_heartbeat() -> None:
    fleet = LongLived()
    first = fleet.join("a")
    fleet.passes(3)
    second = fleet.join("b")
    fleet.clock.wait(12)
    for node in fleet.nodes:
        node.session.heartbeat()
    for node in fleet.nodes:
        node.turn()
    for batch in list(first.engine.out.values()):
        first.stage(batch.lease.key)
    first.turn(2)
    assert len(fleet.emitted(PartitionHandedOff)) == 6
    assert not second.engine.out
    fleet.clock.wait(2.5)
    second.turn(2)
    assert len(second.engine.out) == 6
