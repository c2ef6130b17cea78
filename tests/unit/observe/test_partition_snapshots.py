"""Snapshots of partitions: they have what the store has, and read only what has changed."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from holdfast.leases.lease import Counts, History, Key, Lease, Order, Progress, Status
from holdfast.leases.query import Query
from holdfast.leases.store import Swap
from holdfast.leases.sums import PartitionSum, sums
from holdfast.observe import insights, partition_snapshots
from holdfast.observe.insights import shard_ranges
from holdfast.observe.partition_snapshots import PartitionSnapshots
from holdfast.stores.memory import MemoryStore
from holdfast.testing.rows import PIPELINE, make_row


class WatchedStore(MemoryStore):
    """Notes the keys that are read one by one."""

    def __init__(self) -> None:
        super().__init__()
        self.read: list[str] = []

    def get(self, keys: Sequence[Key]) -> list[Lease | None]:
        self.read += [key.key for key in keys]
        return super().get(keys)


def filled(number: int) -> WatchedStore:
    store = WatchedStore()
    store.open()
    store.add([_row(at) for at in range(number)])
    return store


def _row(at: int) -> Lease:
    row = make_row(f"k{at:03d}", group=f"g{at % 2}")
    return replace(row, order=Order(index=at, estimated_count=at))


def change(store: MemoryStore, dice: random.Random, key: str) -> None:
    (row,) = store.get([Key(PIPELINE, "", key)])
    assert row is not None
    status = dice.choice(list(Status))
    owner = f"n{dice.randrange(3)}" if status is Status.ASSIGNED else None
    owned = replace(row.ownership, status=status, owner=owner, version=row.version + 1, due_at=None)
    counts = Counts(dice.randrange(9), 1, 2, 3)
    history = History(done_by="n1" if status is Status.COMPLETED else None)
    changed = replace(row, ownership=owned, progress=Progress(counts=counts), history=history)
    store.swap([Swap(row.version, changed)])


def ordered(found: Sequence[PartitionSum]) -> list[PartitionSum]:
    return sorted(found, key=str)


def test_sums_follow_every_change_addition_and_removal() -> None:
    store, dice = filled(40), random.Random(3)
    snapshots = PartitionSnapshots(store, PIPELINE)
    for turn in range(30):
        for at in dice.sample(range(40), 5):
            if store.get([Key(PIPELINE, "", f"k{at:03d}")])[0] is not None:
                change(store, dice, f"k{at:03d}")
        store.remove([row for row in store.get([Key(PIPELINE, "", f"k{turn:03d}")]) if row is not None])
        store.add([_row(100 + turn)])
        taken = snapshots.take()
        assert snapshots.complete
        assert ordered(taken.sums) == ordered(sums(store, PIPELINE, ""))
        columns = zip(taken.keys, taken.statuses, taken.owners, taken.versions, strict=True)
        assert list(columns) == [(row.key, *row[2:]) for row in store.outline(PIPELINE)]
    held = snapshots.held()
    assert held is not None
    shown = {node: shard_ranges(numbers) for node, numbers in held.items()}
    assigned = store.find(Query(PIPELINE, statuses=(Status.ASSIGNED,)))
    assert shown == {node: insights.shards(row for row in assigned if row.owner == node) for node in held}
    assert shown


def test_only_rows_whose_version_has_changed_are_read() -> None:
    store = filled(20)
    snapshots = PartitionSnapshots(store, PIPELINE)
    snapshots.take()
    store.read.clear()
    snapshots.take()
    assert store.read == []
    change(store, random.Random(1), "k007")
    store.read.clear()
    snapshots.take()
    assert store.read == ["k007"]


def test_the_first_look_at_many_rows_does_not_wait_for_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partition_snapshots, "_PER_READ", 4)
    monkeypatch.setattr(partition_snapshots, "MOST_FIRST_READ", 8)
    store = filled(20)
    snapshots = PartitionSnapshots(store, PIPELINE)
    read, complete = [], []
    for _ in range(5):
        assert ordered(snapshots.take().sums) == ordered(sums(store, PIPELINE, ""))
        read.append(len(store.read))
        complete.append(snapshots.complete)
        assert (snapshots.held() is None) is not snapshots.complete
        store.read.clear()
    assert read == [0, 8, 8, 4, 0]
    assert complete == [False, False, False, True, True]


def test_rows_are_not_read_one_by_one_where_reads_cost_money() -> None:
    store = filled(5)
    store.charges_for_reads = True
    snapshots = PartitionSnapshots(store, PIPELINE)
    assert ordered(snapshots.take().sums) == ordered(sums(store, PIPELINE, ""))
    assert (store.read, snapshots.complete) == ([], False)


def test_a_snapshot_is_the_same_object_until_something_has_changed() -> None:
    store = filled(20)
    snapshots = PartitionSnapshots(store, PIPELINE)
    first, held = snapshots.take(), snapshots.held()
    assert (snapshots.take() is first, snapshots.held() is held) == (True, True)
    change(store, random.Random(1), "k007")
    second = snapshots.take()
    assert (second is first, second.keys is first.keys, snapshots.held() is held) == (False, True, False)
    store.add([_row(50)])
    assert snapshots.take().keys is not first.keys


def test_sums_are_not_made_again_while_nothing_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partition_snapshots, "_PER_READ", 4)
    monkeypatch.setattr(partition_snapshots, "MOST_FIRST_READ", 4)
    store, made = filled(12), list[Any]()

    def counted(*which: Any) -> list[PartitionSum]:
        made.append(which)
        return sums(*which)

    monkeypatch.setattr(partition_snapshots, "sums", counted)
    snapshots = PartitionSnapshots(store, PIPELINE)
    snapshots.take()
    snapshots.take()
    assert (len(made), snapshots.complete) == (1, False)
    change(store, random.Random(1), "k007")
    snapshots.take()
    assert len(made) == 2


def test_a_number_that_is_too_large_to_be_true_breaks_nothing() -> None:
    store = filled(1)
    store.add([replace(_row(1), order=Order(index=None, estimated_count=2**70))])
    (taken,) = [part for part in PartitionSnapshots(store, PIPELINE).take().sums if part.group == "g1"]
    assert taken.expected == 2**63 - 1
