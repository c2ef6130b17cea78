"""Reads: consistent reads of the table's rows, and hints from its index.

The index can be behind the table. A hint only names a row to look at; the row itself is read before it is used. A row
that is missing from the hints is found by a later search.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from holdfast.leases.columns import OutlineRow, outline_of
from holdfast.leases.lease import Key, Lease, Status
from holdfast.leases.query import Query, matches, select
from holdfast.stores.dynamodb.client import DynamodbClient
from holdfast.stores.dynamodb.items import (
    COLUMNS,
    DUE_ASSIGNED,
    HEAD,
    INDEX,
    LETTERS,
    PIPELINE,
    RANK,
    REST_OF_THEM,
    SHARD,
    SHARDS,
    SORT_KEY,
    STATUS,
    UNASSIGNED,
    Hint,
    Item,
    columns_of,
    hint_of,
    just_above,
    pipeline_key,
    run_prefix,
    shard_keys,
    table_key,
)
from holdfast.stores.dynamodb.receipts import Receipts

PAGE_SLACK = 50
SMALLEST_PAGE, LARGEST_PAGE = 32, 500


# --- rows ------------------------------------------------------------------------------------------------------------


def get_rows(client: DynamodbClient, receipts: Receipts, keys: Sequence[Key]) -> list[Lease | None]:
    """The current rows, in the order of the keys."""

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
    """The rows of the query, by reading the pipeline's rows in order of key, up to its limit."""
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
    for item in _items(client, Query(pipeline, run), attributes=(STATUS,)):
        yield item[STATUS]["S"]


def outlines(client: DynamodbClient, pipeline: str, run: str | None) -> list[OutlineRow]:
    """All rows of the run, or of all runs, without their bodies."""
    items = _items(client, Query(pipeline, run), attributes=COLUMNS)
    return sorted(outline_of(columns_of(item)) for item in items)


def _items(
    client: DynamodbClient, query: Query, limit: int | None = None, attributes: Sequence[str] = ()
) -> Iterator[Item]:
    """Items of the query's run and statuses; if attributes are given, with these only."""
    more: dict[str, Any] = {}
    names, values = {"#pipeline": PIPELINE}, {":pipeline": {"S": pipeline_key(query.pipeline)}}
    condition = "#pipeline = :pipeline"
    if query.run is not None:
        prefix = run_prefix(query.run)
        names["#sort_key"] = SORT_KEY
        condition += " AND #sort_key BETWEEN :first AND :last"
        # Nothing is between the prefix with its last character raised by one and the rows of the next run.
        after = (query.after_key or "")[:HEAD]
        values |= {":first": {"S": prefix + after}, ":last": {"S": prefix[:-1] + chr(ord(prefix[-1]) + 1)}}
    if query.statuses:
        names["#status"] = STATUS
    if query.statuses:
        wanted = {f":s{number}": {"S": status.value} for number, status in enumerate(dict.fromkeys(query.statuses))}
        values |= wanted
        more["FilterExpression"] = f"#status IN ({', '.join(wanted)})"
    if attributes:
        projected = {f"#a{number}": name for number, name in enumerate(attributes)}
        names |= projected
        more["ProjectionExpression"] = ", ".join(projected)
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


# --- hints -----------------------------------------------------------------------------------------------------------


def due_hints(client: DynamodbClient, query: Query, now: float) -> Iterator[Hint]:
    """Rows of the query's statuses that seem to be due, in order of claim. Reads no more than requested."""
    page = min(LARGEST_PAGE, max(SMALLEST_PAGE, 2 * (query.limit or LARGEST_PAGE) // SHARDS))
    keys = shard_keys(query.pipeline, query.run or "")
    shards = client.each(lambda key: _look(client, query.pipeline, key, page), keys)
    for status in query.claim_statuses:
        letter = LETTERS[status]
        end = _next(letter) if status is Status.UNASSIGNED else letter + just_above(now)
        hints = heapq.merge(*(shard.part(letter, end) for shard in shards), key=lambda hint: hint.rank)
        yield from (hint for hint in hints if hint.due_at is not None and hint.due_at <= now)


def owned_hints(client: DynamodbClient, query: Query) -> list[Hint]:
    """Rows that seem to be ASSIGNED to owners of the query, in no particular order."""
    starts = (DUE_ASSIGNED, f"{REST_OF_THEM}{Status.ASSIGNED.value}")
    looks = [(key, start, _next(start)) for key in shard_keys(query.pipeline, query.run or "") for start in starts]
    found = client.each(lambda look: list(_entries(client, query.pipeline, *look)), looks)
    return [hint for hints in found for hint in hints if _is_meant(hint, query)]


def _is_meant(hint: Hint, query: Query) -> bool:
    strangers = query.without_owners
    return query.owner in (None, hint.owner) and (strangers is None or hint.owner not in strangers)


class _Shard(NamedTuple):
    """The first entries of one key of the index, and how to get the rest."""

    client: DynamodbClient
    pipeline: str
    key: str
    first: list[Hint]
    more: Mapping[str, Any] | None

    def part(self, letter: str, end: str) -> Iterator[Hint]:
        """Entries whose rank begins with that letter, up to `end`."""
        yield from (hint for hint in self.first if hint.rank.startswith(letter) and hint.rank <= end)
        last = self.first[-1].rank if self.first else ""
        if self.more is None or last > end:
            return
        start = {"ExclusiveStartKey": self.more} if last.startswith(letter) else {}
        yield from _entries(self.client, self.pipeline, self.key, letter, end, **start)


def _look(client: DynamodbClient, pipeline: str, key: str, page: int) -> _Shard:
    # Most searches find little or nothing, and one request per key shows that for all statuses.
    response = client.call("query", **_range(key, DUE_ASSIGNED, _next(UNASSIGNED)), Limit=page)
    hints = [hint_of(item, pipeline) for item in response["Items"]]
    return _Shard(client, pipeline, key, hints, response.get("LastEvaluatedKey"))


def _entries(client: DynamodbClient, pipeline: str, key: str, start: str, end: str, **more: Any) -> Iterator[Hint]:
    while True:
        page = client.call("query", **_range(key, start, end), **more, Limit=LARGEST_PAGE)
        yield from (hint_of(item, pipeline) for item in page["Items"])
        if "LastEvaluatedKey" not in page:
            return
        more = {"ExclusiveStartKey": page["LastEvaluatedKey"]}


def _next(start: str) -> str:
    """The least text that sorts after every text with this prefix."""
    return start[:-1] + chr(ord(start[-1]) + 1)


def _range(key: str, start: str, end: str) -> dict[str, Any]:
    return {
        "IndexName": INDEX,
        "KeyConditionExpression": "#shard = :shard AND #rank BETWEEN :start AND :end",
        "ExpressionAttributeNames": {"#shard": SHARD, "#rank": RANK},
        "ExpressionAttributeValues": {":shard": {"S": key}, ":start": {"S": start}, ":end": {"S": end}},
    }
