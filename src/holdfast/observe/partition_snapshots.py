"""Snapshots of a pipeline's partitions for displays that stay open: only rows whose version has changed are read.

The store is asked for outlines, which are cheap. Of each row a few figures are kept, and sums and shard numbers follow
from them. The first snapshot has sums made by the store, if it can; the rows are read with the following snapshots,
some thousand with each. Reading rows one by one would cost more than it saves in a store that charges for reads: there,
sums are always those of the store.

While nothing changes, a snapshot is the object that the one before was: what is made of it need not be made again.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from threading import Lock
from typing import Any

from holdfast.leases.columns import OutlineRow
from holdfast.leases.lease import Key
from holdfast.leases.store import Store
from holdfast.leases.sums import PartitionSum, sums
from holdfast.observe.partition_figures import PartitionFigures

MOST_READ, MOST_FIRST_READ = 5_000, 20_000
"""Rows that are read for a snapshot; those for the ones at the beginning, until all rows are known."""
_PER_READ = 500

Held = Mapping[str | None, Sequence[tuple[str, int | None]]]
"""Group and number of the partitions that each session holds."""


@dataclass(frozen=True, slots=True, eq=False)
class PartitionSnapshot:
    """All partitions of a pipeline and run at about one moment: one sequence for each column, ordered by key."""

    keys: Sequence[str] = ()
    """The same object as in the snapshot before, if the partitions are the same ones."""
    statuses: Sequence[str] = ()
    """As they are stored, see `OutlineRow`."""
    owners: Sequence[str | None] = ()
    versions: array[int] = field(default_factory=lambda: array("q"))
    sums: Sequence[PartitionSum] = ()

    def followed_by(self, rows: Sequence[OutlineRow]) -> PartitionSnapshot:
        """Return the snapshot of these rows, without sums; this one if they are the same."""
        keys, _, statuses, owners, versions = zip(*rows, strict=True) if rows else ((),) * 5
        found = PartitionSnapshot(
            self.keys if keys == self.keys else keys, _shared(statuses), _shared(owners), array("q", versions)
        )
        same = found.keys is self.keys and found.versions == self.versions
        return self if same and (found.statuses, found.owners) == (self.statuses, self.owners) else found


class PartitionSnapshots:
    """Takes snapshots of one pipeline and run. Threads may share it."""

    def __init__(self, store: Store, pipeline: str, run: str = "") -> None:
        self._store = store
        self._pipeline = pipeline
        self._run = run
        self._figures = PartitionFigures()
        self._latest: PartitionSnapshot | None = None
        self._held: Held | None = None
        self._lock = Lock()
        self.complete = False
        """Whether all rows were known when the last snapshot was taken."""

    def take(self) -> PartitionSnapshot:
        """Return the partitions as they are now. Raises `StoreUnavailable`."""
        with self._lock:
            before, was_complete = self._latest or PartitionSnapshot(), self.complete
            found = before.followed_by(self._store.outline(self._pipeline, self._run))
            read = not self._store.charges_for_reads and self._follow(found)
            unchanged = found is self._latest and (not self.complete or (was_complete and not read))
            if not unchanged:
                self._held = None
                found = replace(found, sums=self._sums())
            self._latest = found
            return found

    def held(self) -> Held | None:
        """Return what each session holds, the same object while nothing changes; None if not all rows are known."""
        with self._lock:
            if self.complete and self._held is None:
                self._held = self._figures.held()
            return self._held if self.complete else None

    def _sums(self) -> Sequence[PartitionSum]:
        return self._figures.sums() if self.complete else sums(self._store, self._pipeline, self._run)

    def _follow(self, found: PartitionSnapshot) -> bool:
        """Read the rows that have changed, some of them if there are many; return whether there were any."""
        self._figures.align(found.keys)
        changed = self._figures.other_than(found.versions)
        few = len(found.keys) <= _PER_READ
        # The first look must not wait for rows.
        most = 0 if self._latest is None else MOST_READ if self.complete else MOST_FIRST_READ
        wanted = changed if few else changed[:most]
        for at in range(0, len(wanted), _PER_READ):
            self._read(found.keys, wanted[at : at + _PER_READ])
        self.complete = few or len(changed) <= most
        return bool(wanted)

    def _read(self, keys: Sequence[str], places: Sequence[int]) -> None:
        rows = self._store.get([Key(self._pipeline, self._run, keys[at]) for at in places])
        for at, row in zip(places, rows, strict=True):
            self._figures.note(at, row)


def _shared(values: Sequence[Any]) -> tuple[Any, ...]:
    """The same values, of which equal ones are one object: a store makes a text anew for each row."""
    return tuple(map({}.setdefault, values, values))
