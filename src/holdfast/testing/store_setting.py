"""What a subclass of `StoreBehaviour` defines, and what its tests use."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from holdfast.leases.lease import Key, Lease
from holdfast.leases.store import Store
from holdfast.testing.rows import PIPELINE


class StoreSetting:
    """One table of leases per test, empty at first, reached through any number of handles."""

    tick: float = 0.25
    """Seconds in which the store and this process can certainly complete an operation."""

    _stores: list[Store]

    def make_store(self) -> Store:
        """A new handle on the table of this test, not yet opened."""
        raise NotImplementedError(
            f"{type(self).__name__} must define make_store(): it returns a new handle, not yet opened, on one table "
            "that is empty when a test begins"
        )

    def child_factory(self) -> Callable[[], Store] | None:
        """A picklable function that makes a handle in another process; None if only threads can share the table."""
        return None

    def pass_time(self, seconds: float) -> None:
        """Let time pass on the store's clock. Override it if the clock can be set."""
        time.sleep(seconds)

    def corrupt(self, store: Store, key: Key) -> None:
        """Make the stored body of that row unreadable, without using the store."""
        pytest.skip("the subclass does not say how to corrupt a row")

    def corrupt_bytes(self, store: Store, key: Key, body: bytes) -> None:
        """Write these bytes, which are not UTF-8, as the stored body of that row, without using the store.

        Not needed for a store whose server refuses such text.
        """
        pytest.skip("the subclass does not say how to store bytes that are not UTF-8")

    def setup_method(self) -> None:
        """Called by pytest before each test."""
        self._stores = []

    def teardown_method(self) -> None:
        """Called by pytest after each test."""
        for store in self._stores:
            store.close()

    @property
    def store(self) -> Store:
        """The handle that most tests use."""
        return self._stores[0] if self._stores else self.another_store()

    def another_store(self) -> Store:
        """Another handle, already opened."""
        store = self.make_store()
        store.open()
        self._stores.append(store)
        return store

    def row(self, key: str, pipeline: str = PIPELINE, run: str = "") -> Lease:
        """The current row; it must exist."""
        (row,) = self.store.get([Key(pipeline, run, key)])
        assert row is not None, f"there is no row {key!r}"
        return row


@contextmanager
def restless_threads() -> Iterator[None]:
    """Let Python switch between threads a thousand times more often than by default."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(interval / 1000)
    try:
        yield
    finally:
        sys.setswitchinterval(interval)
