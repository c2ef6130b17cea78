"""A node that starts while its store comes and goes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

import pytest

from holdfast import service
from holdfast.assemble import StoredPipeline, followed_generation, open_store
from holdfast.config import load_text
from holdfast.errors import PartitionNotFound, StoreUnavailable, UsageError
from holdfast.leases.lease import Lease
from holdfast.leases.store import Outcome
from holdfast.registry import Registry
from holdfast.stores.memory import MemoryStore
from holdfast.testing.worlds import TurnableClock, make_world


class Flickering(MemoryStore):
    """Away for every second question about the time."""

    asked = 0

    def now(self) -> float:
        self.asked += 1
        if self.asked % 2:
            raise StoreUnavailable("the server closed the connection")
        return super().now()


class Forgetful(MemoryStore):
    """Loses the first write and cannot tell."""

    lost = False

    def add(self, leases: Sequence[Lease]) -> list[Outcome]:
        if not self.lost:
            self.lost = True
            return [Outcome.UNKNOWN] * len(leases)
        return super().add(leases)


def started_on(store: MemoryStore, clock: TurnableClock) -> int | None:
    """The current generation, as a node that starts on the store sees it."""
    text = "pipelines: {orders: {source: {objects: {folder: in}}, sinks: [{files: {root: out}}]}}"
    settings = load_text(text, "shop.yaml", Registry.installed())
    store.open()
    return followed_generation(StoredPipeline(settings, store, "orders"), make_world("a", clock=clock)).current()


def test_a_store_that_goes_away_while_a_node_starts_is_waited_for() -> None:
    clock = TurnableClock()
    store = Flickering(clock.monotonic)
    assert started_on(store, clock) == 1
    assert store.asked > 1


def test_a_write_that_was_lost_while_a_node_starts_is_made_again() -> None:
    clock = TurnableClock()
    assert started_on(Forgetful(clock.monotonic), clock) == 1


def test_a_generation_is_current_only_when_its_node_can_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = f"""
source_coordination: {{store: {{sqlite: {{path: {tmp_path}/leases.db}}}}}}
pipelines:
  orders: {{source: {{objects: {{folder: {tmp_path}/in}}}}, sinks: [{{files: {{root: {tmp_path}/out}}}}]}}
"""
    (tmp_path / "in").mkdir()
    settings = load_text(text, "shop.yaml", Registry.installed())
    found: list[str] = []

    def spark_does_not_start(*_: object) -> NoReturn:
        store = open_store(settings)
        try:
            StoredPipeline(settings, store, "orders").generations().current()
        except PartitionNotFound:
            found.append("none is current")
        raise UsageError("no Spark")

    monkeypatch.setattr(service, "engines_of", spark_does_not_start)
    with pytest.raises(UsageError, match="no Spark"):
        service.run(settings, lambda _event: None)
    assert found == ["none is current"]
