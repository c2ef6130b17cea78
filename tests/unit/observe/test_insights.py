from __future__ import annotations

import json
from dataclasses import replace

import pytest

from holdfast.errors import StoreUnavailable
from holdfast.leases import transitions
from holdfast.leases.coordinator import ClaimPolicy, Coordinator
from holdfast.leases.lease import Counts, Key, Lease, Partition, Status
from holdfast.leases.query import Query
from holdfast.leases.session import NodeInfo, Session, SessionTiming
from holdfast.leases.store import Swap
from holdfast.leases.world import host_world
from holdfast.observe import insights
from holdfast.observe.insights import ranges, shards
from holdfast.stores.memory import MemoryStore
from holdfast.testing.rows import make_row

FLEET = "$nodes"
NOW = 1_700_000_000.0


class Time:
    now = NOW

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def time() -> Time:
    return Time()


@pytest.fixture
def store(time: Time) -> MemoryStore:
    return MemoryStore(time)


def joined(store: MemoryStore, name: str, pipelines: tuple[str, ...] = ("orders",)) -> Session:
    info = NodeInfo(name, f"host-{name}:1", pipelines=pipelines, slots=4)
    session = Session(store, host_world(lambda _: None), FLEET, info, SessionTiming(timeout=30.0))
    session.join()
    return session


def coordinator(store: MemoryStore, session: Session, pipeline: str = "orders", run: str = "") -> Coordinator:
    world = host_world(lambda _: None)
    return Coordinator(store, world, session, pipeline, run=run, policy=ClaimPolicy(ownership_timeout=600.0))


def test_nodes_with_what_they_say_and_what_they_hold(store: MemoryStore) -> None:
    first, second = joined(store, "replica1"), joined(store, "replica2", ("orders", "users"))
    orders, run = coordinator(store, first), coordinator(store, first, run="r1")
    orders.create([Partition("a"), Partition("b"), Partition("c")])
    run.create([Partition("a")])
    orders.claim(2)
    run.claim(1)
    coordinator(store, second).claim(1)

    views = insights.nodes(store, FLEET, ["orders", "users"])

    assert [(view.name, view.leases) for view in views] == [("replica1", 3), ("replica2", 1)]
    assert views[1].row() == {
        "member_id": "replica2",
        "shards": "",
        "name": "replica2",
        "session": second.id,
        "pipelines": ["orders", "users"],
        "slots": 4,
        "draining": False,
        "alive": True,
        "ended": False,
        "last_heartbeat": "2023-11-14T22:13:20.000Z",
        "leases": 1,
        "measured": {},
        "file_digest": None,
    }


def test_members_of_a_group_with_their_shards_as_ranges(store: MemoryStore) -> None:
    nodes = [joined(store, f"replica{number}") for number in (1, 2, 3)]
    coordinator(store, nodes[0]).create([Partition(f"s/{n:02d}", group="my-stream", index=n) for n in range(12)])
    for node in nodes:
        coordinator(store, node).claim(4)

    rows = [view.row() for view in insights.nodes(store, FLEET, ["orders"])]

    heartbeat = "2023-11-14T22:13:20.000Z"
    assert [list(row.items())[:3] for row in rows] == [
        [("member_id", "replica1"), ("shards", "0-3"), ("last_heartbeat", heartbeat)],
        [("member_id", "replica2"), ("shards", "4-7"), ("last_heartbeat", heartbeat)],
        [("member_id", "replica3"), ("shards", "8-11"), ("last_heartbeat", heartbeat)],
    ]


@pytest.mark.parametrize(
    ("numbers", "text"), [([], ""), ([7], "7"), ([3, 1, 2], "1-3"), ([0, 1, 5, 7, 8, 9], "0-1,5,7-9")]
)
def test_ranges(numbers: list[int], text: str) -> None:
    assert ranges(numbers) == text


def test_shards_of_several_groups_are_told_apart() -> None:
    rows = [make_row(f"{group}{n}", group=group, index=n) for group in ("b", "a") for n in (0, 1, 3)]
    assert shards([*rows, make_row("no number")]) == "a:0-1,3 b:0-1,3"


def test_a_node_is_alive_by_the_stores_clock(store: MemoryStore, time: Time) -> None:
    session = joined(store, "replica1")

    time.now += 29
    assert [view.alive for view in insights.nodes(store, FLEET, [])] == [True]
    time.now += 2
    assert [(view.alive, view.ended) for view in insights.nodes(store, FLEET, [])] == [(False, False)]
    session.leave()
    assert [(view.alive, view.ended) for view in insights.nodes(store, FLEET, [])] == [(False, True)]


def test_a_node_row_that_cannot_be_understood_is_still_shown(store: MemoryStore) -> None:
    session = joined(store, "replica1")
    (row,) = store.find(Query(FLEET))
    store.swap([Swap(row.version, replace(row, progress=replace(row.progress, state={"mood": "good"})))])

    (view,) = insights.nodes(store, FLEET, [])
    assert (view.name, view.session, view.alive) == ("?", session.id, True)


def test_a_node_of_a_later_version_that_says_more_is_understood(store: MemoryStore) -> None:
    joined(store, "replica1")
    (row,) = store.find(Query(FLEET))
    from_the_future = replace(row.progress, state={**row.progress.state, "mood": "good"})
    store.swap([Swap(row.version, replace(row, progress=from_the_future))])

    assert [view.name for view in insights.nodes(store, FLEET, [])] == ["replica1"]


def test_other_fleets_are_not_shown(store: MemoryStore) -> None:
    joined(store, "replica1")

    assert insights.nodes(store, "other|$nodes", []) == []


def test_counts_name_every_status(store: MemoryStore) -> None:
    leases = coordinator(store, joined(store, "replica1"))
    leases.create([Partition("a"), Partition("b")])
    leases.claim(1)

    assert insights.counts(store, "orders") == {
        "UNASSIGNED": 1,
        "ASSIGNED": 1,
        "CLOSED": 0,
        "COMPLETED": 0,
        "FAILED": 0,
    }


def test_a_row_has_the_names_of_source_coordination(store: MemoryStore) -> None:
    session = joined(store, "replica1")
    leases = coordinator(store, session, "prod|orders")
    leases.create([Partition("bucket|key", group="bucket", priority=3)])
    (lease,) = leases.claim(1)
    leases.write([lease], lambda row, now: transitions.save_state(row, {"line": 7}, now, now + 600))

    (row,) = store.get([Key("prod|orders", "", "bucket|key")])
    assert row is not None
    shown = insights.partition(row)

    assert list(shown)[:8] == [
        "sourceIdentifier",
        "sourcePartitionKey",
        "partitionOwner",
        "partitionProgressState",
        "partitionOwnershipTimeout",
        "sourcePartitionStatus",
        "reOpenAt",
        "closedCount",
    ]
    assert shown["sourceIdentifier"] == "prod|orders"
    assert shown["sourcePartitionKey"] == "bucket|key"
    assert shown["partitionOwner"] == session.id
    assert json.loads(shown["partitionProgressState"]) == {"line": 7}
    assert shown["partitionOwnershipTimeout"] == "2023-11-14T22:23:20.000Z"
    assert shown["sourcePartitionStatus"] == "ASSIGNED"
    assert (shown["reOpenAt"], shown["closedCount"]) == (None, 0)
    assert (shown["token"], shown["group"], shown["priority"]) == (1, "bucket", 3)
    assert shown["created_at"] == "2023-11-14T22:13:20.000Z"
    json.dumps(shown, allow_nan=False)


def test_one_time_has_three_meanings() -> None:
    def times(status: Status, due_at: float | None) -> tuple[str | None, ...]:
        row = Lease("orders", "k")
        shown = insights.partition(replace(row, ownership=replace(row.ownership, status=status, due_at=due_at)))
        return shown["partitionOwnershipTimeout"], shown["reOpenAt"], shown["not_before"]

    at = "2023-11-14T22:13:20.000Z"
    assert times(Status.ASSIGNED, NOW) == (at, None, None)
    assert times(Status.CLOSED, NOW) == (None, at, None)
    assert times(Status.UNASSIGNED, NOW) == (None, None, at)
    assert times(Status.UNASSIGNED, 0.0) == (None, None, None)
    assert times(Status.ASSIGNED, None) == (None, None, None)
    assert times(Status.COMPLETED, None) == (None, None, None)


def test_counts_of_records_and_an_unreadable_row() -> None:
    row = Lease("orders", "k", unreadable="{")
    shown = insights.partition(replace(row, progress=replace(row.progress, counts=Counts(5, 4, 1, 1))))

    assert shown["counts"] == {"processed": 5, "succeeded": 4, "failed": 1, "dead": 1, "dropped": 0}
    assert shown["unreadable"] is True


def test_a_store_that_is_away_is_not_an_empty_one(store: MemoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    def away(*_: object) -> None:
        raise StoreUnavailable("no answer")

    monkeypatch.setattr(store, "find", away)
    with pytest.raises(StoreUnavailable):
        insights.nodes(store, FLEET, [])
