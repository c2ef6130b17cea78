"""The order of claim: its forms agree."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest

from holdfast.leases.lease import Lease, Order, Ownership, Status
from holdfast.leases.query import (
    ALL_STATUSES,
    CLAIM_COLUMNS,
    Query,
    by_claim,
    claim_rank,
    claim_statuses,
    in_order,
    select,
)

ROWS = [
    Lease("p", key, run, ownership=Ownership(status, due_at=due_at), order=Order(priority, ordinal))
    for status, due_at, priority, ordinal, key, run in itertools.product(
        Status, (1.0, 2.0), (0, 5), (1, 2), ("a", "b"), ("", "r")
    )
]
VALUE: dict[str, Callable[[Lease], Any]] = {
    "due_at": lambda row: row.ownership.due_at,
    "priority": lambda row: row.order.priority,
    "ordinal": lambda row: row.order.ordinal,
    "key": lambda row: row.key,
    "run": lambda row: row.run,
}


@pytest.mark.parametrize("status", Status)
def test_columns_and_rank_order_the_rows_of_a_status_alike(status: Status) -> None:
    rows = [row for row in ROWS if row.status is status]
    by_rank = sorted(rows, key=lambda row: (_rank(row), row.run))
    by_columns = list(rows)
    for column in reversed(CLAIM_COLUMNS[status]):
        by_columns.sort(key=VALUE[column.name], reverse=column.descending)
    # Columns that do not order a status leave ties.
    assert [(_rank(row), row.run) for row in by_rank] == [(_rank(row), row.run) for row in by_columns]
    assert [(row.key, row.run) for row in by_rank] == [(row.key, row.run) for row in by_columns]


def test_statuses_follow_in_the_order_in_which_a_query_names_them() -> None:
    statuses = claim_statuses(closed_last=True)
    found = in_order([row for row in ROWS if row.status in statuses], Query("p", None, statuses, due=True))
    assert list(dict.fromkeys(row.status for row in found)) == list(statuses)


def test_a_query_without_statuses_returns_what_can_be_claimed_first() -> None:
    found = select(ROWS, Query("p", None, due=True), now=9.0)
    assert list(dict.fromkeys(row.status for row in found)) == list(ALL_STATUSES)
    assert len(found) == len(ROWS)


def test_of_unassigned_leases_the_highest_priority_comes_first_whatever_it_is_due_since() -> None:
    late = Lease("p", "late", ownership=Ownership(due_at=5.0), order=Order(priority=1, ordinal=9))
    early = Lease("p", "early", ownership=Ownership(due_at=1.0), order=Order(priority=0, ordinal=1))
    assert sorted([early, late], key=by_claim(claim_statuses())) == [late, early]


def test_other_leases_come_by_the_time_since_which_they_are_due() -> None:
    late = Lease("p", "late", ownership=Ownership(Status.CLOSED, due_at=5.0), order=Order(priority=1))
    early = Lease("p", "early", ownership=Ownership(Status.CLOSED, due_at=1.0))
    assert sorted([late, early], key=by_claim(claim_statuses())) == [early, late]


def _rank(row: Lease) -> tuple[float | int | str, ...]:
    return claim_rank(row.status, row.ownership.due_at, row.order.priority, row.order.ordinal, row.key)
