"""A node that starts while its store comes and goes."""

from __future__ import annotations

from holdfast.app import current_generation
from holdfast.config import load_text
from holdfast.errors import StoreUnavailable
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


def test_a_store_that_goes_away_while_a_node_starts_is_waited_for() -> None:
    text = "pipelines: {orders: {source: {objects: {folder: in}}, sinks: [{files: {root: out}}]}}"
    settings = load_text(text, "shop.yaml", Registry.installed())
    clock = TurnableClock()
    store = Flickering(clock.monotonic)
    store.open()
    ask = current_generation(settings, store, make_world("a", clock=clock), "orders")
    assert ask() == 1
    assert store.asked > 1
