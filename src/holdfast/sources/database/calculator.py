"""The calculator: which partitions the rows of an entity are cut into, and in which order they are claimed.

Boundaries are found by walking along the index: the key that comes n rows after the last boundary, and so on. That is
exact for keys of any type and distribution, and reads nothing but the index. Counts decide nothing but sizes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from holdfast.errors import Refused
from holdfast.flow.partition_list import PartitionLimits
from holdfast.flow.tables import Sizing
from holdfast.leases.lease import Json, Lease, Partition
from holdfast.leases.split import Split
from holdfast.sources.database.dialect import Connection
from holdfast.sources.database.keys import to_json
from holdfast.sources.database.table import EntityTable, KeyRange, table_name

SMALLEST, LARGEST = 5_000, 10_000
"""Work units of a partition."""
PARTITIONS_PER_SLOT = 32
SMALLEST_TIMED = 1_000
SHORTEST, LONGEST = 2.0, 10.0
"""Seconds that a partition should take, where the speed of an earlier run is known."""
SMALLEST_SPLIT = 500
"""Rows that must be left of a partition to share them."""
MOST_COUNTED = 200_000
HEADROOM = 0.8
"""The part of the limits of a run that a copy may use: catching up and splitting need partitions too."""


@dataclass(frozen=True)
class Part:
    """A range of one entity's rows, and how many it has."""

    start: Sequence[Any] | None
    end: Sequence[Any] | None
    rows: int


# --- sizes ----------------------------------------------------------------------------------------------------------


def partition_rows(totals: Mapping[str, int], complexity: Mapping[str, float], sizing: Sizing) -> dict[str, int]:
    """By entity, how many rows its partitions have. Raises `Refused` if a given size leads beyond the limits. Pure."""
    limits = sizing.limits
    if sizing.rows is not None:
        return _as_given(totals, sizing.rows, limits)
    units = sum(total * complexity[entity] for entity, total in totals.items())
    share = units / (PARTITIONS_PER_SLOT * max(1, sizing.slots))
    rows = {entity: _rows(share, complexity[entity], sizing.rates.get(entity)) for entity in totals}
    for entity, total in totals.items():
        rows[entity] = max(rows[entity], math.ceil(total / (limits.per_group * HEADROOM)))
    number = sum(total / rows[entity] for entity, total in totals.items())
    growth = max(1.0, number / (limits.in_all * HEADROOM))
    return {entity: math.ceil(each * growth) for entity, each in rows.items()}


def _rows(share: float, complexity: float, rate: float | None) -> int:
    """Rows of a partition, so that each slot gets dozens of partitions; `rate` is that of an earlier run.

    `share` is in rows of an ordinary entity.
    """
    if rate is None:
        return max(1, round(min(max(share, SMALLEST), LARGEST) / complexity))
    # Shorter ones cost more than they are worth, and longer ones leave the last slots alone for long.
    timed = min(max(share / complexity, rate * SHORTEST), rate * LONGEST)
    return round(min(max(timed, SMALLEST_TIMED), LARGEST))


def _as_given(totals: Mapping[str, int], rows: int, limits: PartitionLimits) -> dict[str, int]:
    for entity, total in totals.items():
        if total / rows > limits.per_group:
            raise Refused(
                f"{total} rows of {entity} in partitions of {rows} rows would be more than {limits.per_group} "
                f"partitions; make them of {math.ceil(total / limits.per_group)} rows or more"
            )
    if (number := sum(math.ceil(total / rows) for total in totals.values())) > limits.in_all:
        raise Refused(
            f"partitions of {rows} rows would be {number} partitions, and a run may have {limits.in_all}; "
            f"make them larger"
        )
    return dict.fromkeys(totals, rows)


def estimated_rows(table: EntityTable, connection: Connection) -> int:
    """About how many rows there are: by statistics if there are any, else counted."""
    estimate = None
    if table.config.table is not None:
        estimate = table.dialect.estimated_rows(connection, table_name(table.config))
    if estimate is not None:
        return estimate
    with connection.snapshot():
        ((count,),) = connection.rows(*table.count(KeyRange()))
    return int(count)


# --- boundaries -----------------------------------------------------------------------------------------------------


def parts(table: EntityTable, connection: Connection, rows: int, since: Json = None) -> Iterator[Part]:
    """Ranges of about `rows` rows that cover all rows, also those that are added at either end later.

    With `since`, ranges of the rows that were changed since the mark. Raises `Refused` if a row has NULL in a column of
    the order.
    """
    if any(connection.rows(*statement) for statement in table.without_order(since)):
        names = ", ".join(column.name for column in table.order(since))
        raise Refused(
            f"entity {table.name} has rows with NULL in {names}, which would be missed; exclude them by a query, or "
            "give them a value"
        )
    # Rows of one moment stay together, so that a time series is cut by time.
    depth = 1 if table.config.append_only is not None else None
    start: Sequence[Any] | None = None
    while True:
        wanted = KeyRange(start=start, since=since)
        end = _boundary(table, connection, wanted, rows, depth)
        if end is None:
            break
        yield Part(start, end, rows)
        start = end
    ((left,),) = connection.rows(*table.count(KeyRange(start=start, since=since), limit=2 * rows))
    yield Part(start, None, int(left))


def _boundary(
    table: EntityTable, connection: Connection, wanted: KeyRange, rows: int, depth: int | None
) -> Sequence[Any] | None:
    found = connection.rows(*table.boundary(wanted, rows, depth=depth))
    if found and wanted.start is not None and list(found[0]) == list(wanted.start):
        # More rows than wanted have the same time: the next boundary is the next time.
        found = connection.rows(*table.boundary(replace(wanted, start=None, after=wanted.start), 0, depth=depth))
    return found[0] if found else None


# --- partitions -----------------------------------------------------------------------------------------------------


def partitions(table: EntityTable, found: Sequence[Part], number: int, since: Json = None) -> list[Partition]:
    """The partitions of one entity in one pass, in the order of keys. Pure."""
    config, before, made = table.config, 0, []
    for index, part in enumerate(found):
        spec = {
            "entity": table.name,
            "from": None if part.start is None else to_json(part.start),
            "to": None if part.end is None else to_json(part.end),
            "pass": number,
        }
        made.append(
            Partition(
                key=f"{table.name}/{number}/{index:06d}",
                group=table.name,
                spec=spec if since is None else {**spec, "since": since},
                priority=config.priority,
                work_units=max(1, round(part.rows * config.complexity)),
                range_start=before,
                range_end=before + part.rows,
                estimated_count=part.rows,
                index=index,
            )
        )
        before += part.rows
    return made


def in_claim_order(made: Sequence[Partition]) -> list[Partition]:
    """By priority, then the largest first, so that small ones fill the gaps at the end. Pure."""
    return sorted(made, key=lambda each: (-each.priority, -each.work_units, each.group, each.index or 0))


# --- splits ---------------------------------------------------------------------------------------------------------


def middle_of(table: EntityTable, connection: Connection, rest: KeyRange) -> tuple[Sequence[Any], int, int] | None:
    """The middle of the range, and how many rows are before and after it; None if there are too few to share."""
    ((left,),) = connection.rows(*table.count(rest, limit=MOST_COUNTED))
    if left < SMALLEST_SPLIT:
        return None
    before = int(left) // 2
    found = connection.rows(*table.boundary(rest, before))
    return (found[0], before, int(left) - before) if found else None


def split_at(lease: Lease, middle: Sequence[Any], kept: int, given: int) -> Split:
    """The split of a lease into that many rows to keep, those already read included, and that many to give away.

    Pure.
    """
    boundary, order = to_json(middle), lease.order
    units = order.work_units / max(1, order.estimated_count or 1)
    start = (order.range_start if isinstance(order.range_start, int) else 0) + kept
    child = Partition(
        key="",
        group=lease.group,
        spec={**lease.spec, "from": boundary},
        priority=order.priority,
        work_units=max(1, round(given * units)),
        range_start=start,
        range_end=start + given,
        estimated_count=given,
        index=order.index,
    )
    return Split({**lease.spec, "to": boundary}, kept, [child])
