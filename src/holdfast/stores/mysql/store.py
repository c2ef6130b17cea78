"""The store in MariaDB and MySQL.

Every write is one transaction in READ COMMITTED: in the default isolation a locking scan also locks the gaps between
rows, where others then cannot insert, and a plain SELECT returns outdated rows. Whatever fails before the COMMIT was
not applied, because all of it is rolled back; only the outcome of a COMMIT without a response is unknown. Rows are
checked by `WHERE version = …`, never by what was read before. The store's clock is the server's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any, TypeVar

import pymysql
from pymysql.connections import Connection
from pymysql.cursors import Cursor

from holdfast.errors import AnswerLost
from holdfast.flow.run_views import HasRunViews, ViewedRuns
from holdfast.leases.codec import take_stored
from holdfast.leases.columns import Columns, OutlineRow
from holdfast.leases.lease import Key, Lease, Status
from holdfast.leases.query import Query
from holdfast.leases.store import ClaimingStore, ClaimRequest, Outcome, Snapshot, Swap
from holdfast.leases.sums import PartitionSum, SumsRows
from holdfast.stores import _sql
from holdfast.stores.mysql import MysqlConfig
from holdfast.stores.mysql.connection import (
    CLASHES,
    DUPLICATE,
    READ_ONLY,
    TRIES,
    close,
    code_of,
    connections,
    in_words,
    largest_body,
    roll_back,
    server_name,
)
from holdfast.stores.mysql.tables import BY_DUE, BY_RANK, lease_table, prepare_tables
from holdfast.stores.mysql.views import create_views, remove_views

T = TypeVar("T")

CLOCK = "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) / 1e6"

# Each row for itself by version too, although it is locked: a claim that lands twice must not bring an old row back.
# The version comes last, because MySQL judges each condition by what was assigned before it.
_BODY_COLUMNS = ", ".join(f"\"b_{at}\" BIGINT PATH '$.{name}'" for at, name in enumerate(_sql.SUMMED))
_BODY = f"""JSON_TABLE(IF(JSON_VALID("body"), "body", '{{}}'), '$'
    COLUMNS ({_BODY_COLUMNS}, "b_session" VARCHAR(1000) PATH '$.done_by')) AS b"""
_SUMS = _sql.sums_text(
    lambda name: f'"b_{_sql.SUMMED.index(name)}"' if name in _sql.SUMMED else '"b_session"', f", {_BODY}"
)
_CLAIM_MANY = f"{_sql.INSERT_NEW} ON DUPLICATE KEY UPDATE " + ", ".join(
    f'"{name}" = IF("version" = VALUES("version") - 1, VALUES("{name}"), "{name}")'
    for name in ("status", "owner", "token", "due_at", "body", "version")
)


class MysqlStore(ClaimingStore, SumsRows, HasRunViews):
    """Rows in a table of a MariaDB or MySQL database. Opens a connection per thread that calls at the same time."""

    def __init__(self, config: MysqlConfig, clock: str = CLOCK) -> None:
        """`clock` is SQL for the time in seconds; tests replace it."""
        self._config = config
        self._location = server_name(config)
        self._clock = clock
        self._table = lease_table(config)
        self._connections = connections(config)
        self._prepared = False

    def open(self) -> None:
        """Connect; create or migrate the tables, unless the settings forbid it."""
        self._read(lambda _: None)

    def close(self) -> None:
        self._connections.close()
        self._prepared = False

    def now(self) -> float:
        return self._read(self._time)

    # --- rows --------------------------------------------------------------------------------------------------

    def add(self, leases: Sequence[Lease]) -> list[Outcome]:
        rows = [_sql.row_of(lease, self.max_body_bytes) for lease in leases]
        return self._outcomes(lambda cursor: self._added(cursor, rows), len(rows))

    def get(self, keys: Sequence[Key]) -> list[Lease | None]:
        found = self._read(lambda cursor: self._rows_of(cursor, keys, _sql.SELECT)) if keys else []
        rows = {row[:3]: row for row in found}
        return [_sql.lease_of(rows[key]) if key in rows else None for key in keys]

    def find(self, query: Query) -> list[Lease]:
        def work(cursor: Cursor) -> list[_sql.Row]:
            now = self._time(cursor) if query.due or query.not_due else 0.0
            return self._rows(cursor, _sql.combined(_sql.searches(query, now)))

        return [_sql.lease_of(row) for row in _sql.in_order(self._read(work), query)]

    def outline(self, pipeline: str, run: str | None = "") -> list[OutlineRow]:
        rows = self._read(lambda cursor: self._rows(cursor, _sql.outline_search(pipeline, run)))
        return list(map(OutlineRow._make, rows))

    def snapshot(self, pipeline: str, sessions: str, run: str = "") -> Snapshot:
        rows = self._read(lambda cursor: self._rows(cursor, _sql.parts_of_snapshot(pipeline, sessions, run)))
        nodes, leases = _sql.snapshot_of(rows, pipeline, sessions, run)
        return Snapshot(tuple(map(_sql.lease_of, nodes)), tuple(map(_sql.lease_of, leases)), consistent=True)

    def swap(self, swaps: Sequence[Swap]) -> list[Outcome]:
        rows = [_sql.row_of(swap.lease, self.max_body_bytes) for swap in swaps]
        updates = [_sql.update_of(row, swap.version) for row, swap in zip(rows, swaps, strict=True)]

        def work(cursor: Cursor) -> list[Outcome]:
            return _in_order_of_key(
                [swap.lease.id for swap in swaps],
                lambda index: self._met(cursor, _sql.UPDATE_ONE, updates[index]),
            )

        return self._outcomes(work, len(swaps))

    def remove(self, leases: Sequence[Lease]) -> list[Outcome]:
        def work(cursor: Cursor) -> list[Outcome]:
            return _in_order_of_key([lease.id for lease in leases], lambda index: self._removed(cursor, leases[index]))

        return self._outcomes(work, len(leases))

    def count(self, pipeline: str, run: str = "") -> Mapping[Status, int]:
        rows = self._read(lambda cursor: self._rows(cursor, _sql.Statement(_sql.COUNT, (pipeline, run))))
        return {Status(status): number for status, number in rows}

    def sums(self, pipeline: str, run: str) -> list[PartitionSum]:
        rows = self._read(lambda cursor: self._rows(cursor, _sql.Statement(_SUMS, (pipeline, run))))
        return [_sql.sum_of(row) for row in rows]

    def create_run_views(self, runs: ViewedRuns) -> None:
        self._read(lambda cursor: create_views(cursor, self._table, runs))

    def remove_run_views(self) -> None:
        self._read(remove_views)

    def claim(self, request: ClaimRequest) -> list[Lease]:
        return self._write(lambda cursor: self._claimed(cursor, request)) if request.limit > 0 else []

    # --- inside of a transaction -------------------------------------------------------------------------------

    def _added(self, cursor: Cursor, rows: Sequence[_sql.Row]) -> list[Outcome]:
        # INSERT IGNORE would swallow other errors too, and with FOUND_ROWS no count tells an insert from a duplicate.
        keys = [Key(*row[:3]) for row in rows]
        there = {Key(*row) for row in self._rows_of(cursor, keys, _sql.SELECT_KEY)}
        new = {key: row for key, row in zip(reversed(keys), reversed(rows), strict=True) if key not in there}
        text = _sql.for_server(_sql.INSERT_NEW, self._table)
        cursor.executemany(text, [_bound(new[key]) for key in sorted(new)])
        return [Outcome.OK if new.pop(key, None) else Outcome.CONFLICT for key in keys]

    def _removed(self, cursor: Cursor, lease: Lease) -> Outcome:
        if self._met(cursor, _sql.DELETE_ONE, (*lease.id, lease.version)) is Outcome.OK:
            return Outcome.OK
        return Outcome.CONFLICT if self._rows_of(cursor, [lease.id], _sql.SELECT_KEY) else Outcome.OK

    def _claimed(self, cursor: Cursor, request: ClaimRequest) -> list[Lease]:
        rows: list[_sql.Row] = []
        for status in request.order:
            if len(rows) < request.limit:
                rows += self._rows(cursor, self._candidates(status, request, request.limit - len(rows)))
        # The clock is read when the rows are locked, so that waiting does not make it stale.
        now = self._time(cursor) if rows else 0.0
        # It may have been set back meanwhile.
        due = [row for row in rows if row[8] <= now]
        taken = [take_stored(Columns(*row[:-1]), row[-1], request, now) for row in due]
        changed = [(*each.row, each.body) for each in taken if each.lease.unreadable is None]
        # They are locked, so that each of them is there and has the version that was read.
        cursor.executemany(_sql.for_server(_CLAIM_MANY, self._table), [_bound(row) for row in changed])
        return [each.lease for each in taken]

    def _candidates(self, status: Status, request: ClaimRequest, limit: int) -> _sql.Statement:
        unassigned = status is Status.UNASSIGNED
        index, order = (BY_RANK, '"rank", "ordinal", "key"') if unassigned else (BY_DUE, '"due_at", "key"')
        text = (
            f'{_sql.SELECT} FORCE INDEX ({index}) WHERE "pipeline" = ? AND "run" = ? AND "status" = \'{status.value}\' '
            f'AND "due_at" <= {self._clock} ORDER BY {order} LIMIT ? FOR UPDATE SKIP LOCKED'
        )
        return _sql.Statement(text, (request.pipeline, request.run, limit))

    def _time(self, cursor: Cursor) -> float:
        cursor.execute(f"SELECT {self._clock}")
        row = cursor.fetchone()
        assert row is not None
        return float(row[0])

    def _rows_of(self, cursor: Cursor, keys: Iterable[Key], select: str) -> list[_sql.Row]:
        """Rows of these keys. One statement per pipeline and run, because an index is not used for lists of tuples."""
        rows: list[_sql.Row] = []
        for (pipeline, run), group in groupby(sorted(set(keys)), key=lambda key: key[:2]):
            names = [key.key for key in group]
            marks = ", ".join("?" * len(names))
            text = f'{select} WHERE "pipeline" = ? AND "run" = ? AND "key" IN ({marks})'
            rows += self._rows(cursor, _sql.Statement(text, (pipeline, run, *names)))
        return rows

    def _rows(self, cursor: Cursor, statement: _sql.Statement) -> list[_sql.Row]:
        cursor.execute(_sql.for_server(statement.text, self._table), _bound(statement.parameters))
        return [_unbound(row) for row in cursor.fetchall()]

    def _met(self, cursor: Cursor, text: str, values: Sequence[Any]) -> Outcome:
        met = cursor.execute(_sql.for_server(text, self._table), _bound(values))
        return Outcome.OK if met else Outcome.CONFLICT

    # --- transactions ------------------------------------------------------------------------------------------

    def _outcomes(self, work: Callable[[Cursor], list[Outcome]], rows: int) -> list[Outcome]:
        try:
            return self._write(work) if rows else []
        except AnswerLost:
            return [Outcome.UNKNOWN] * rows

    def _read(self, work: Callable[[Cursor], T]) -> T:
        with self._connections.lent() as db:
            try:
                self._prepare(db)
                return work(db.cursor())
            except pymysql.Error as error:
                raise in_words(self._location, error) from error

    def _write(self, work: Callable[[Cursor], T]) -> T:
        """Run `work` in a transaction; repeat it after a conflict. Raises `AnswerLost` if the commit fails."""
        for tries_left in reversed(range(TRIES)):
            with self._connections.lent() as db:
                try:
                    self._prepare(db)
                    return self._transaction(db, work)
                except pymysql.Error as error:
                    if code_of(error) not in (*CLASHES, DUPLICATE) or not tries_left:
                        raise in_words(self._location, error) from error
        raise AssertionError("unreachable")

    def _transaction(self, db: Connection[Any], work: Callable[[Cursor], T]) -> T:
        try:
            db.begin()
            result = work(db.cursor())
        except BaseException as error:
            roll_back(db)
            if isinstance(error, pymysql.Error) and code_of(error) in READ_ONLY:
                close(db)  # the next connection may find a server that writes now
            raise
        try:
            db.commit()
        except (pymysql.Error, OSError) as error:
            close(db)
            if isinstance(error, pymysql.Error) and code_of(error) in CLASHES:
                raise
            raise AnswerLost(f"{self._location}: no response to a commit: {error}") from error
        return result

    def _prepare(self, db: Connection[Any]) -> None:
        if not self._prepared:
            prepare_tables(db, self._config)
            self.max_body_bytes = min(ClaimingStore.max_body_bytes, largest_body(db, self._location))
            self._prepared = True


def _in_order_of_key(keys: Sequence[Key], write: Callable[[int], Outcome]) -> list[Outcome]:
    """Write the rows in order of key, so that writers do not deadlock; returns the outcomes in the caller's order."""
    outcomes = {index: write(index) for index in sorted(range(len(keys)), key=keys.__getitem__)}
    return [outcomes[index] for index in range(len(keys))]


def _bound(values: Sequence[Any]) -> tuple[Any, ...]:
    """Text as bytes, so that no collation applies."""
    return tuple([value.encode() if isinstance(value, str) else value for value in values])


def _unbound(row: _sql.Row) -> _sql.Row:
    return tuple([value.decode() if isinstance(value, bytes) else value for value in row])
