"""The real DynamoDB store over a simulated table: its index is behind, its requests are lost, late and doubled.

How the store searches, reads and writes is the product's own code.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any, TypeVar

from holdfast.errors import AnswerLost
from holdfast.leases.lease import Key
from holdfast.leases.store import Outcome, Swap
from holdfast.stores.dynamodb import DynamodbConfig
from holdfast.stores.dynamodb.client import ConditionFailed
from holdfast.stores.dynamodb.items import PIPELINE, RANK, SHARD, SORT_KEY, STATUS, Item, item_of, lease_of, table_key
from holdfast.stores.dynamodb.store import DynamodbStore
from tests.simulation.host import Host
from tests.simulation.store import ProductStoreClient, one_after_the_other
from tests.simulation.store_server import StoreServer

_Input = TypeVar("_Input")
_Result = TypeVar("_Result")

CONFIG = DynamodbConfig(table_name="simulated", region="nowhere")
CATCHES_UP = 0.5
"""How likely the index is up to date when it is asked; else it answers what it answered before."""


class IndexedStoreClient(ProductStoreClient):
    """A node's connection."""

    max_body_bytes = DynamodbStore.max_body_bytes

    def __init__(self, server: StoreServer, host: Host, latency: float, ttl: float) -> None:
        super().__init__(server, host, latency, ttl)
        self._store = DynamodbStore(CONFIG, server.now)
        self._store._client = _Line(self)  # type: ignore[assignment]
        self._indexed: list[Item] = []

    # --- requests -------------------------------------------------------------------------------------------------

    def get_item(self, key: Item) -> dict[str, Any]:
        found = self._read("get_item", lambda: [row for row in self._rows() if _key_of(row.id) == key])
        return {"Item": item_of(found[0], None)} if found else {}

    def put_item(self, item: Item, version: int | None) -> None:
        lease = lease_of(item)
        if version is None:
            self._send("put_item", lambda: self._server.add([lease], self._host))
        else:
            self._send("put_item", lambda: self._server.swap([Swap(version, lease)], self._host))

    def delete_item(self, key: Item, version: int) -> None:
        def delete() -> list[Outcome]:
            rows = [row for row in self._rows() if _key_of(row.id) == key]
            if not rows or rows[0].version != version:
                return [Outcome.CONFLICT if rows else Outcome.OK]
            return self._server.remove(rows)

        self._send("delete_item", delete)

    def query(self, values: Mapping[str, str], statuses: set[str]) -> dict[str, Any]:
        rows = self._read("query", self._rows)
        items = [item_of(row, None) for row in rows]
        meant = [item for item in items if item[PIPELINE]["S"] == values[":pipeline"]]
        if ":first" in values:
            meant = [item for item in meant if values[":first"] <= item[SORT_KEY]["S"] <= values[":last"]]
        if statuses:
            meant = [item for item in meant if item[STATUS]["S"] in statuses]
        return {"Items": sorted(meant, key=lambda item: item[SORT_KEY]["S"])}

    def query_index(self, values: Mapping[str, str]) -> dict[str, Any]:
        rows = self._read("query_index", self._rows)
        if self._kernel.random() < CATCHES_UP:
            self._indexed = [item for item in (item_of(row, None) for row in rows) if SHARD in item]
        meant = [item for item in self._indexed if item[SHARD]["S"] == values[":shard"]]
        between = [item for item in meant if values[":start"] <= item[RANK]["S"] <= values[":end"]]
        return {"Items": sorted(between, key=lambda item: item[RANK]["S"])}

    def _send(self, name: str, send: Callable[[], list[Outcome]]) -> None:
        def lost() -> list[Outcome]:
            raise AnswerLost(f"{name} may have been applied")

        if self._write(name, send, lost) == [Outcome.CONFLICT]:
            raise ConditionFailed


@lru_cache(maxsize=10_000)
def _key_of(key: Key) -> Item:
    return table_key(key)


class _Line:
    """What the store takes for its client."""

    location = "simulated table"

    def __init__(self, client: IndexedStoreClient) -> None:
        self._client = client

    def call(self, verb: str, **arguments: Any) -> Mapping[str, Any]:
        values = {
            name: next(iter(typed.values())) for name, typed in arguments.get("ExpressionAttributeValues", {}).items()
        }
        version = int(values[":version"]) if ":version" in values else None
        if verb == "get_item":
            return self._client.get_item(arguments["Key"])
        if verb == "put_item":
            self._client.put_item(arguments["Item"], version)
        elif verb == "delete_item":
            assert version is not None
            self._client.delete_item(arguments["Key"], version)
        elif "IndexName" in arguments:
            return self._client.query_index(values)
        else:
            return self._client.query(values, {text for name, text in values.items() if name.startswith(":s")})
        return {}

    def pages(self, **arguments: Any) -> Iterator[Mapping[str, Any]]:
        yield self.call("query", **arguments)

    def each(self, do: Callable[[_Input], _Result], inputs: Iterable[_Input]) -> list[_Result]:
        return one_after_the_other(do, inputs)
