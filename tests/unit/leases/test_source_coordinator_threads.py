"""Several threads, and several coordinators, on one session: each partition is in one thread's hands at a time."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from holdfast.errors import PartitionNotOwned
from holdfast.leases.lease import Partition, Status
from holdfast.leases.session import NodeInfo, Session, SessionTiming, nodes_of
from holdfast.leases.source_coordinator import SourceCoordinator
from holdfast.leases.world import host_world
from holdfast.stores.memory import MemoryStore
from holdfast.testing.faults import Fault
from holdfast.testing.rows import PIPELINE
from tests.unit.leases.rig import Rig

THREADS = 6
WAIT = 60.0


def test_two_coordinators_on_one_session_never_get_the_same_partition() -> None:
    node = Rig().node()
    first, second = node.source(), node.source()
    first.create_partitions([Partition("k")])
    lease = first.acquire_next()
    assert lease is not None
    assert second.acquire_next() is None
    with pytest.raises(PartitionNotOwned):
        second.save_state("k", {"page": 0})
    first.save_state("k", {"page": 1})
    first.complete("k")


@pytest.mark.parametrize("fault", [Fault.ANSWER_LOST, Fault.LATE])
def test_a_claim_whose_answer_was_lost_is_found_by_the_coordinator_that_sent_it(fault: Fault) -> None:
    rig = Rig()
    node = rig.node()
    first, second = node.source(), node.source()
    first.create_partitions([Partition("k"), Partition("other")])
    rig.store.order("claim", fault)
    early = first.acquire_next()
    rig.store.deliver()
    assert rig.table.count(PIPELINE) == {Status.ASSIGNED: 1, Status.UNASSIGNED: 1}
    other = second.acquire_next()
    lease = early or first.acquire_next()
    assert lease is not None
    assert other is not None
    assert (lease.key, other.key) == ("k", "other")
    assert first.acquire_next() is None


def test_one_supplier_at_a_time_runs_on_a_session() -> None:
    node = Rig().node()
    first, second = node.source(), node.source()
    runs: list[str] = []

    def inner(state: dict[str, Any]) -> list[Partition]:
        runs.append("inner")
        return []

    def supplier(state: dict[str, Any]) -> list[Partition]:
        runs.append("outer")
        assert second.acquire_next(inner) is None
        return []

    assert first.acquire_next(supplier) is None
    assert runs == ["outer"]


def test_a_thread_whose_partition_was_acquired_anew_by_another_thread_does_not_own_it() -> None:
    rig = Rig()
    node = rig.node()
    source = node.source(ownership_timeout=20.0)
    source.create_partitions([Partition("k")])
    slow = source.acquire_next()
    rig.pass_time(21.0, node)
    second = source.acquire_next()
    assert slow is not None
    assert second is not None
    assert (slow.key, slow.token, second.token) == ("k", 1, 2)
    source.save_state(second, {"page": 2})
    for _ in range(2):
        with pytest.raises(PartitionNotOwned, match="token 2"):
            source.save_state(slow, {"page": 1})
    assert rig.row("k").progress.state == {"page": 2}
    source.complete(second)
    assert rig.row("k").status is Status.COMPLETED


def test_threads_share_a_coordinator() -> None:
    coordinator = _coordinator()
    partitions = 60
    coordinator.create_partitions(Partition(f"{number:03d}") for number in range(partitions))
    taken: Counter[str] = Counter()
    lock = threading.Lock()

    def work() -> None:
        while (lease := coordinator.acquire_next()) is not None:
            with lock:
                taken[lease.key] += 1
            coordinator.save_state(lease, {"page": 1})
            coordinator.complete(lease)

    _in_threads(work)
    assert len(taken) == partitions
    assert set(taken.values()) == {1}


def test_threads_that_write_one_partition_at_once_lose_none_of_its_lease() -> None:
    coordinator = _coordinator()
    coordinator.create_partitions([Partition("k")])
    lease = coordinator.acquire_next()
    assert lease is not None

    def renew() -> None:
        for _ in range(20):
            coordinator.renew(lease)

    _in_threads(renew)
    coordinator.save_state(lease, {"page": 1})
    coordinator.complete(lease)


def _coordinator() -> SourceCoordinator:
    world = host_world(lambda _event: None)
    store = MemoryStore()
    session = Session(store, world, nodes_of(""), NodeInfo("a", "a"), SessionTiming())
    session.join()
    return SourceCoordinator(store, world, session, PIPELINE)


def _in_threads(work: Callable[[], None]) -> None:
    errors: list[Exception] = []

    def guarded() -> None:
        try:
            work()
        except Exception as error:  # noqa: BLE001 - shown by the assertion below
            errors.append(error)

    threads = [threading.Thread(target=guarded) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT)
    assert errors == []
