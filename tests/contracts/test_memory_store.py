from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from hypothesis import settings

from holdfast.leases.lease import Key, Lease, Status
from holdfast.leases.query import Query
from holdfast.leases.store import ClaimRequest, Outcome, Store, Swap
from holdfast.stores import memory
from holdfast.stores.memory import PLUGIN, MemoryConfig, MemoryStore
from holdfast.testing.rows import PIPELINE, assigned_row, make_row, touched
from holdfast.testing.stores import StoreBehaviour, StoreMachine
from holdfast.testing.worlds import TurnableClock


class TestMemoryStore(StoreBehaviour):
    @pytest.fixture(autouse=True)
    def one_table(self) -> None:
        self.clock = TurnableClock()
        self.table = MemoryStore(now=self.clock.monotonic)

    def make_store(self) -> Store:
        return self.table

    def pass_time(self, seconds: float) -> None:
        self.clock.turn(seconds)

    def corrupt(self, store: Store, key: Key) -> None:
        table = self.table._tables[key.pipeline, key.run]
        table.put(replace(table.rows[key.key], unreadable="{not json"))

    def corrupt_bytes(self, store: Store, key: Key, body: bytes) -> None:
        table = self.table._tables[key.pipeline, key.run]
        table.put(replace(table.rows[key.key], unreadable=body.decode("utf-8", "surrogateescape")))


class SortingStore(MemoryStore):
    """Claims by sorting all rows, where the real one keeps queues."""

    def claim(self, request: ClaimRequest) -> list[Lease]:
        now = self.now()
        found = self.find(Query(request.pipeline, request.run, request.order, due=True, limit=request.limit))
        taken = [request.take(row, now) for row in found]
        self.swap([Swap(row.version, lease) for row, lease in zip(found, taken, strict=True)])
        return taken


class MemoryMachine(StoreMachine):
    def make_store(self) -> Store:
        self.clock = TurnableClock()
        return SortingStore(now=self.clock.monotonic)

    def pass_time(self, seconds: float) -> None:
        self.clock.turn(seconds)


TestMemoryStoreAgainstSorting = MemoryMachine.TestCase
TestMemoryStoreAgainstSorting.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)


def test_the_plugin_builds_a_store_without_settings() -> None:
    store = PLUGIN.build(MemoryConfig())
    assert isinstance(store, MemoryStore)
    assert (store.durable, store.shared) == (False, False)


def test_queues_do_not_grow_with_the_number_of_writes() -> None:
    store = MemoryStore()
    row = assigned_row("session", "me", due_at=1.0)
    store.add([row])
    for number in range(5000):
        row = touched(row, due_at=float(number))
        store.swap([Swap(row.version - 1, row)])
    (queue,) = [table._queues[Status.ASSIGNED] for table in store._tables.values()]
    assert len(queue._entries) < 100


def test_rows_are_as_json_would_bring_them() -> None:
    store = MemoryStore()
    store.add([make_row("a", state={"pair": (1, 2), 3: "three", "word": Status.FAILED})])
    (row,) = store.get([Key(PIPELINE, "", "a")])
    assert row is not None
    assert row.progress.state == {"pair": [1, 2], "3": "three", "word": "FAILED"}
    with pytest.raises(TypeError):
        store.add([make_row("b", state={"set": {1, 2}})])


def test_a_write_that_takes_its_time_is_not_overtaken(monkeypatch: pytest.MonkeyPatch) -> None:
    put = memory._Table.put

    def put_slowly(table: memory._Table, row: Lease) -> None:
        time.sleep(0.01)
        put(table, row)

    monkeypatch.setattr(memory._Table, "put", put_slowly)
    store = MemoryStore()
    row = make_row("a")
    with ThreadPoolExecutor(4) as pool:
        added = list(pool.map(lambda _: store.add([row])[0], range(4)))
        swapped = list(pool.map(lambda _: store.swap([Swap(0, touched(row))])[0], range(4)))
        claimed = list(pool.map(lambda n: store.claim(ClaimRequest(PIPELINE, f"node {n}", "w")), range(4)))
    assert added.count(Outcome.OK) == swapped.count(Outcome.OK) == sum(map(len, claimed)) == 1
