"""A store in a dictionary, for one process: trying things out, tests, and the simulator.

Its rows are lost when the process ends, so it suits only pipelines that may start from the beginning. Its clock is
injected. Rows are copied as if through JSON, and share no objects with the caller except the spec.
"""

from __future__ import annotations

import heapq
import itertools
import json
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from pydantic import BaseModel, ConfigDict

from holdfast.leases.codec import encode_within
from holdfast.leases.columns import OutlineRow, columns, outline_of
from holdfast.leases.lease import FINISHED, UNFINISHED, Json, Key, Lease, Status, changed
from holdfast.leases.query import Query, Rank, by_claim, by_key, claim_rank
from holdfast.leases.store import ClaimingStore, ClaimRequest, Outcome, Snapshot, Swap
from holdfast.registry import Plugin

BYTES_PER_CHARACTER = 6
"""Maximum number of JSON bytes for one character of a `repr`; see `_fits_surely`."""
BOOKKEEPING_BYTES = 4096
SCALARS = frozenset((str, int, float, bool, type(None)))


class MemoryStore(ClaimingStore):
    """Rows in a dictionary under one lock. No call waits."""

    durable = False
    shared = False

    def __init__(self, now: Callable[[], float] = time.time) -> None:
        self._now = now
        self._tables: dict[tuple[str, str], _Table] = {}
        self._lock = threading.Lock()

    def open(self) -> None:
        """Nothing to do."""

    def close(self) -> None:
        """Nothing to do; the rows stay for as long as the object lives."""

    def now(self) -> float:
        return self._now()

    def add(self, leases: Sequence[Lease]) -> list[Outcome]:
        rows = [self._incoming(lease) for lease in leases]
        with self._lock:
            return [self._add(row) for row in rows]

    def get(self, keys: Sequence[Key]) -> list[Lease | None]:
        with self._lock:
            rows = [self._row(key) for key in keys]
        return [None if row is None else _isolated(row) for row in rows]

    def find(self, query: Query) -> list[Lease]:
        with self._lock:
            rows = self._find(query)
        return [_isolated(row) for row in rows]

    def outline(self, pipeline: str, run: str | None = "") -> list[OutlineRow]:
        with self._lock:
            rows = [row for table in self._tables_of(Query(pipeline, run)) for row in table.rows.values()]
        return sorted(outline_of(columns(row)) for row in rows)

    def snapshot(self, pipeline: str, sessions: str, run: str = "") -> Snapshot:
        with self._lock:
            nodes = self._find(Query(sessions, run=None))
            leases = self._find(Query(pipeline, run, UNFINISHED))
        return Snapshot(tuple(map(_isolated, nodes)), tuple(map(_isolated, leases)), consistent=True)

    def swap(self, swaps: Sequence[Swap]) -> list[Outcome]:
        rows = [self._incoming(swap.lease) for swap in swaps]
        with self._lock:
            return [self._swap(swap.version, row) for swap, row in zip(swaps, rows, strict=True)]

    def remove(self, leases: Sequence[Lease]) -> list[Outcome]:
        with self._lock:
            return [self._remove(lease) for lease in leases]

    def count(self, pipeline: str, run: str = "") -> Mapping[Status, int]:
        with self._lock:
            table = self._tables.get((pipeline, run))
            if table is None:
                return {}
            return {status: len(rows) for status, rows in table.by_status.items() if rows}

    def claim(self, request: ClaimRequest) -> list[Lease]:
        with self._lock:
            table = self._tables.get((request.pipeline, request.run))
            claimed = [] if table is None else table.claim(request, self._now())
        return [_isolated(row) for row in claimed]

    def _incoming(self, lease: Lease) -> Lease:
        row = _isolated(lease)
        if not _fits_surely(row, self.max_body_bytes):
            encode_within(row, self.max_body_bytes)
        return row

    def _row(self, key: Key) -> Lease | None:
        table = self._tables.get((key.pipeline, key.run))
        return None if table is None else table.rows.get(key.key)

    def _add(self, row: Lease) -> Outcome:
        table_key = (row.pipeline, row.run)
        table = self._tables.get(table_key)
        if table is None:
            table = self._tables[table_key] = _Table()
        if row.key in table.rows:
            return Outcome.CONFLICT
        table.put(row)
        return Outcome.OK

    def _swap(self, version: int, row: Lease) -> Outcome:
        table = self._tables.get((row.pipeline, row.run))
        old = None if table is None else table.rows.get(row.key)
        if table is None or old is None or old.ownership.version != version:
            return Outcome.CONFLICT
        table.put(row)
        return Outcome.OK

    def _remove(self, lease: Lease) -> Outcome:
        table = self._tables.get((lease.pipeline, lease.run))
        old = None if table is None else table.rows.get(lease.key)
        if table is None or old is None:
            return Outcome.OK
        if old.ownership.version != lease.ownership.version:
            return Outcome.CONFLICT
        table.drop(old)
        return Outcome.OK

    def _find(self, query: Query) -> list[Lease]:
        now = self._now()
        strangers = None if query.without_owners is None else frozenset(query.without_owners)
        candidates = itertools.chain.from_iterable(table.having(query.statuses) for table in self._tables_of(query))
        rows = (row for row in candidates if _matches(row, query, strangers, now))
        order: Callable[[Lease], Any] = by_claim(query.claim_statuses) if query.due else by_key
        return sorted(rows, key=order) if query.limit is None else heapq.nsmallest(query.limit, rows, key=order)

    def _tables_of(self, query: Query) -> Iterable[_Table]:
        if query.run is None:
            return [table for (pipeline, _), table in self._tables.items() if pipeline == query.pipeline]
        table = self._tables.get((query.pipeline, query.run))
        return () if table is None else (table,)


class _Table:
    """Rows of one pipeline and run: by key, by status, and those that can be due in order of claim."""

    def __init__(self) -> None:
        self.rows: dict[str, Lease] = {}
        self.by_status: dict[Status, dict[str, Lease]] = {status: {} for status in Status}
        self._queues = {status: _Queue(self.by_status[status]) for status in UNFINISHED}

    def put(self, row: Lease) -> None:
        key, status = row.key, row.ownership.status
        old = self.rows.get(key)
        if old is not None and old.ownership.status is not status:
            del self.by_status[old.ownership.status][key]
        self.rows[key] = self.by_status[status][key] = row
        if row.ownership.due_at is not None and status not in FINISHED:
            self._queues[status].push(row)

    def drop(self, row: Lease) -> None:
        del self.rows[row.key]
        del self.by_status[row.ownership.status][row.key]

    def having(self, statuses: tuple[Status, ...]) -> Iterator[Lease]:
        if not statuses:
            return iter(self.rows.values())
        return itertools.chain.from_iterable(self.by_status[status].values() for status in dict.fromkeys(statuses))

    def claim(self, request: ClaimRequest, now: float) -> list[Lease]:
        claimed: list[Lease] = []
        for status in request.order:
            for row in self._queues[status].take(request.limit - len(claimed), now):
                claimed.append(row if row.unreadable is not None else request.take(row, now))
                self.put(claimed[-1])
        return claimed


class _Queue:
    """Rows of one status in order of claim. Outdated entries of changed rows are skipped."""

    def __init__(self, rows: dict[str, Lease]) -> None:
        self._rows = rows
        self._entries: list[tuple[Rank, int, Lease]] = []
        self._serial = itertools.count()

    def push(self, row: Lease) -> None:
        heapq.heappush(self._entries, (_rank(row), next(self._serial), row))
        if len(self._entries) > 2 * len(self._rows) + 64:
            self._entries = [entry for entry in self._entries if self._is_current(entry[2])]
            heapq.heapify(self._entries)

    def take(self, limit: int, now: float) -> list[Lease]:
        """Remove up to `limit` due rows from the queue; a write of a row puts it back."""
        taken: list[Lease] = []
        early = []
        while self._entries and len(taken) < limit:
            entry = heapq.heappop(self._entries)
            row, due_at = entry[2], entry[2].ownership.due_at
            if not self._is_current(row) or due_at is None:
                continue
            if due_at <= now:
                taken.append(row)
                continue
            early.append(entry)
            if row.ownership.status is not Status.UNASSIGNED:
                break  # the others are ranked by the time at which they are due
        for entry in early:
            heapq.heappush(self._entries, entry)
        return taken

    def _is_current(self, row: Lease) -> bool:
        return self._rows.get(row.key) is row


def _rank(row: Lease) -> Rank:
    owned, order = row.ownership, row.order
    return claim_rank(owned.status, owned.due_at, order.priority, order.ordinal, row.key)


def _matches(row: Lease, query: Query, strangers: frozenset[str] | None, now: float) -> bool:
    owned = row.ownership
    is_due = owned.due_at is not None and owned.due_at <= now
    return (
        not (query.due and not is_due)
        and not (query.not_due and is_due)
        and (query.owner is None or owned.owner == query.owner)
        and (strangers is None or (owned.owner is not None and owned.owner not in strangers))
        and (query.group is None or row.group == query.group)
        and (query.after_key is None or row.key > query.after_key)
    )


def _isolated(lease: Lease) -> Lease:
    """The lease with a copy of its JSON, so that later changes of the caller's objects do not affect the row."""
    progress, commit = lease.progress, lease.commit
    if type(progress.position) not in SCALARS or type(progress.state) not in SCALARS:
        position, state = _copied(progress.position), _copied(progress.state)
        progress = replace(progress, position=position, state=state)
    if commit.receipts is not None:
        receipts = _copied(dict(commit.receipts))
        commit = changed(commit, receipts=receipts)
    if progress is lease.progress and commit is lease.commit:
        return lease
    return Lease(
        lease.pipeline,
        lease.key,
        lease.run,
        lease.group,
        lease.spec,
        lease.ownership,
        lease.order,
        progress,
        commit,
        lease.history,
        lease.unreadable,
        lease.extra,
    )


def _copied(value: Json) -> Json:
    kind = type(value)
    if kind in SCALARS:
        return value
    if kind is dict and all(type(name) is str for name in value):
        return {name: _copied(item) for name, item in value.items()}
    if kind is list or kind is tuple:
        return [_copied(item) for item in value]
    return json.loads(json.dumps(value))


def _fits_surely(row: Lease, max_bytes: int) -> bool:
    """A cheap test without encoding: true only if the body is certainly small enough."""
    progress = row.progress
    shown = repr((row.spec, progress.position, progress.acked, progress.state, row.commit.receipts))
    return type(row.spec) is dict and len(shown) * BYTES_PER_CHARACTER + BOOKKEEPING_BYTES <= max_bytes


class MemoryConfig(BaseModel):
    """The in-memory store has no settings."""

    model_config = ConfigDict(extra="forbid", frozen=True)


PLUGIN = Plugin(
    name="in_memory",
    config=MemoryConfig,
    build=lambda _config: MemoryStore(),
    summary="Leases of a single process, forgotten when it ends.",
)
