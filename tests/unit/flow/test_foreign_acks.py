"""Acks of records whose partition another node has: they reach its owner through the row, once it commits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from holdfast.errors import TransitionRefused
from holdfast.events import Notice
from holdfast.flow.batch import Name
from holdfast.flow.foreign_acks import MOST_FORWARDED, ForeignAcks, forward
from holdfast.leases import transitions
from holdfast.leases.lease import Lease, Partition, Progress, Status, joined
from holdfast.leases.store import Swap
from holdfast.leases.transitions import Advance, stamped
from holdfast.testing.flows import HandEngine
from tests.unit.flow.rig import Fleet, TestNode


class Acking(HandEngine):
    """An engine whose handlers have acknowledged records of other nodes."""

    def __init__(self) -> None:
        super().__init__()
        self.acks: dict[Name, set[int]] = {}

    def take_foreign_acks(self) -> Mapping[Name, set[int]]:
        taken, self.acks = self.acks, {}
        return taken


def acking(fleet: Fleet, node: TestNode) -> tuple[Acking, ForeignAcks]:
    engine = Acking()
    return engine, ForeignAcks(node.coordinator, fleet.source, engine)


def owned(fleet: Fleet, node: TestNode, key: str) -> Lease:
    node.coordinator.create([Partition(key)])
    (lease,) = node.coordinator.claim(1)
    return lease


def test_the_owner_finds_the_ack_when_it_commits_and_takes_it_out_of_the_row() -> None:
    fleet = Fleet({"p": 20})
    owner, other = TestNode(fleet, "a"), TestNode(fleet, "b")
    owner.session.join()
    lease = owned(fleet, owner, "p")
    engine, foreign = acking(fleet, other)
    engine.acks = {fleet.source.name(lease): {5, 6, 9}}
    foreign.turn()
    assert fleet.row("p").progress.forwarded == ((5, 7), (9, 10))
    # The owner writes under its token, although the row has changed since it was read.
    (seen,) = owner.coordinator.write(
        [lease], lambda row, now: transitions.commit(row, Advance("c1", 3, {}), lease, now)
    )
    assert isinstance(seen, Lease)
    assert seen.progress.forwarded == ((5, 7), (9, 10)), "what the owner has not taken stays"
    advance = Advance("c2", 3, {}, acked=((5, 7),), forwarded=((5, 7),))
    (done,) = owner.coordinator.write([seen], lambda row, now: transitions.commit(row, advance, seen, now))
    assert isinstance(done, Lease)
    assert (done.progress.acked, done.progress.forwarded) == (((5, 7),), ((9, 10),))


def test_acks_that_come_one_by_one_are_written_together_and_at_once_when_the_node_leaves() -> None:
    fleet = Fleet({"p": 20})
    node = TestNode(fleet, "a")
    node.session.join()
    name = fleet.source.name(owned(fleet, node, "p"))
    engine, foreign = acking(fleet, node)
    for offset in (5, 7, 9):
        engine.acks = {name: {offset}}
        foreign.turn()
    assert fleet.row("p").progress.forwarded == ((5, 6),)
    foreign.flush()
    assert fleet.row("p").progress.forwarded == ((5, 6), (7, 8), (9, 10))


def test_acks_with_and_without_the_name_of_the_stream_are_written_together() -> None:
    fleet = Fleet({"p": 20})
    node = TestNode(fleet, "a")
    node.session.join()
    name = fleet.source.name(owned(fleet, node, "p"))
    engine, foreign = acking(fleet, node)
    engine.acks = {name: {5}, Name("", name.label): {9}}
    foreign.turn()
    assert fleet.row("p").progress.forwarded == ((5, 6), (9, 10))


def test_an_ack_of_a_shard_that_does_not_exist_is_reported() -> None:
    fleet = Fleet({"p": 20})
    node = TestNode(fleet, "a")
    engine, foreign = acking(fleet, node)
    engine.acks = {Name("elsewhere", "7"): {1}}
    foreign.turn()
    (notice,) = fleet.emitted(Notice)
    assert "no such shard" in str(notice)


def test_an_ack_that_another_write_has_overtaken_is_written_the_next_time(monkeypatch: pytest.MonkeyPatch) -> None:
    fleet = Fleet({"p": 20})
    node = TestNode(fleet, "a")
    node.session.join()
    lease = owned(fleet, node, "p")
    engine, foreign = acking(fleet, node)
    engine.acks = {fleet.source.name(lease): {5}}
    read = fleet.store.now

    def overtaken() -> float:
        row = fleet.row("p")
        fleet.store.swap([Swap(row.version, stamped(row, row, "another"))])
        return read()

    monkeypatch.setattr(fleet.store, "now", overtaken)
    foreign.turn()
    assert fleet.row("p").progress.forwarded == ()
    monkeypatch.undo()
    fleet.clock.wait(1.0)
    foreign.turn()
    assert fleet.row("p").progress.forwarded == ((5, 6),)


def test_a_row_keeps_a_bounded_number_of_acks_and_none_when_it_is_complete() -> None:
    full = tuple((2 * number, 2 * number + 1) for number in range(MOST_FORWARDED))
    lease = Lease("p", "k", progress=Progress(forwarded=full))
    assert forward(lease, [0], 1.0) is lease
    with pytest.raises(TransitionRefused, match="not taken"):
        forward(lease, [10_000], 1.0)
    done = replace(lease, ownership=replace(lease.ownership, status=Status.COMPLETED))
    assert forward(done, [10_000], 1.0) is done


def test_ranges_are_joined_and_taken_apart() -> None:
    assert joined([(5, 6), (1, 3), (3, 4), (2, 3)]) == ((1, 4), (5, 6))
    left = Progress(forwarded=((1, 4), (5, 9))).forwarded_without(((2, 3), (6, 20)))
    assert left == ((1, 2), (3, 4), (5, 6))
