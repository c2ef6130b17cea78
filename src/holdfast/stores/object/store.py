"""Leases in a bucket or a folder: one object for each, changed by conditional writes. No database is needed.

A swap compares versions, and writes on the condition that the object is still the one whose version was compared. After
a write that was refused, or repeated by a driver, the object is read back: the nonce in it shows which write was
applied. Every search lists all objects, finished leases included: purge them, and use a database for more than ten
thousand.
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from holdfast.errors import AnswerLost, StoreUnavailable
from holdfast.leases.columns import OutlineRow, outline_of
from holdfast.leases.lease import UNFINISHED, Key, Lease, Status
from holdfast.leases.query import Query
from holdfast.leases.store import Outcome, Snapshot, Store, Swap
from holdfast.stores.object.marker import open_store
from holdfast.stores.object.objects import Changed, TaggedObjects
from holdfast.stores.object.row_cache import RowCache
from holdfast.stores.object.rows import Stored, folder_of, matching, name_of, stored, tombstone

TRIES = 4
WriteResult: TypeAlias = Outcome | StoreUnavailable


class ObjectStore(Store):
    """Rows as objects. Stores returned by `recent` share the row cache with the store that returned them."""

    has_clock = False

    def __init__(
        self,
        objects: TaggedObjects,
        *,
        skip_table_creation: bool = False,
        now: Callable[[], float] | None = None,
        rows: RowCache | None = None,
        max_age: float = 0.0,
    ) -> None:
        """`now` replaces the clock of the storage."""
        self._objects = objects
        self.charges_for_reads = objects.charges_for_reads
        self._skip_table_creation = skip_table_creation
        self._clock = now or objects.now
        self._now = now
        self._rows = rows or RowCache(objects)
        self._max_age = max_age

    def recent(self, max_age: float) -> ObjectStore:
        return ObjectStore(self._objects, now=self._now, rows=self._rows, max_age=max_age)

    def open(self) -> None:
        """Create the store if it does not exist, unless the settings forbid it, and check that conditional writes work.

        Raises `Refused` where they do not, `SchemaMismatch`, or `StoreUnavailable`.
        """
        open_store(self._objects, may_create=not self._skip_table_creation)

    def close(self) -> None:
        self._objects.close()

    def now(self) -> float:
        return self._clock()

    # --- reading -----------------------------------------------------------------------------------------------

    def get(self, keys: Sequence[Key]) -> list[Lease | None]:
        names = [name_of(key) for key in keys]
        if self._max_age > 0:
            rows = self._rows.recently(names, self._max_age)
        else:
            different = list(dict.fromkeys(names))
            read = dict(zip(different, self._rows.read(different), strict=True))
            rows = [read[name] for name in names]
        return [None if row is None or row.gone else row.lease() for row in rows]

    def find(self, query: Query) -> list[Lease]:
        return [row.lease() for row in self._found(query)]

    def outline(self, pipeline: str, run: str | None = "") -> list[OutlineRow]:
        return [outline_of(stored.row) for stored in self._found(Query(pipeline, run))]

    def snapshot(self, pipeline: str, sessions: str, run: str = "") -> Snapshot:
        nodes = self.find(Query(sessions, run=None))
        return Snapshot(tuple(nodes), tuple(self.find(Query(pipeline, run, UNFINISHED))), consistent=False)

    def count(self, pipeline: str, run: str = "") -> Mapping[Status, int]:
        return Counter(lease.status for lease in self.find(Query(pipeline, run)))

    def _found(self, query: Query) -> list[Stored]:
        rows = self._rows.below(folder_of(query.pipeline, query.run), self._max_age)
        return matching(rows, query, self._clock() if query.due or query.not_due else 0.0)

    # --- writing -----------------------------------------------------------------------------------------------

    def add(self, leases: Sequence[Lease]) -> list[Outcome]:
        rows = [self._stored(lease) for lease in leases]
        return self._each([(name_of(lease.id), self._adding(row)) for lease, row in zip(leases, rows, strict=True)])

    def swap(self, swaps: Sequence[Swap]) -> list[Outcome]:
        rows = [self._stored(swap.lease) for swap in swaps]
        pairs = zip(swaps, rows, strict=True)
        return self._each([(name_of(swap.lease.id), self._swapping(swap.version, row)) for swap, row in pairs])

    def remove(self, leases: Sequence[Lease]) -> list[Outcome]:
        return self._each([(name_of(lease.id), self._removing(lease)) for lease in leases])

    def _stored(self, lease: Lease) -> Stored:
        return stored(lease, uuid.uuid4().hex, self.max_body_bytes)

    def _each(self, writes: Sequence[tuple[str, Callable[[str], Outcome]]]) -> list[Outcome]:
        """Run each write separately; several at a time, unless two write the same row."""

        def write(item: tuple[str, Callable[[str], Outcome]]) -> WriteResult:
            name, do = item
            try:
                return do(name)
            except AnswerLost:
                self._rows.doubt(name)
                return Outcome.UNKNOWN
            except StoreUnavailable as away:
                return away

        distinct = len({name for name, _ in writes}) == len(writes)
        results = self._objects.each(write, writes) if distinct else [write(item) for item in writes]
        return _settled(results)

    def _adding(self, row: Stored) -> Callable[[str], Outcome]:
        def add(name: str) -> Outcome:
            present = None
            for _ in range(TRIES):
                if self._wrote(name, row, present):
                    return Outcome.OK
                present = self._rows.cached(name)
                if present is not None and not present.gone:
                    return Outcome.OK if present.nonce == row.nonce else Outcome.CONFLICT
            raise StoreUnavailable(f"{self._objects.location}{name} is changed by others at every attempt")

        return add

    def _swapping(self, version: int, row: Stored) -> Callable[[str], Outcome]:
        def swap(name: str) -> Outcome:
            present = self._of_version(name, version)
            for _ in range(TRIES):
                if present is None or present.gone or present.row.version != version:
                    return Outcome.CONFLICT
                if self._wrote(name, row, present):
                    return Outcome.OK
                present = self._rows.cached(name)
                if present is not None and present.nonce == row.nonce:
                    return Outcome.OK
            raise StoreUnavailable(f"{self._objects.location}{name} is changed by others at every attempt")

        return swap

    def _removing(self, lease: Lease) -> Callable[[str], Outcome]:
        def remove(name: str) -> Outcome:
            present = self._of_version(name, lease.version)
            if present is None or present.gone:
                return Outcome.OK
            # A delete alone could come late and hit a row that was made anew.
            outcome = self._swapping(lease.version, tombstone(lease, uuid.uuid4().hex))(name)
            left = self._rows.cached(name)
            if outcome is Outcome.OK and left is not None:
                self._objects.delete(name, left.tag)
            return outcome

        return remove

    def _of_version(self, name: str, version: int) -> Stored | None:
        """The cached row if it has that version, else the current one."""
        cached = self._rows.cached(name)
        if cached is not None and cached.row.version == version and not cached.gone:
            return cached
        return self._rows.read([name])[0]

    def _wrote(self, name: str, row: Stored, present: Stored | None) -> bool:
        """Whether the row has replaced the present one; if not, the current row has been read."""
        try:
            tag = self._objects.write(name, row.data(), None if present is None else present.tag)
        except Changed:
            self._read_back(name)
            return False
        self._rows.wrote(name, Stored(row.row, row.body, row.nonce, tag))
        return True

    def _read_back(self, name: str) -> None:
        try:
            self._rows.read([name])
        except StoreUnavailable as away:
            # What refused the write may have been an own earlier try of it.
            raise AnswerLost(str(away)) from away


def _settled(results: Sequence[WriteResult]) -> list[Outcome]:
    """The outcomes, with UNKNOWN for rows that could not be reached; raises if none could be."""
    away = [result for result in results if isinstance(result, StoreUnavailable)]
    if away and len(away) == len(results):
        raise away[0]
    return [Outcome.UNKNOWN if isinstance(result, StoreUnavailable) else result for result in results]
