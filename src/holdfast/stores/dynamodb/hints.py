"""What the index says of rows that may still be worked on. It can be behind the table: its answers are hints.

A hint names a row to look at, no more; whoever acts reads the row itself. A row that a hint should have named, and did
not, is found by a later look.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from holdfast.leases.lease import Status
from holdfast.leases.query import Query
from holdfast.stores.dynamodb.client import DynamodbClient
from holdfast.stores.dynamodb.items import (
    DUE_ASSIGNED,
    INDEX,
    LETTERS,
    RANK,
    REST_OF_THEM,
    SHARD,
    SHARDS,
    UNASSIGNED,
    Hint,
    hint_of,
    just_above,
    shard_keys,
)

SMALLEST_PAGE, LARGEST_PAGE = 32, 500


def due(client: DynamodbClient, query: Query, now: float) -> Iterator[Hint]:
    """Rows of the query's statuses that seem to be due, in order of claim. Reads no more than is asked for."""
    page = min(LARGEST_PAGE, max(SMALLEST_PAGE, 2 * (query.limit or LARGEST_PAGE) // SHARDS))
    keys = shard_keys(query.pipeline, query.run or "")
    shards = client.each(lambda key: _look(client, query.pipeline, key, page), keys)
    for status in query.claim_statuses:
        letter = LETTERS[status]
        end = _next(letter) if status is Status.UNASSIGNED else letter + just_above(now)
        hints = heapq.merge(*(shard.part(letter, end) for shard in shards), key=lambda hint: hint.rank)
        yield from (hint for hint in hints if hint.due_at is not None and hint.due_at <= now)


def owned(client: DynamodbClient, query: Query) -> list[Hint]:
    """Rows that seem to be ASSIGNED, of the owners that the query means, in no order."""
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
    # Most looks find little or nothing, and one request per key tells it for all statuses.
    answer = client.call("query", **_range(key, DUE_ASSIGNED, _next(UNASSIGNED)), Limit=page)
    hints = [hint_of(item, pipeline) for item in answer["Items"]]
    return _Shard(client, pipeline, key, hints, answer.get("LastEvaluatedKey"))


def _entries(client: DynamodbClient, pipeline: str, key: str, start: str, end: str, **more: Any) -> Iterator[Hint]:
    while True:
        page = client.call("query", **_range(key, start, end), **more, Limit=LARGEST_PAGE)
        yield from (hint_of(item, pipeline) for item in page["Items"])
        if "LastEvaluatedKey" not in page:
            return
        more = {"ExclusiveStartKey": page["LastEvaluatedKey"]}


def _next(start: str) -> str:
    """What sorts behind everything that begins like this."""
    return start[:-1] + chr(ord(start[-1]) + 1)


def _range(key: str, start: str, end: str) -> dict[str, Any]:
    return {
        "IndexName": INDEX,
        "KeyConditionExpression": "#shard = :shard AND #rank BETWEEN :start AND :end",
        "ExpressionAttributeNames": {"#shard": SHARD, "#rank": RANK},
        "ExpressionAttributeValues": {":shard": {"S": key}, ":start": {"S": start}, ":end": {"S": end}},
    }
