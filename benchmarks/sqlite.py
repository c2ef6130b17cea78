"""Claims through the SQLite store, beside what a program would do by hand on the same table.

The peer takes one lease by `BEGIN IMMEDIATE; SELECT …; UPDATE …; COMMIT`. It looks for the first free row in the same
order of claim and leaves the same row behind: owner, token, version, and in the body who wrote it and when. It knows no
lease, no unreadable row and no limits. Both commit with `synchronous=FULL`. A leaner peer, which leaves the body alone
and looks at UNASSIGNED rows only, is a sixth to a quarter faster than this one.
"""

from __future__ import annotations

import json
import sqlite3
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from benchmarks.harness import Comparison, compare, interleaved
from holdfast.leases.lease import Partition, Status, new_lease
from holdfast.leases.store import ClaimRequest
from holdfast.leases.transitions import complete, stamped, take
from holdfast.stores._sql import INSERT, Row, row_of
from holdfast.stores.sqlite import SqliteStore

PIPELINE = "scan"
BATCH = 100
ONE_BY_ONE = 60
BATCHES = 4
REPETITIONS = 60
MILLION = 1_000_000
THOUSAND = 1_000
CLAIMS_AMONG_MANY = 25
REPETITIONS_AMONG_MANY = 30

ORDERS = {"ASSIGNED": "due_at, key", "CLOSED": "due_at, key", "UNASSIGNED": "priority DESC, ordinal, key"}
SELECT_ONE = " UNION ALL ".join(
    "SELECT * FROM (SELECT rowid, body FROM lease WHERE pipeline = ?1 AND run = '' AND due_at <= ?2 "
    f"AND status = '{status}' ORDER BY {order} LIMIT 1)"
    for status, order in ORDERS.items()
)
UPDATE_ONE = (
    "UPDATE lease SET status = 'ASSIGNED', owner = ?, token = token + 1, version = version + 1, due_at = NULL, "
    "body = ? WHERE rowid = ?"
)
WRITE_ID = "0123456789abcdef0123456789abcdef"


def run() -> list[Comparison]:
    with tempfile.TemporaryDirectory() as folder:
        return [*_against_raw(Path(folder)), _among_many(Path(folder))]


def _against_raw(folder: Path) -> list[Comparison]:
    with (
        _store(folder / "ours.db", REPETITIONS * (ONE_BY_ONE + BATCH * BATCHES)) as ours,
        _store(folder / "peer.db", REPETITIONS * ONE_BY_ONE),
        closing(_raw(folder / "peer.db")) as peer,
    ):
        single, hundreds, raw = interleaved(
            [
                lambda: _rate(ONE_BY_ONE, lambda: _claim(ours, 1)),
                lambda: BATCH * _rate(BATCHES, lambda: _claim(ours, BATCH)),
                lambda: _rate(ONE_BY_ONE, lambda: _claim_by_hand(peer)),
            ],
            REPETITIONS,
        )
    return [
        compare("sqlite", "claims one at a time", single, raw, "claims/s", 0.7),
        compare("sqlite", "claims in hundreds against the peer's one at a time", hundreds, raw, "claims/s", 5.0),
    ]


def _among_many(folder: Path) -> Comparison:
    with _store(folder / "million.db", MILLION, completed=99) as large, _store(folder / "few.db", THOUSAND) as small:
        among_many, among_few = interleaved(
            [
                lambda: 1e6 / _rate(CLAIMS_AMONG_MANY, lambda: _claim(large, 1)),
                lambda: 1e6 / _rate(CLAIMS_AMONG_MANY, lambda: _claim(small, 1)),
            ],
            REPETITIONS_AMONG_MANY,
        )
    return compare(
        "sqlite", "a claim among 1,000,000 rows, 99 % COMPLETED, against 1,000", among_many, among_few, "µs", "<= 1.5"
    )


@contextmanager
def _store(path: Path, rows: int, completed: int = 0) -> Iterator[SqliteStore]:
    """A store with that many rows, of which every 100 begin with this many completed ones."""
    store = SqliteStore(path)
    store.open()
    free, done = _rows(store.now())
    with closing(_raw(path)) as db:
        db.execute("BEGIN IMMEDIATE")
        db.executemany(INSERT, (_numbered(done if n % 100 < completed else free, n) for n in range(rows)))
        db.execute("COMMIT")
    yield store
    store.close()


def _rows(now: float) -> tuple[Row, Row]:
    partition = Partition("", spec={"bucket": "bucket", "etag": "0123456789abcdef", "size": 123_456})
    free = new_lease(PIPELINE, partition, "made by the supplier", now=now)
    done = stamped(free, complete(take(free, "an earlier node", now), now), "completed by an earlier node")
    return row_of(free, SqliteStore.max_body_bytes), row_of(done, SqliteStore.max_body_bytes)


def _numbered(row: Row, number: int) -> Row:
    return (*row[:2], f"s3://bucket/2026/01/{number:08d}.json.gz", *row[3:10], row[10] + number, row[11])


def _raw(path: Path) -> sqlite3.Connection:
    db = sqlite3.connect(path, isolation_level=None)
    db.execute("PRAGMA synchronous = FULL")
    return db


def _claim(store: SqliteStore, limit: int) -> None:
    taken = store.claim(ClaimRequest(PIPELINE, "node:1", WRITE_ID, limit))
    assert len(taken) == limit
    assert taken[0].status is Status.ASSIGNED


def _claim_by_hand(db: sqlite3.Connection) -> None:
    db.execute("BEGIN IMMEDIATE")
    now = time.time()
    rowid, text = db.execute(f"{SELECT_ONE} LIMIT 1", (PIPELINE, now)).fetchone()
    body = json.loads(text)
    body.update(write_id=WRITE_ID, claimed_at=now, started_at=now, updated_at=now)
    changed = db.execute(UPDATE_ONE, ("node:1", json.dumps(body), rowid)).rowcount
    db.execute("COMMIT")
    assert changed == 1


def _rate(times: int, work: Callable[[], None]) -> float:
    """How often per second."""
    started = time.perf_counter()
    for _ in range(times):
        work()
    return times / (time.perf_counter() - started)
