"""Sums over the partitions of a pipeline or run: by group, status, and the session that works on them.

A store whose server can sum rows has the capability `SumsRows`: one read, whatever the number of partitions. For other
stores all rows are read.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass

from holdfast.leases.lease import Counts, Lease, Status
from holdfast.leases.query import Query
from holdfast.leases.store import Store

PAGE = 1000


@dataclass(frozen=True, slots=True)
class PartitionSum:
    """The sum of the partitions that have this group, status and session."""

    group: str
    status: Status
    session: str | None
    """The session that owns the partitions or has finished them; None if there is none."""
    partitions: int = 0
    expected: int = 0
    """Records that were estimated when the partitions were made."""
    work_units: int = 0
    counts: Counts = Counts()
    """Without the count of dropped records."""


class SumsRows(ABC):
    """A capability of stores: they sum rows themselves."""

    @abstractmethod
    def sums(self, pipeline: str, run: str) -> list[PartitionSum]:
        """The same sums as `summed` returns for these rows, in any order. Raises `StoreUnavailable`."""


def sums(store: Store, pipeline: str, run: str) -> list[PartitionSum]:
    """Sums over all partitions of that pipeline and run. Raises `StoreUnavailable`."""
    if isinstance(store, SumsRows):
        return store.sums(pipeline, run)
    return summed(_rows(store, pipeline, run))


def summed(rows: Iterable[Lease]) -> list[PartitionSum]:
    """Sums over these rows. Rows that cannot be read are counted as partitions."""
    found: dict[tuple[str, Status, str | None], PartitionSum] = {}
    for row in rows:
        at = (row.group, row.status, row.owner or row.history.done_by)
        so_far, order = found.get(at, PartitionSum(*at)), row.order
        counts = row.progress.counts
        found[at] = PartitionSum(
            *at,
            so_far.partitions + 1,
            so_far.expected + (order.estimated_count or 0),
            so_far.work_units + order.work_units,
            so_far.counts + Counts(counts.processed, counts.succeeded, counts.failed, counts.dead),
        )
    return list(found.values())


def _rows(store: Store, pipeline: str, run: str) -> Iterable[Lease]:
    after: str | None = None
    while True:
        page = store.find(Query(pipeline, run, after_key=after, limit=PAGE))
        yield from page
        if len(page) < PAGE:
            return
        after = page[-1].key
