"""A simulated store of objects: no clock that nodes could share, and looks that decide nothing may be old.

A node's own writes are in its looks; what others have written comes with the next one. Answers that were lost are read
when they are asked for. Writes are lost, late and doubled as on every simulated store.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from holdfast.leases.lease import Key, Lease, Status
from holdfast.leases.store import Outcome, Query, Snapshot, Store, Swap
from tests.simulation.host import Host
from tests.simulation.store import StoreClient
from tests.simulation.store_server import FrozenRows, StoreServer


class WatchingStoreClient(StoreClient):
    """A node's connection, with what its last look has shown."""

    has_clock = False

    def __init__(self, server: StoreServer, host: Host, latency: float, ttl: float) -> None:
        super().__init__(server, host, latency, ttl)
        self._view = FrozenRows(server.now)
        self._looked_at = -1.0
        self._doubted: set[Key] = set()

    def recent(self, max_age: float) -> Store:
        return _Recent(self, max_age)

    def add(self, leases: Sequence[Lease]) -> list[Outcome]:
        return self._learn(leases, super().add(leases))

    def swap(self, swaps: Sequence[Swap]) -> list[Outcome]:
        return self._learn([swap.lease for swap in swaps], super().swap(swaps))

    def remove(self, leases: Sequence[Lease]) -> list[Outcome]:
        outcomes = super().remove(leases)
        self._doubted.update(lease.id for lease in leases)
        return outcomes

    def view(self, max_age: float) -> FrozenRows:
        """The table as this node may see it, by a look that is at most so old."""
        now = self._kernel.now
        if self._looked_at < 0 or now - self._looked_at > max_age:
            self._view = self._read("look", self._all_rows)
            self._looked_at = now
            self._doubted.clear()
        elif self._doubted:
            doubted = sorted(self._doubted)
            for key, row in zip(doubted, self.get(doubted), strict=True):
                self._show(key, row)
            self._doubted.clear()
        return self._view

    def _all_rows(self) -> FrozenRows:
        view = FrozenRows(self._server.now)
        for table in self._server.memory._tables.values():
            view.add(list(table.rows.values()))
        return view

    def _learn(self, leases: Sequence[Lease], outcomes: list[Outcome]) -> list[Outcome]:
        for lease, outcome in zip(leases, outcomes, strict=True):
            if outcome is Outcome.OK:
                self._show(lease.id, lease)
            else:
                self._doubted.add(lease.id)
        return outcomes

    def _show(self, key: Key, row: Lease | None) -> None:
        (present,) = self._view.get([key])
        if present is not None:
            self._view.remove([present])
        if row is not None:
            self._view.add([row])


class _Recent(Store):
    """Reads from what was seen, writes through the connection."""

    has_clock = False

    def __init__(self, client: WatchingStoreClient, max_age: float) -> None:
        self._client = client
        self._max_age = max_age

    def open(self) -> None:
        """Nothing to do."""

    def close(self) -> None:
        """Nothing to do."""

    def now(self) -> float:
        return self._client.now()

    def get(self, keys: Sequence[Key]) -> list[Lease | None]:
        return self._client.view(self._max_age).get(keys)

    def find(self, query: Query) -> list[Lease]:
        return self._client.view(self._max_age).find(query)

    def snapshot(self, pipeline: str, sessions: str, run: str = "") -> Snapshot:
        return self._client.view(self._max_age).snapshot(pipeline, sessions, run)

    def count(self, pipeline: str, run: str = "") -> Mapping[Status, int]:
        return self._client.view(self._max_age).count(pipeline, run)

    def add(self, leases: Sequence[Lease]) -> list[Outcome]:
        return self._client.add(leases)

    def swap(self, swaps: Sequence[Swap]) -> list[Outcome]:
        return self._client.swap(swaps)

    def remove(self, leases: Sequence[Lease]) -> list[Outcome]:
        return self._client.remove(leases)
