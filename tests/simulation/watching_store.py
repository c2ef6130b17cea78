"""The real store of objects over a simulated bucket: listings are behind, requests are lost, late and doubled.

How the store lists, reads and writes is the product's own code.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache
from weakref import WeakKeyDictionary

from holdfast.errors import AnswerLost
from holdfast.leases.codec import encode_body
from holdfast.leases.columns import columns
from holdfast.leases.lease import Key, Lease
from holdfast.leases.store import Outcome, Store, Swap
from holdfast.stores.object.objects import Changed, Found, Input, Result, TaggedObjects
from holdfast.stores.object.row_cache import RowCache
from holdfast.stores.object.rows import Stored, name_of, parsed
from holdfast.stores.object.store import ObjectStore
from tests.simulation.host import Host
from tests.simulation.store import ProductStoreClient, one_after_the_other
from tests.simulation.store_server import StoreServer

_NONCES: WeakKeyDictionary[StoreServer, dict[tuple[str, str], str]] = WeakKeyDictionary()
"""The table of a server keeps leases; what its objects hold beside them is kept here, by name and tag."""
BEHIND = 0.2
"""How likely a listing is the one that was answered before."""


class WatchingStoreClient(ProductStoreClient):
    """A node's connection."""

    def __init__(self, server: StoreServer, host: Host, latency: float, ttl: float) -> None:
        super().__init__(server, host, latency, ttl)
        bucket = _Bucket(self)
        self._store = ObjectStore(bucket, rows=RowCache(bucket, lambda: self._kernel.now))
        self._listed: dict[str, str] = {}
        self.nonces = _NONCES.setdefault(server, {})

    def recent(self, max_age: float) -> Store:
        return self._store.recent(max_age)

    # --- requests -------------------------------------------------------------------------------------------------

    def list_objects(self, *, may_be_old: bool) -> dict[str, str]:
        rows = self._read("list", self._rows)
        if not may_be_old or self._kernel.random() >= BEHIND:
            self._listed = {_name_of(row.id): _tag_of(row) for row in rows}
        return self._listed

    def get_object(self, name: str) -> Lease | None:
        return self._read("get_object", lambda: self._row(name))

    def put_object(self, name: str, row: Stored, tag: str | None) -> None:
        def put() -> list[Outcome]:
            present = self._row(name)
            if (None if present is None else _tag_of(present)) != tag:
                return [Outcome.CONFLICT]
            self.nonces[name, _tag_of(row.lease())] = row.nonce
            if present is None:
                return self._server.add([row.lease()], self._host)
            if row.gone:
                return self._server.remove([present])
            return self._server.swap([Swap(present.version, row.lease())], self._host)

        def lost() -> list[Outcome]:
            raise AnswerLost("the object may have been written")

        if self._write("put_object", put, lost) == [Outcome.CONFLICT]:
            raise Changed(name)

    def _row(self, name: str) -> Lease | None:
        return next((row for row in self._rows() if _name_of(row.id) == name), None)


class _Bucket(TaggedObjects):
    """What the store takes for its objects."""

    location = "simulated bucket"

    def __init__(self, client: WatchingStoreClient) -> None:
        self._client = client

    def tags(self, prefix: str) -> dict[str, str]:
        # A listing of everything is a look that decides nothing.
        found = self._client.list_objects(may_be_old=prefix.count("/") == 1)
        return {name: tag for name, tag in found.items() if name.startswith(prefix)}

    def read(self, name: str) -> Found | None:
        row = self._client.get_object(name)
        if row is None:
            return None
        tag = _tag_of(row)
        return Found(Stored(columns(row), encode_body(row), self._client.nonces.get((name, tag), "")).data(), tag)

    def write(self, name: str, data: bytes, tag: str | None) -> str:
        row = parsed(name, Found(data, ""))
        self._client.put_object(name, row, tag)
        return "removed" if row.gone else _tag_of(row.lease())

    def delete(self, name: str, tag: str) -> None:
        """It is gone already."""

    def discard(self, name: str) -> None:
        """Nothing is probed here."""

    def each(self, do: Callable[[Input], Result], inputs: Iterable[Input]) -> list[Result]:
        return one_after_the_other(do, inputs)

    def now(self) -> float:
        return self._client.now()

    def close(self) -> None:
        """Nothing to do."""


def _tag_of(row: Lease) -> str:
    return f"{row.version} {row.ownership.write_id}"


@lru_cache(maxsize=10_000)
def _name_of(key: Key) -> str:
    return name_of(key)
