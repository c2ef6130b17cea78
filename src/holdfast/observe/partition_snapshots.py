"""Snapshots of a pipeline's partitions for displays that stay open: only rows whose version has changed are read.

The store is asked for outlines, which are cheap. Of each row a few figures are kept, and sums and shard numbers follow
from them. The first snapshot has sums made by the store, if it can; the rows are read with the following snapshots,
some thousand with each. Reading rows one by one would cost more than it saves in a store that charges for reads: there,
sums are always those of the store.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from threading import Lock
from typing import NamedTuple

from holdfast.leases.columns import OutlineRow
from holdfast.leases.lease import Counts, Key, Lease, Status
from holdfast.leases.store import Store
from holdfast.leases.sums import PartitionSum, sums

MOST_READ, MOST_FIRST_READ = 5_000, 20_000
"""Rows that are read for a snapshot; those for the ones at the beginning, until all rows are known."""
_PER_READ = 500


@dataclass(frozen=True, slots=True)
class PartitionSnapshot:
    """All partitions of a pipeline and run at about one moment."""

    rows: Sequence[OutlineRow]
    """By key."""
    sums: Sequence[PartitionSum]


class _Figures(NamedTuple):
    """What is kept of a row: the sum that it belongs to, and what it adds."""

    version: int
    sum: tuple[str, Status, str | None]
    numbers: tuple[int, ...]
    """Partitions, expected records, work units and counts, in the order of `PartitionSum`."""
    number: int | None


class PartitionSnapshots:
    """Takes snapshots of one pipeline and run. Threads may share it."""

    def __init__(self, store: Store, pipeline: str, run: str = "") -> None:
        self._store = store
        self._pipeline = pipeline
        self._run = run
        self._known: dict[str, _Figures] = {}
        self._sums: dict[tuple[str, Status, str | None], list[int]] = {}
        self._shared: dict[tuple[str, Status, str | None], tuple[str, Status, str | None]] = {}
        self._looked = False
        self._lock = Lock()
        self.complete = False
        """Whether all rows were known when the last snapshot was taken."""

    def take(self) -> PartitionSnapshot:
        """Return the partitions as they are now. Raises `StoreUnavailable`."""
        with self._lock:
            rows = self._store.outline(self._pipeline, self._run)
            if not self._store.charges_for_reads:
                self._follow(rows)
            if not self.complete:
                return PartitionSnapshot(rows, sums(self._store, self._pipeline, self._run))
            return PartitionSnapshot(rows, [_sum(*each) for each in self._sums.items()])

    def held(self) -> Mapping[str | None, Sequence[tuple[str, int | None]]] | None:
        """Return group and number of the partitions that each session holds; None if not all rows are known."""
        found: dict[str | None, list[tuple[str, int | None]]] = defaultdict(list)
        with self._lock:
            for figures in self._known.values():
                group, status, owner = figures.sum
                if status is Status.ASSIGNED:
                    found[owner].append((group, figures.number))
            return found if self.complete else None

    def _follow(self, rows: Sequence[OutlineRow]) -> None:
        """Read the rows that have changed, some of them if there are many, and forget those that are gone."""
        known = self._known
        changed = [row.key for row in rows if row.key not in known or known[row.key].version != row.version]
        if len(rows) != len(known) + sum(key not in known for key in changed):
            for key in known.keys() - {row.key for row in rows}:
                self._count(known.pop(key), -1)
        # The first look must not wait for rows.
        most = 0 if not self._looked else MOST_READ if self.complete else MOST_FIRST_READ
        few, self._looked = len(rows) <= _PER_READ, True
        wanted = iter(changed if few else changed[:most])
        while part := list(islice(wanted, _PER_READ)):
            self._read(part)
        self.complete = few or len(changed) <= most

    def _read(self, keys: Sequence[str]) -> None:
        found = self._store.get([Key(self._pipeline, self._run, key) for key in keys])
        for key, row in zip(keys, found, strict=True):
            if (before := self._known.pop(key, None)) is not None:
                self._count(before, -1)
            if row is not None:
                figures = _figures(row)
                # Equal sums, owners and groups are one object: a hundred thousand rows take about 25 MB.
                self._known[key] = figures._replace(sum=self._shared.setdefault(figures.sum, figures.sum))
                self._count(figures, 1)

    def _count(self, figures: _Figures, sign: int) -> None:
        so_far = self._sums.setdefault(figures.sum, [0] * len(figures.numbers))
        for at, number in enumerate(figures.numbers):
            so_far[at] += sign * number
        if not so_far[0]:  # sessions come and go: what nobody holds any more is forgotten
            del self._sums[figures.sum]
            self._shared.pop(figures.sum, None)


def _figures(row: Lease) -> _Figures:
    order, counts = row.order, row.progress.counts
    numbers = (counts.processed, counts.succeeded, counts.failed, counts.dead)
    return _Figures(
        row.version,
        (row.group, row.status, row.owner or row.history.done_by),
        (1, order.estimated_count or 0, order.work_units, *numbers),
        order.index,
    )


def _sum(at: tuple[str, Status, str | None], numbers: Iterable[int]) -> PartitionSum:
    partitions, expected, units, *counts = numbers
    return PartitionSum(*at, partitions, expected, units, Counts(*counts))
