"""Rows of the table itself, by consistent reads."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from holdfast.leases.lease import Key, Lease
from holdfast.leases.query import Query, matches, select
from holdfast.stores.dynamodb.client import DynamodbClient
from holdfast.stores.dynamodb.items import (
    HEAD,
    PIPELINE,
    PLACE,
    STATUS,
    Item,
    pipeline_key,
    run_prefix,
    table_key,
)
from holdfast.stores.dynamodb.receipts import Receipts

PAGE_SLACK = 50


def get_rows(client: DynamodbClient, receipts: Receipts, keys: Sequence[Key]) -> list[Lease | None]:
    """The rows as they are now, in that order."""

    def get(key: Key) -> Lease | None:
        item = _get_item(client, key)
        return None if item is None else receipts.whole(item, lambda key: _get_item(client, key))

    once = list(dict.fromkeys(keys))
    found = dict(zip(once, client.each(get, once), strict=True))
    return [found[key] for key in keys]


def _get_item(client: DynamodbClient, key: Key) -> Item | None:
    item: Item | None = client.call("get_item", Key=table_key(key), ConsistentRead=True).get("Item")
    return item


def search(client: DynamodbClient, receipts: Receipts, query: Query, now: float) -> list[Lease]:
    """What the query means, by reading the pipeline's rows in order of key; no further than its limit needs."""
    if query.limit is None or query.due or query.run is None:
        return select(_rows(client, receipts, _items(client, query)), query, now)
    found: list[Lease] = []
    head = ""
    for row in _rows(client, receipts, _items(client, query, query.limit)):
        # Rows with one long beginning are in no order among themselves: the last such group is read to its end.
        if len(found) >= query.limit and row.key[:HEAD] != head:
            break
        if matches(row, query, now):
            found.append(row)
            head = row.key[:HEAD]
    return select(found, query, now)


def _rows(client: DynamodbClient, receipts: Receipts, items: Iterable[Item]) -> Iterator[Lease]:
    for item in items:
        row = receipts.whole(item, lambda key: _get_item(client, key))
        if row is not None:
            yield row


def statuses(client: DynamodbClient, pipeline: str, run: str) -> Iterator[str]:
    """The status of each row of the run."""
    for item in _items(client, Query(pipeline, run), ProjectionExpression="#status"):
        yield item[STATUS]["S"]


def _items(client: DynamodbClient, query: Query, limit: int | None = None, **more: Any) -> Iterator[Item]:
    names, values = {"#pipeline": PIPELINE}, {":pipeline": {"S": pipeline_key(query.pipeline)}}
    condition = "#pipeline = :pipeline"
    if query.run is not None:
        prefix = run_prefix(query.run)
        names["#place"] = PLACE
        condition += " AND #place BETWEEN :first AND :last"
        # Nothing is between the prefix with its last character raised by one and the rows of the next run.
        after = (query.after_key or "")[:HEAD]
        values |= {":first": {"S": prefix + after}, ":last": {"S": prefix[:-1] + chr(ord(prefix[-1]) + 1)}}
    if query.statuses or "ProjectionExpression" in more:
        names["#status"] = STATUS
    if query.statuses:
        wanted = {f":s{number}": {"S": status.value} for number, status in enumerate(dict.fromkeys(query.statuses))}
        values |= wanted
        more["FilterExpression"] = f"#status IN ({', '.join(wanted)})"
    if limit is not None:
        more["Limit"] = limit + PAGE_SLACK
    request = {
        "KeyConditionExpression": condition,
        "ExpressionAttributeNames": names,
        "ExpressionAttributeValues": values,
        "ConsistentRead": True,
    }
    for page in client.pages(**request, **more):
        yield from page["Items"]
