"""The store in PostgreSQL.

Every write is one statement outside of a transaction, so that its response is the response to the commit: an error from
the server means that nothing was applied; without a response the outcome is unknown. Reads of several parts are one
statement too, and so are consistent. The store's clock is the server's.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any, TypeVar

import psycopg

from holdfast.errors import AnswerLost, StoreError, StoreUnavailable
from holdfast.flow.run_views import HasRunViews, ViewedRuns
from holdfast.leases.columns import OutlineRow
from holdfast.leases.lease import Key, Lease, Status
from holdfast.leases.query import Query
from holdfast.leases.store import ClaimingStore, ClaimRequest, Outcome, Snapshot, Swap
from holdfast.leases.sums import PartitionSum, SumsRows, summed
from holdfast.stores import _sql
from holdfast.stores.postgresql import PostgresqlConfig
from holdfast.stores.postgresql.claims import ClaimTexts, Head, claim
from holdfast.stores.postgresql.connection import (
    CLASHES,
    READ_ONLY,
    PatientConnection,
    connections,
    server_name,
    translated,
)
from holdfast.stores.postgresql.statements import Texts, arrays, lease_of, written
from holdfast.stores.postgresql.tables import lease_table, prepare_tables, require_unicode, seal_of
from holdfast.stores.postgresql.views import create_views, remove_views

T = TypeVar("T")

CLOCK = "date_part('epoch', clock_timestamp())"
STATEMENT_CLOCK = "date_part('epoch', statement_timestamp())"
TRIES = 10
_UNSEALED = f"""WHERE "seal" IS DISTINCT FROM {seal_of('"body"')} AND"""


class PostgresqlStore(ClaimingStore, SumsRows, HasRunViews):
    """Rows in a table of a PostgreSQL database. Opens a connection per thread that calls at the same time."""

    def __init__(self, config: PostgresqlConfig, clock: str | None = None) -> None:
        """`clock` is SQL for the time in seconds, instead of the server's clock."""
        self._config = config
        self._location = server_name(config)
        self._clock = clock or CLOCK
        self._texts = Texts(lease_table(config))
        self._claims = ClaimTexts(self._texts.table, self._clock, clock or STATEMENT_CLOCK)
        self._look = cache(self._claims.look)
        self._connections = connections(config)
        self._heads: defaultdict[tuple[str, str], Head] = defaultdict(Head)
        self._prepared = False

    def open(self) -> None:
        """Connect; create or migrate the tables, unless the settings forbid it."""
        with self._connections.lent() as db:
            self._prepare(db)

    def close(self) -> None:
        self._connections.close()
        self._prepared = False

    def now(self) -> float:
        return float(self._read(f"SELECT {self._clock}", ())[0][0])

    # --- rows --------------------------------------------------------------------------------------------------

    def add(self, leases: Sequence[Lease]) -> list[Outcome]:
        rows = [written(lease, self.max_body_bytes) for lease in leases]
        return self._write_each(self._texts.insert, leases, rows)

    def get(self, keys: Sequence[Key]) -> list[Lease | None]:
        if not keys:
            return []
        rows = self._read(self._texts.get, arrays(sorted(set(keys))))
        found = {Key(*row[:3]): row for row in rows}
        return [lease_of(found[key]) if key in found else None for key in keys]

    def find(self, query: Query) -> list[Lease]:
        now = self.now() if query.due or query.not_due else 0.0
        rows = self._search(_sql.combined(_sql.searches(query, now)))
        return [lease_of(row) for row in _sql.in_order(rows, query)]

    def outline(self, pipeline: str, run: str | None = "") -> list[OutlineRow]:
        return list(map(OutlineRow._make, self._search(_sql.outline_search(pipeline, run))))

    def snapshot(self, pipeline: str, sessions: str, run: str = "") -> Snapshot:
        rows = self._search(_sql.parts_of_snapshot(pipeline, sessions, run))
        nodes, leases = _sql.snapshot_of(rows, pipeline, sessions, run)
        return Snapshot(tuple(map(lease_of, nodes)), tuple(map(lease_of, leases)), consistent=True)

    def swap(self, swaps: Sequence[Swap]) -> list[Outcome]:
        leases = [swap.lease for swap in swaps]
        rows = [(*written(swap.lease, self.max_body_bytes), swap.version) for swap in swaps]
        return self._write_each(self._texts.update, leases, rows)

    def remove(self, leases: Sequence[Lease]) -> list[Outcome]:
        outcomes = self._write_each(self._texts.delete, leases, [(*lease.id, lease.version) for lease in leases])
        left = [lease.id for lease, outcome in zip(leases, outcomes, strict=True) if outcome is Outcome.CONFLICT]
        try:
            there = {row.id for row in self.get(left) if row is not None}
        except StoreUnavailable:
            there = set()
            outcomes = [Outcome.UNKNOWN if outcome is Outcome.CONFLICT else outcome for outcome in outcomes]
        return [
            Outcome.OK if outcome is Outcome.CONFLICT and lease.id not in there else outcome
            for lease, outcome in zip(leases, outcomes, strict=True)
        ]

    def count(self, pipeline: str, run: str = "") -> Mapping[Status, int]:
        rows = self._read(self._texts.count, {"pipeline": pipeline, "run": run})
        return {Status(status): number for status, number in rows if number}

    def sums(self, pipeline: str, run: str) -> list[PartitionSum]:
        try:
            rows = self._read(self._texts.sums, {"pipeline": pipeline, "run": run})
        except StoreUnavailable:
            raise
        except StoreError:
            return summed(self.find(Query(pipeline, run)))  # a body has text that PostgreSQL cannot have
        return [_sql.sum_of(row) for row in rows]

    def create_run_views(self, runs: ViewedRuns) -> None:
        self._run(lambda db: create_views(db, self._texts.table, runs), writing=True)

    def remove_run_views(self) -> None:
        self._run(remove_views, writing=True)

    # --- claims ------------------------------------------------------------------------------------------------

    def claim(self, request: ClaimRequest) -> list[Lease]:
        if request.limit <= 0:
            return []
        head = self._heads[request.pipeline, request.run]
        started = time.monotonic()
        after = head.position(started)
        if after is not None:
            leases, last = self._run(lambda db: claim(db, self._claims.head, request, after), writing=True)
            head.went_on(len(leases), last)
            if leases:
                return leases
        leases, last = self._run(lambda db: claim(db, self._look(request.order), request, None), writing=True)
        head.looked(len(leases), last, started, time.monotonic())
        if len(leases) < request.limit:
            leases += self._claim_unsealed(replace(request, limit=request.limit - len(leases)), bool(leases))
        return leases

    def _claim_unsealed(self, request: ClaimRequest, some_taken: bool) -> list[Lease]:
        """Claim rows whose body was not written by holdfast; unreadable ones are returned without taking them."""
        try:
            now = self.now()
            query = Query(request.pipeline, request.run, request.order, due=True, limit=request.limit)
            unsealed = [
                search._replace(text=search.text.replace("WHERE", _UNSEALED, 1)) for search in _sql.searches(query, now)
            ]
            rows = [lease_of(row) for row in _sql.in_order(self._search(_sql.combined(unsealed)), query)]
            readable = [row for row in rows if row.unreadable is None]
            taken = [request.take(row, now) for row in readable]
            outcomes = self.swap([Swap(row.version, lease) for row, lease in zip(readable, taken, strict=True)])
        except StoreUnavailable:
            if some_taken:
                return []  # the next claim finds them
            raise
        if Outcome.UNKNOWN in outcomes:
            raise AnswerLost(f"{self._location}: no response to a claim")
        won = {lease.key: lease for lease, outcome in zip(taken, outcomes, strict=True) if outcome is Outcome.OK}
        return [won.get(row.key, row) for row in rows if row.unreadable is not None or row.key in won]

    # --- statements --------------------------------------------------------------------------------------------

    def _search(self, statement: _sql.Statement) -> list[_sql.Row]:
        text = _sql.for_server(statement.text, self._texts.table, self._texts.select)
        return self._read(text, statement.parameters)

    def _read(self, text: str, parameters: Any) -> list[_sql.Row]:
        return self._run(lambda db: db.execute(text, parameters, binary=True).fetchall(), writing=False)

    def _write_each(self, text: str, leases: Sequence[Lease], rows: Sequence[_sql.Row]) -> list[Outcome]:
        """Send all rows. The outcome is OK for rows whose keys are returned."""
        keys = [lease.id for lease in leases]
        outcomes = [Outcome.CONFLICT] * len(keys)
        pending = set(range(len(keys)))
        for number, indexes in enumerate(_sql.rounds(keys)):
            values = arrays([rows[index] for index in indexes])
            try:
                met = set(self._run(lambda db: db.execute(text, values).fetchall(), writing=True))  # noqa: B023
            except StoreUnavailable as away:
                if number == 0 and not isinstance(away, AnswerLost):
                    raise
                break
            for index in indexes:
                outcomes[index] = Outcome.OK if keys[index] in met else Outcome.CONFLICT
            pending.difference_update(indexes)
        for index in pending:
            outcomes[index] = Outcome.UNKNOWN
        for lease in leases:
            self._heads[lease.pipeline, lease.run].written(lease)
        return outcomes

    def _run(self, work: Callable[[PatientConnection], T], *, writing: bool) -> T:
        """Run work of one statement on a separate connection; repeat it after a deadlock."""
        tries = 0
        while True:
            db = self._connections.take()
            try:
                self._prepare(db)
                return work(db)
            except psycopg.Error as error:
                tries += 1
                if error.sqlstate == READ_ONLY:
                    db.close()  # the next connection finds the server that writes now
                if error.sqlstate not in CLASHES or tries == TRIES:
                    raise translated(self._location, error, writing=writing) from error
            finally:
                self._connections.give_back(db)

    def _prepare(self, db: PatientConnection) -> None:
        if self._prepared:
            return
        try:
            require_unicode(db, self._config)
            prepare_tables(db, self._config)
        except psycopg.Error as error:
            raise translated(self._location, error, writing=False) from error
        self._prepared = True
