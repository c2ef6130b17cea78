"""Queries: which rows a store finds, and the order in which leases are claimed. Pure.

The order of claim is defined here and nowhere else, in the forms that stores need:

- `claim_statuses`: the statuses, first those whose leases are taken first;
- `CLAIM_COLUMNS`: the columns that order the rows of one status, for `ORDER BY` and for indexes;
- `claim_rank`: the same within one status as a sort key of plain values, for rows that are not decoded yet, and for
  sort keys that a store keeps itself;
- `by_claim`: the sort key of decoded rows over all statuses.

A store whose server evaluates queries builds its statements from the first two. A store that filters rows itself uses
`select`, or `matches` and `in_order`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from holdfast.leases.lease import FINISHED, Lease, Status

Rank: TypeAlias = tuple[float | int | str, ...]


@dataclass(frozen=True, slots=True)
class Query:
    """Which rows to find. None means any; all given conditions must hold."""

    pipeline: str
    run: str | None = ""
    statuses: tuple[Status, ...] = ()
    due: bool = False
    """Only rows whose `due_at` the store's own clock has reached; they are returned in the order of claim."""
    owner: str | None = None
    without_owners: tuple[str, ...] | None = None
    """Only rows that have an owner, and whose owner is not one of these."""
    not_due: bool = False
    """Only rows whose `due_at` is null or lies ahead by the store's own clock."""
    group: str | None = None
    after_key: str | None = None
    limit: int | None = None

    @property
    def claim_statuses(self) -> tuple[Status, ...]:
        """The statuses in the order in which a query for due rows returns them, each once."""
        return tuple(dict.fromkeys(self.statuses)) or ALL_STATUSES


def claim_statuses(*, closed_last: bool = False) -> tuple[Status, ...]:
    """Statuses that can be claimed, in the order in which leases are taken."""
    if closed_last:
        return (Status.ASSIGNED, Status.UNASSIGNED, Status.CLOSED)
    return (Status.ASSIGNED, Status.CLOSED, Status.UNASSIGNED)


ALL_STATUSES = (*claim_statuses(), *FINISHED)
"""The order of a query for due rows that names no statuses."""


class OrderColumn(NamedTuple):
    """A column by which rows are ordered."""

    name: str
    descending: bool = False


_BY_DUE_TIME = (OrderColumn("due_at"), OrderColumn("key"), OrderColumn("run"))
_BY_PRIORITY = (
    OrderColumn("priority", descending=True),
    OrderColumn("ordinal"),
    OrderColumn("key"),
    OrderColumn("run"),
)

CLAIM_COLUMNS: Mapping[Status, Sequence[OrderColumn]] = {
    status: _BY_PRIORITY if status is Status.UNASSIGNED else _BY_DUE_TIME for status in Status
}
"""By status, the columns that order its rows for a claim."""


def claim_rank(status: str, due_at: float | None, priority: int, ordinal: int, key: str) -> Rank:
    """The sort key of a row among the rows of its status and run; see `CLAIM_COLUMNS`."""
    if status == Status.UNASSIGNED:
        return (-priority, ordinal, key)
    return (due_at or 0.0, key)


def by_claim(statuses: Sequence[Status]) -> Callable[[Lease], tuple[int, Rank, str]]:
    """The sort key of rows in the order of claim; `statuses` are in the order in which they are claimed."""
    index = {status: at for at, status in enumerate(dict.fromkeys(statuses))}

    def rank(row: Lease) -> tuple[int, Rank, str]:
        owned, order = row.ownership, row.order
        within = claim_rank(owned.status, owned.due_at, order.priority, order.ordinal, row.key)
        return (index[owned.status], within, row.run)

    return rank


def by_key(row: Lease) -> tuple[str, str]:
    """The sort key of a query that does not select due rows."""
    return (row.key, row.run)


def matches(row: Lease, query: Query, now: float) -> bool:
    """Whether all conditions of the query hold for this row; `now` is the store's time."""
    owned = row.ownership
    is_due = owned.due_at is not None and owned.due_at <= now
    return (
        row.pipeline == query.pipeline
        and query.run in (None, row.run)
        and (not query.statuses or owned.status in query.statuses)
        and not (query.due and not is_due)
        and not (query.not_due and is_due)
        and query.owner in (None, owned.owner)
        and (query.without_owners is None or (owned.owner is not None and owned.owner not in query.without_owners))
        and query.group in (None, row.group)
        and (query.after_key is None or row.key > query.after_key)
    )


def select(rows: Iterable[Lease], query: Query, now: float) -> list[Lease]:
    """The rows that match the query, in its order, at most as many as its limit."""
    return in_order((row for row in rows if matches(row, query, now)), query)[: query.limit]


def in_order(rows: Iterable[Lease], query: Query) -> list[Lease]:
    """Rows in the order of the query: by key and run, or in the order of claim if it selects due rows."""
    return sorted(rows, key=by_claim(query.claim_statuses) if query.due else by_key)
