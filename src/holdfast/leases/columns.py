"""The columns of a row, which are all that is searched or compared, and the outline, which displays read for every row.

A body is ten times as large as the columns and takes ten times as long to decode. Displays read outlines, compare
versions, and read whole rows only where one has changed or somebody looks at it.
"""

from __future__ import annotations

from typing import NamedTuple

from holdfast.leases.lease import Lease


class Columns(NamedTuple):
    """The columns that every store can search by, in the order of its table."""

    pipeline: str
    run: str
    key: str
    group: str
    status: str
    owner: str | None
    token: int
    version: int
    due_at: float | None
    priority: int
    ordinal: int


def columns(lease: Lease) -> Columns:
    """The columns of a lease."""
    owned, order = lease.ownership, lease.order
    return Columns(
        lease.pipeline,
        lease.run,
        lease.key,
        lease.group,
        owned.status.value,
        owned.owner,
        owned.token,
        owned.version,
        owned.due_at,
        order.priority,
        order.ordinal,
    )


class OutlineRow(NamedTuple):
    """The columns of a row that show whether it has changed. Sorts by key, then by run.

    The status is text, as it is stored: a hundred thousand rows are read in less than a fifth of a second, and a node
    of a later version may have written one that this version does not know.
    """

    key: str
    run: str
    status: str
    owner: str | None
    version: int


def outline_of(row: Columns) -> OutlineRow:
    """The outline of a row that has these columns."""
    return OutlineRow(row.key, row.run, row.status, row.owner, row.version)
