"""The ten metrics of source coordination, provoked through the real coordinator and read from the real endpoint."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from http.client import HTTPConnection
from itertools import count

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from holdfast.errors import PartitionNotFound, PartitionNotOwned, PartitionUpdateFailed, StoreUnavailable
from holdfast.events import Event
from holdfast.leases import transitions
from holdfast.leases.coordinator import ClaimPolicy, Coordinator
from holdfast.leases.lease import Key, Partition
from holdfast.leases.session import NodeInfo, Session, SessionTiming
from holdfast.leases.source_coordinator import SourceCoordinator
from holdfast.leases.store import Outcome, Swap
from holdfast.leases.world import host_world
from holdfast.observe.metrics import Metrics
from holdfast.stores.memory import MemoryStore

IDENTIFIER = "prod|s3-scan"
PREFIX = "s3_scan_source_coordinator_"
NAMES = [
    "partitionsCreatedCount",
    "partitionsCompleted",
    "noPartitionsAcquired",
    "partitionsAcquired",
    "partitionsClosed",
    "partitionNotFoundErrors",
    "partitionNotOwnedErrors",
    "saveStatePartitionUpdateErrors",
    "closePartitionUpdateErrors",
    "completePartitionUpdateErrors",
]
TEXT = "text/plain"
OPEN_METRICS = "application/openmetrics-text; version=1.0.0"


class Time:
    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


class FickleStore(MemoryStore):
    """A memory store whose writes can be made to get no answer."""

    away = False

    def swap(self, swaps: Sequence[Swap]) -> list[Outcome]:
        if self.away:
            raise StoreUnavailable("the store does not answer")
        return super().swap(swaps)


@dataclass
class Fleet:
    """Nodes on one store, of which only the first one's events are counted."""

    metrics: Metrics = field(default_factory=lambda: Metrics({IDENTIFIER: "s3-scan", "prod|idle": "idle"}))
    time: Time = field(default_factory=Time)

    def __post_init__(self) -> None:
        self.store = FickleStore(self.time)
        self.numbers = count()

    def node(self, emit: Callable[[Event], None] = lambda _: None) -> SourceCoordinator:
        world = host_world(emit)
        info = NodeInfo("node", f"host:{next(self.numbers)}")
        session = Session(self.store, world, "prod|$nodes", info, SessionTiming(timeout=100_000.0))
        session.join()
        return SourceCoordinator(self.store, world, session, IDENTIFIER, ownership_timeout=600.0, patience=0.0)

    def exposed(self) -> dict[str, float]:
        registry = CollectorRegistry()
        registry.register(self.metrics)
        return dict(_samples(generate_latest(registry).decode()))

    def scraped(self, accept: str) -> dict[str, float]:
        endpoint = self.metrics.serve(0)
        try:
            connection = HTTPConnection("127.0.0.1", endpoint.port, timeout=10)
            connection.request("GET", "/metrics", headers={"Accept": accept})
            return dict(_samples(connection.getresponse().read().decode()))
        finally:
            endpoint.stop()


def _samples(text: str) -> Iterator[tuple[str, float]]:
    for line in text.splitlines():
        if not line.startswith("#"):
            name, _, value = line.rpartition(" ")
            yield name, float(value)


@pytest.fixture
def fleet() -> Fleet:
    return Fleet()


@pytest.fixture
def node(fleet: Fleet) -> SourceCoordinator:
    return fleet.node(fleet.metrics)


def acquired(node: SourceCoordinator, *keys: str) -> None:
    """Make these partitions and acquire them."""
    node.create_partitions([Partition(key) for key in keys])
    for key in keys:
        lease = node.acquire_next()
        assert lease is not None
        assert lease.key == key


def counted(fleet: Fleet) -> dict[str, float]:
    """What is not 0 any more, by the name without the pipeline."""
    return {
        name.removeprefix(PREFIX): value for name, value in fleet.exposed().items() if name.startswith(PREFIX) and value
    }


@pytest.mark.parametrize("accept", [TEXT, OPEN_METRICS])
def test_all_ten_exist_with_these_very_names_and_0_for_each_pipeline_from_the_start(fleet: Fleet, accept: str) -> None:
    scraped = {name: value for name, value in fleet.scraped(accept).items() if "_source_coordinator_" in name}

    expected = [f"{pipeline}_source_coordinator_{name}" for pipeline in ("s3_scan", "idle") for name in NAMES]
    assert scraped == dict.fromkeys(expected, 0.0)


@pytest.mark.parametrize("accept", [TEXT, OPEN_METRICS])
def test_values_are_scraped_under_the_same_names(fleet: Fleet, node: SourceCoordinator, accept: str) -> None:
    acquired(node, "a", "b")

    scraped = fleet.scraped(accept)
    assert scraped["s3_scan_source_coordinator_partitionsCreatedCount"] == 2
    assert scraped["s3_scan_source_coordinator_partitionsAcquired"] == 2


def test_created_acquired_and_completed(fleet: Fleet, node: SourceCoordinator) -> None:
    acquired(node, "a", "b", "c")
    node.create_partitions([Partition("a"), Partition("d")])
    node.complete("a")
    node.complete("b")

    assert counted(fleet) == {"partitionsCreatedCount": 4, "partitionsAcquired": 3, "partitionsCompleted": 2}


def test_partitions_of_a_supplier_are_counted_and_its_own_lease_is_not(fleet: Fleet, node: SourceCoordinator) -> None:
    assert node.acquire_next(lambda _: [Partition("a"), Partition("b")]) is not None

    assert counted(fleet) == {"partitionsCreatedCount": 2, "partitionsAcquired": 1}


def test_nothing_acquired(fleet: Fleet, node: SourceCoordinator) -> None:
    assert node.acquire_next() is None
    assert node.acquire_next(lambda _: []) is None

    assert counted(fleet) == {"noPartitionsAcquired": 2}


def test_closed_until_closed_too_often(fleet: Fleet, node: SourceCoordinator) -> None:
    acquired(node, "a")
    node.close("a", reopen_after=0.0, max_closed_count=2)
    assert node.acquire_next() is not None
    node.close("a", reopen_after=0.0, max_closed_count=2)

    assert counted(fleet) == {
        "partitionsCreatedCount": 1,
        "partitionsAcquired": 2,
        "partitionsClosed": 1,
        "partitionsCompleted": 1,
    }


def test_a_row_that_was_deleted_by_hand_is_not_found(fleet: Fleet, node: SourceCoordinator) -> None:
    acquired(node, "a")
    (row,) = fleet.store.get([Key(IDENTIFIER, "", "a")])
    assert row is not None
    fleet.store.remove([row])

    with pytest.raises(PartitionNotFound):
        node.save_state("a", {"read": 1})
    assert counted(fleet) == {"partitionsCreatedCount": 1, "partitionsAcquired": 1, "partitionNotFoundErrors": 1}


def test_a_partition_that_another_node_took_over_is_not_owned(fleet: Fleet, node: SourceCoordinator) -> None:
    acquired(node, "a")
    fleet.time.now += 601
    assert fleet.node().acquire_next() is not None

    with pytest.raises(PartitionNotOwned):
        node.complete("a")
    assert counted(fleet) == {"partitionsCreatedCount": 1, "partitionsAcquired": 1, "partitionNotOwnedErrors": 1}


def test_a_partition_that_the_built_in_loop_lost_is_not_owned_either(fleet: Fleet) -> None:
    world = host_world(fleet.metrics)
    session = Session(fleet.store, world, "prod|$nodes", NodeInfo("loop", "host:loop"), SessionTiming())
    session.join()
    leases = Coordinator(fleet.store, world, session, IDENTIFIER, policy=ClaimPolicy(ownership_timeout=600.0))
    leases.create([Partition("a")])
    (lease,) = leases.claim(1)
    fleet.time.now += 601
    assert fleet.node().acquire_next() is not None

    leases.write([lease], transitions.complete)
    assert counted(fleet) == {"partitionsCreatedCount": 1, "partitionsAcquired": 1, "partitionNotOwnedErrors": 1}


@pytest.mark.parametrize(
    ("update", "name"),
    [
        (lambda node: node.save_state("a", {}), "saveStatePartitionUpdateErrors"),
        (lambda node: node.close("a", 60.0, 3), "closePartitionUpdateErrors"),
        (lambda node: node.complete("a"), "completePartitionUpdateErrors"),
    ],
)
def test_updates_that_the_store_does_not_take(
    fleet: Fleet, node: SourceCoordinator, update: Callable[[SourceCoordinator], None], name: str
) -> None:
    acquired(node, "a")
    fleet.store.away = True

    with pytest.raises(PartitionUpdateFailed):
        update(node)
    assert counted(fleet) == {"partitionsCreatedCount": 1, "partitionsAcquired": 1, name: 1}
