"""Maps: the state of every partition of a pipeline as one byte, numbered, so that viewers get only what has changed."""

from __future__ import annotations

import time
from collections import OrderedDict
from dataclasses import dataclass, field
from threading import Lock

from holdfast.leases.lease import Status
from holdfast.leases.query import Query
from holdfast.leases.store import Store
from holdfast.observe.partition_snapshots import PartitionSnapshot
from holdfast.web.dashboard import Dashboard
from holdfast.web.readings import Reading, Readings
from holdfast.web.snapshots import MOST

STATES = (Status.UNASSIGNED, Status.ASSIGNED, Status.CLOSED, Status.COMPLETED, Status.FAILED)
"""The byte of a partition is the index of its status."""
SILENT = len(STATES)
"""The byte of a partition whose owner has sent no heartbeat in time."""
MOST_CHANGES = 5000
"""With more changes than that, viewers fetch the whole map."""
_BYTES = {status.value: index for index, status in enumerate(STATES)}
_FAILED, _HELD = STATES.index(Status.FAILED), Status.ASSIGNED.value


@dataclass(frozen=True)
class Map:
    """The states of all partitions in the order of their keys, and what has changed since the map before."""

    number: int = 0
    cells: bytes = b""
    changes: tuple[tuple[int, int], ...] | None = field(default=None, repr=False)
    """Index and new state; None if the partitions are others, so that indexes mean something else."""

    def followed_by(self, cells: bytes, *, same_keys: bool) -> Map:
        """Return the map that has these cells; this one if nothing has changed."""
        if same_keys and cells == self.cells:
            return self
        if not same_keys:
            return Map(self.number + 1, cells)
        changes = tuple((at, new) for at, (old, new) in enumerate(zip(self.cells, cells, strict=True)) if old != new)
        return Map(self.number + 1, cells, changes if len(changes) <= MOST_CHANGES else None)


@dataclass(frozen=True)
class _RowsMap:
    """A map, and what it was made of."""

    map: Map
    rows: PartitionSnapshot
    alive: frozenset[str]


class Maps:
    """The latest maps by pipeline and run: each is read once for all viewers, and made anew when something changes."""

    def __init__(self, dashboard: Dashboard, readings: Readings) -> None:
        self._dashboard = dashboard
        self._readings = readings
        self._latest: OrderedDict[tuple[str, str], _RowsMap] = OrderedDict()
        self._lock = Lock()

    async def get(self, pipeline: str, run: str = "") -> tuple[Map, Reading]:
        """Return the map of a pipeline, and how it was read. Raises as `Readings.get` does, and `NotFound`."""
        identifier = self._dashboard.identifier(pipeline)
        reading = await self._readings.get(("map", pipeline, run), lambda: self._read(identifier, run))
        found: Map = reading.value
        return found, reading

    def _read(self, identifier: str, run: str) -> Map:
        """Runs in a thread; `Readings` ensures that there is one read at a time for each map."""
        alive = _alive(self._dashboard.store, self._dashboard.fleet)
        rows = self._dashboard.snapshots.get(identifier, run)
        made = _following(self._latest.get((identifier, run)), rows, alive)
        with self._lock:
            self._latest[identifier, run] = made
            self._latest.move_to_end((identifier, run))
            while len(self._latest) > MOST:
                self._latest.popitem(last=False)
        return made.map


def _following(before: _RowsMap | None, rows: PartitionSnapshot, alive: frozenset[str]) -> _RowsMap:
    if before is None:
        # Numbers begin with the time: those of another process mean other maps, and are never repeated.
        return _RowsMap(Map(int(time.time() * 1000), _cells(rows, alive)), rows, alive)
    if before.rows is rows and before.alive == alive:
        return before
    found = before.map.followed_by(_cells(rows, alive), same_keys=before.rows.keys is rows.keys)
    return _RowsMap(found, rows, alive)


def _cells(rows: PartitionSnapshot, alive: frozenset[str]) -> bytes:
    known: dict[tuple[str, str | None], int] = {}
    for status, owner in {*zip(rows.statuses, rows.owners, strict=True)}:
        known[status, owner] = SILENT if status == _HELD and owner not in alive else _BYTES.get(status, _FAILED)
    return bytes(map(known.__getitem__, zip(rows.statuses, rows.owners, strict=True)))


def _alive(store: Store, fleet: str) -> frozenset[str]:
    """The sessions whose heartbeat is recent enough, and sessions without a deadline."""
    now = store.now()
    rows = store.find(Query(fleet, statuses=(Status.ASSIGNED,)))
    return frozenset(row.key for row in rows if row.ownership.due_at is None or row.ownership.due_at > now)
