"""A store in one SQLite file, for any number of processes on one host. Never put it on a network file system.

The store's clock is the host's wall clock: all processes that can open the file share it. It is read after the
write lock has been taken, so that waiting for the lock does not make it stale.

Every write is one `BEGIN IMMEDIATE` transaction. A deferred one that reads first and then writes would fail at once
with `SQLITE_BUSY_SNAPSHOT`, without regard to the busy timeout. WAL with `synchronous=FULL`, because a commit that is
lost in a power cut would let tokens go back.
"""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ConfigDict, Field

from holdfast.config.units import LocalPath
from holdfast.errors import AnswerLost, NotCreatedYet, SchemaMismatch, StoreError, StoreUnavailable
from holdfast.leases.codec import take_stored
from holdfast.leases.columns import Columns, OutlineRow
from holdfast.leases.lease import UNFINISHED, Key, Lease, Status
from holdfast.leases.query import Query
from holdfast.leases.store import ClaimingStore, ClaimRequest, Outcome, Snapshot, Swap
from holdfast.leases.sums import PartitionSum, SumsRows
from holdfast.registry import Plugin
from holdfast.stores import _sql
from holdfast.stores._lock_watchdog import WATCHDOG

T = TypeVar("T")

MIGRATIONS: tuple[tuple[str, ...], ...] = (
    (
        """CREATE TABLE lease (
            "pipeline" TEXT NOT NULL, "run" TEXT NOT NULL, "key" TEXT NOT NULL, "group" TEXT NOT NULL,
            "status" TEXT NOT NULL, "owner" TEXT, "token" INTEGER NOT NULL, "version" INTEGER NOT NULL,
            "due_at" REAL, "priority" INTEGER NOT NULL, "ordinal" INTEGER NOT NULL, "body" TEXT NOT NULL,
            PRIMARY KEY ("pipeline", "run", "key"))""",
        'CREATE INDEX lease_by_status ON lease ("pipeline", "run", "status", "key")',
        # One small index per status that can be claimed: finished rows are in none of them.
        """CREATE INDEX lease_assigned ON lease ("pipeline", "run", "due_at", "key") WHERE "status" = 'ASSIGNED'""",
        """CREATE INDEX lease_closed ON lease ("pipeline", "run", "due_at", "key") WHERE "status" = 'CLOSED'""",
        """CREATE INDEX lease_unassigned ON lease
            ("pipeline", "run", "priority" DESC, "ordinal", "key", "due_at") WHERE "status" = 'UNASSIGNED'""",
    ),
)
"""Migration from each version of the tables to the next."""
SCHEMA_VERSION = len(MIGRATIONS)
OLDEST_USABLE = 1
"""The oldest version of holdfast's schema that can work on tables of this version: changes only ever add."""

_PASSING = frozenset(
    (
        *(sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_NOMEM, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_FULL),
        *(sqlite3.SQLITE_PROTOCOL, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM),
    )
)
"""Errors that may pass with time, including those of the host: a disk that is full, failing or read-only."""

_SUMS = _sql.sums_text(lambda name: f'CASE WHEN json_valid("body") THEN json_extract("body", \'$.{name}\') END')
_CLAIM_ONE = (
    'UPDATE lease SET "status" = ?, "owner" = ?, "token" = ?, "version" = ?, "due_at" = ?, "body" = ? WHERE rowid = ?'
)


class SqliteStore(ClaimingStore, SumsRows):
    """Rows in a SQLite file. One connection under a lock serves all threads of the process."""

    def __init__(
        self,
        path: Path,
        *,
        skip_table_creation: bool = False,
        busy_timeout: float = 5.0,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._path = path
        self._skip_table_creation = skip_table_creation
        self._busy_timeout = busy_timeout
        self._now = now
        self._connection: sqlite3.Connection | None = None
        self._was_open = False
        self._lock = threading.Lock()

    def open(self) -> None:
        """Open the file; create or migrate its tables, unless the settings forbid it."""
        with self._lock, WATCHDOG.holding(self._busy_timeout):
            self._connected()

    def close(self) -> None:
        with self._lock, WATCHDOG.holding(self._busy_timeout):
            self._disconnect()

    def now(self) -> float:
        return self._now()

    def add(self, leases: Sequence[Lease]) -> list[Outcome]:
        rows = [_row_of(lease, self.max_body_bytes) for lease in leases]
        return self._each([(_sql.INSERT, row) for row in rows])

    def get(self, keys: Sequence[Key]) -> list[Lease | None]:
        rows = self._read(lambda db: [db.execute(_sql.SELECT_ONE, key).fetchone() for key in keys])
        return [None if row is None else _lease_of(row) for row in rows]

    def find(self, query: Query) -> list[Lease]:
        rows = self._read(lambda db: _found(db, query, self._now()))
        return [_lease_of(row) for row in rows]

    def outline(self, pipeline: str, run: str | None = "") -> list[OutlineRow]:
        return self._read(lambda db: list(map(OutlineRow._make, db.execute(*_sql.outline_search(pipeline, run)))))

    def snapshot(self, pipeline: str, sessions: str, run: str = "") -> Snapshot:
        nodes, leases = self._read(
            lambda db: (
                _found(db, Query(sessions, run=None), 0.0),
                _found(db, Query(pipeline, run, UNFINISHED), 0.0),
            )
        )
        return Snapshot(tuple(map(_lease_of, nodes)), tuple(map(_lease_of, leases)), consistent=True)

    def swap(self, swaps: Sequence[Swap]) -> list[Outcome]:
        rows = [_row_of(swap.lease, self.max_body_bytes) for swap in swaps]
        updates = [_sql.update_of(row, swap.version) for row, swap in zip(rows, swaps, strict=True)]
        return self._each([(_sql.UPDATE_ONE, update) for update in updates])

    def remove(self, leases: Sequence[Lease]) -> list[Outcome]:
        return self._outcomes(lambda db: [_removed(db, lease) for lease in leases], len(leases))

    def count(self, pipeline: str, run: str = "") -> Mapping[Status, int]:
        rows = self._read(lambda db: db.execute(_sql.COUNT, (pipeline, run)).fetchall())
        return {Status(status): number for status, number in rows}

    def sums(self, pipeline: str, run: str) -> list[PartitionSum]:
        return [_sql.sum_of(row) for row in self._read(lambda db: db.execute(_SUMS, (pipeline, run)).fetchall())]

    def claim(self, request: ClaimRequest) -> list[Lease]:
        return self._write(lambda db: self._claimed(db, request))

    def _claimed(self, db: sqlite3.Connection, request: ClaimRequest) -> list[Lease]:
        now = self._now()
        parameters = (request.pipeline, request.run, now, max(request.limit, 0))
        claimed, changes = [], []
        for rowid, *columns, body in db.execute(_claim_search(request.order), parameters).fetchall():
            taken = take_stored(Columns(*columns), _text(body) if isinstance(body, bytes) else body, request, now)
            claimed.append(taken.lease)
            if taken.lease.unreadable is None:
                changes.append((*taken.row[4:9], taken.body, rowid))
        # Nobody else can write now, so that each row still has the version that was read.
        db.executemany(_CLAIM_ONE, changes)
        return claimed

    def _each(self, statements: Sequence[tuple[str, _sql.Row]]) -> list[Outcome]:
        """Run each statement. The outcome is OK if it changed a row."""

        def work(db: sqlite3.Connection) -> list[Outcome]:
            changed = [db.execute(text, values).rowcount for text, values in statements]
            return [Outcome.OK if count else Outcome.CONFLICT for count in changed]

        return self._outcomes(work, len(statements))

    def _outcomes(self, work: Callable[[sqlite3.Connection], list[Outcome]], rows: int) -> list[Outcome]:
        try:
            return self._write(work)
        except AnswerLost:
            return [Outcome.UNKNOWN] * rows

    # --- transactions ------------------------------------------------------------------------------------------

    def _read(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Run `work` on a consistent snapshot of the table. It must fetch all rows that it selects."""
        with self._lock:
            db = self._connected()
            try:
                db.execute("BEGIN")
                result = _decoding(work, db)
                db.execute("COMMIT")
                return result
            except sqlite3.Error as error:
                raise self._translated(error) from error
            finally:
                self._roll_back(db)

    def _write(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Run `work` while no other process writes, and commit. Raises `AnswerLost` if the commit itself fails."""
        with self._lock, WATCHDOG.holding(self._busy_timeout):
            db = self._connected()
            try:
                db.execute("BEGIN IMMEDIATE")
                result = _decoding(work, db)
            except sqlite3.Error as error:
                self._roll_back(db)
                raise self._translated(error) from error
            except BaseException:
                self._roll_back(db)
                raise
            try:
                db.execute("COMMIT")
            except sqlite3.Error as error:
                self._disconnect()
                raise AnswerLost(f"{self._path}: the commit failed: {error}") from error
            return result

    def _roll_back(self, db: sqlite3.Connection) -> None:
        try:
            if db.in_transaction:
                db.execute("ROLLBACK")
        except sqlite3.Error:
            # Closing the connection ends the transaction too; the next call opens another.
            self._disconnect()

    def _translated(self, error: sqlite3.Error) -> StoreError | StoreUnavailable:
        code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
        if code in _PASSING:
            return StoreUnavailable(f"{self._path}: {error}")
        if code == sqlite3.SQLITE_ERROR:
            return SchemaMismatch(f"{self._path}: its tables are not those of holdfast: {error}")
        return StoreError(f"{self._path}: {error}")

    # --- connection and tables ---------------------------------------------------------------------------------

    def _connected(self) -> sqlite3.Connection:
        if self._connection is None:
            self._require_file()
            try:
                db = sqlite3.connect(
                    self._path, timeout=self._busy_timeout, isolation_level=None, check_same_thread=False
                )
            except sqlite3.Error as error:
                raise self._translated(error) from error
            try:
                self._prepare(db)
            except sqlite3.Error as error:
                db.close()
                raise self._translated(error) from error
            except BaseException:
                db.close()
                raise
            self._connection, self._was_open = db, True
        return self._connection

    def _disconnect(self) -> None:
        if self._connection is not None:
            with suppress(sqlite3.Error):
                self._connection.close()
            self._connection = None

    def _require_file(self) -> None:
        try:
            made, folder = self._path.exists(), self._path.is_dir()
        except OSError as error:
            raise StoreUnavailable(f"{self._path}: {error}") from error
        if self._was_open and not made:
            # A mount that is missing for a while; a new file in its place would know of nothing.
            raise StoreUnavailable(f"{self._path} no longer exists")
        if folder:
            raise StoreError(f"cannot open {self._path}: it is a directory; path must name a file")
        if self._skip_table_creation and not made:
            raise NotCreatedYet(
                f"{self._path} does not exist, and may not be created here; "
                "`holdfast run` creates it, unless skip_table_creation is set"
            )
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StoreError(f"cannot make the folder of {self._path}: {error.strerror}") from error

    def _prepare(self, db: sqlite3.Connection) -> None:
        (mode,) = db.execute("PRAGMA journal_mode = WAL").fetchone()
        if mode != "wal":
            raise StoreError(f"{self._path}: needs a local file in WAL mode, but SQLite returns {mode!r}")
        db.execute("PRAGMA synchronous = FULL")
        if self._is_behind(_tables(db)):
            db.execute("BEGIN IMMEDIATE")
            # Read again under the lock: another process may have made the tables in the meantime.
            found = _tables(db)
            if self._is_behind(found):
                _migrate(db, found)
            db.execute("COMMIT")

    def _is_behind(self, found: _sql.Tables) -> bool:
        return _sql.is_behind(str(self._path), found, SCHEMA_VERSION, may_change=not self._skip_table_creation)


def _decoding(work: Callable[[sqlite3.Connection], T], db: sqlite3.Connection) -> T:
    """The result of `work`, also where a row holds text that is not UTF-8: the driver alone would refuse all rows.

    `work` must raise that error before it changes anything. From then on text is decoded here, which takes longer.
    """
    try:
        return work(db)
    except sqlite3.OperationalError as error:
        if not str(error).startswith("Could not decode"):
            raise
    db.text_factory = _text
    return work(db)


def _text(stored: bytes) -> str:
    return stored.decode("utf-8", "surrogateescape")


def _row_of(lease: Lease, max_body_bytes: int) -> _sql.Row:
    """The row of a lease. A body that is not UTF-8 is written back as the same bytes."""
    *columns, body = _sql.row_of(lease, max_body_bytes)
    return (*columns, body if lease.unreadable is None else _stored_body(body))


def _stored_body(body: str) -> str | bytes:
    try:
        body.encode()
    except UnicodeEncodeError:
        return body.encode("utf-8", "surrogateescape")
    return body


def _lease_of(row: _sql.Row) -> Lease:
    *columns, body = row
    return _sql.lease_of((*columns, _text(body) if isinstance(body, bytes) else body))


def _migrate(db: sqlite3.Connection, found: _sql.Tables) -> None:
    for statement in (each for step in MIGRATIONS[found.version :] for each in step):
        db.execute(statement)
    db.execute("DROP TABLE IF EXISTS schema_version")
    db.execute("CREATE TABLE schema_version (version INTEGER NOT NULL, oldest INTEGER NOT NULL)")
    db.execute("INSERT INTO schema_version VALUES (?, ?)", (SCHEMA_VERSION, OLDEST_USABLE))


@cache
def _claim_search(order: tuple[Status, ...]) -> str:
    """One statement for all claimable rows: SQLite runs a compound SELECT from left to right, up to its limit."""
    select = _sql.SELECT.replace("SELECT", "SELECT rowid,")
    where = '"pipeline" = ?1 AND "run" = ?2 AND "due_at" <= ?3'
    orders = [(_sql.has(status), _sql.claim_order(status)) for status in order]
    searches = [f"{select} WHERE {where} AND {wanted} ORDER BY {by} LIMIT ?4" for wanted, by in orders]
    # A part of a compound may be ordered only if it is a table of its own.
    return " UNION ALL ".join(f"SELECT * FROM ({search})" for search in searches) + " LIMIT ?4"  # noqa: S608


def _found(db: sqlite3.Connection, query: Query, now: float) -> list[_sql.Row]:
    """Rows of one query, in its order, up to its limit."""
    rows: list[_sql.Row] = []
    for text, parameters in _sql.searches(query, now):
        rows += db.execute(text, parameters).fetchall()
        if query.due and query.limit is not None and len(rows) >= query.limit:
            break
    if not query.due:
        rows.sort(key=lambda row: (row[2], row[1]))
    return rows[: query.limit]


def _removed(db: sqlite3.Connection, lease: Lease) -> Outcome:
    if db.execute(_sql.DELETE_ONE, (*lease.id, lease.version)).rowcount:
        return Outcome.OK
    return Outcome.CONFLICT if db.execute(_sql.SELECT_ONE, lease.id).fetchone() else Outcome.OK


def _tables(db: sqlite3.Connection) -> _sql.Tables:
    if not db.execute("SELECT 1 FROM sqlite_master WHERE name = 'schema_version'").fetchone():
        return _sql.NO_TABLES
    row = db.execute("SELECT * FROM schema_version").fetchone()
    # The first files say their version only; then no other version may use them.
    return _sql.NO_TABLES if row is None else _sql.Tables(row[0], row[-1])


class SqliteConfig(BaseModel):
    """The database file, and how long to wait for locks."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    path: LocalPath = Field(description="The database file, on a local disk. Its folder is made if it is missing.")
    skip_table_creation: bool = Field(
        default=False, description="Never create or migrate tables; refuse to start if they are not as needed."
    )
    busy_timeout: float = Field(
        default=5.0,
        gt=0,
        description="Seconds to wait while another process writes; after that the store is unavailable.",
    )


def build(config: SqliteConfig) -> SqliteStore:
    """The store that the settings describe, not yet opened."""
    skip, patience = config.skip_table_creation, config.busy_timeout
    return SqliteStore(config.path, skip_table_creation=skip, busy_timeout=patience)


PLUGIN = Plugin("sqlite", SqliteConfig, build, "Leases in one file, shared by all processes of one host.")
