"""Which rows a `Query` means, and in which order: for stores that must look at the rows themselves."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from holdfast.leases.lease import FINISHED, Lease, Status
from holdfast.leases.store import Query, claim_order

ALL_IN_CLAIM_ORDER = (*claim_order(closed_last=False), *FINISHED)


def matches(row: Lease, query: Query, now: float) -> bool:
    """Whether all conditions of the query hold for this row; `now` is the store's time."""
    own = row.ownership
    is_due = own.due_at is not None and own.due_at <= now
    return (
        row.pipeline == query.pipeline
        and query.run in (None, row.run)
        and (not query.statuses or own.status in query.statuses)
        and not (query.due and not is_due)
        and not (query.not_due and is_due)
        and query.owner in (None, own.owner)
        and (query.without_owners is None or (own.owner is not None and own.owner not in query.without_owners))
        and query.group in (None, row.group)
        and (query.after_key is None or row.key > query.after_key)
    )


def chosen(rows: Iterable[Lease], query: Query, now: float) -> list[Lease]:
    """The rows that the query means, in the order in which it wants them, no more than its limit."""
    found = [row for row in rows if matches(row, query, now)]
    return in_order(found, query)[: query.limit]


def in_order(rows: Iterable[Lease], query: Query) -> list[Lease]:
    """By key, or in order of claim if the query asks for what is due."""
    if not query.due:
        return sorted(rows, key=lambda row: (row.key, row.run))
    statuses = tuple(dict.fromkeys(query.statuses or ALL_IN_CLAIM_ORDER))
    return sorted(rows, key=lambda row: (statuses.index(row.status), _claim_place(row), row.run))


def _claim_place(row: Lease) -> tuple[Any, ...]:
    if row.status is Status.UNASSIGNED:
        return (-row.order.priority, row.order.ordinal, row.key)
    return (row.ownership.due_at or 0.0, row.key)
