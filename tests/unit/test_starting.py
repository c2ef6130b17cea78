"""A node that starts while its store comes and goes."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.assemble import StoredPipeline, followed_generation
from holdfast.config import load_text
from holdfast.errors import StoreUnavailable
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
