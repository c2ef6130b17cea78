from __future__ import annotations

import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from pydantic import ValidationError

from holdfast.errors import AnswerLost, SchemaMismatch, StoreError, StoreUnavailable
from holdfast.leases.lease import Key
from holdfast.leases.query import Query
from holdfast.leases.store import ClaimRequest, Outcome, Store, Swap
from holdfast.leases.transitions import release, stamped
from holdfast.stores.sqlite import PLUGIN, SCHEMA_VERSION, SqliteConfig, SqliteStore
from holdfast.testing.rows import PIPELINE, make_row, touched
from holdfast.testing.stores import StoreBehaviour, StoreMachine
from holdfast.testing.worlds import TurnableClock


class TestSqliteStore(StoreBehaviour):
    @pytest.fixture(autouse=True)
    def one_file(self, tmp_path: Path) -> None:
        self.path = tmp_path / "leases.db"
        self.clock = TurnableClock()

    def make_store(self) -> Store:
        return SqliteStore(self.path, busy_timeout=30.0, now=self.clock.monotonic)

    def child_factory(self) -> Callable[[], Store]:
        return partial(SqliteStore, self.path, busy_timeout=30.0)

    def pass_time(self, seconds: float) -> None:
        self.clock.turn(seconds)

    def corrupt(self, store: Store, key: Key) -> None:
        with raw(self.path) as db:
            db.execute("UPDATE lease SET body = substr(body, 1, 20) WHERE pipeline = ? AND run = ? AND key = ?", key)

    def corrupt_bytes(self, store: Store, key: Key, body: bytes) -> None:
        with raw(self.path) as db:
            changes = "UPDATE lease SET body = CAST(? AS TEXT) WHERE pipeline = ? AND run = ? AND key = ?"
            db.execute(changes, (body, *key))


class SqliteMachine(StoreMachine):
    def make_store(self) -> Store:
        self.clock = TurnableClock()
        self.folder = tempfile.TemporaryDirectory()
        return SqliteStore(Path(self.folder.name) / "leases.db", now=self.clock.monotonic)

    def pass_time(self, seconds: float) -> None:
        self.clock.turn(seconds)

    def teardown(self) -> None:
        super().teardown()
        self.folder.cleanup()


TestSqliteStoreAgainstTheModel = SqliteMachine.TestCase
TestSqliteStoreAgainstTheModel.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


@contextmanager
def raw(path: Path) -> Iterator[sqlite3.Connection]:
    """A connection of somebody else."""
    db = sqlite3.connect(path, isolation_level=None, timeout=0)
    try:
        yield db
    finally:
        db.close()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "leases.db"


@pytest.fixture
def store(path: Path) -> Iterator[SqliteStore]:
    store = SqliteStore(path, busy_timeout=0.2)
    store.open()
    yield store
    store.close()


def run_python(script: str, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", script, *arguments], stdout=subprocess.PIPE, text=True)


# --- several processes -------------------------------------------------------------------------------------------

ADD_ONE = """
import sys; from pathlib import Path
from holdfast.stores.sqlite import SqliteStore; from holdfast.testing.rows import make_row
store = SqliteStore(Path(sys.argv[1])); store.open(); print(store.add([make_row("from afar")]))
"""


def test_another_process_sees_the_rows_and_is_seen(path: Path, store: SqliteStore) -> None:
    store.add([make_row("here")])
    with run_python(ADD_ONE, str(path)) as child:
        assert child.wait() == 0
    assert [row.key for row in store.find(Query(PIPELINE))] == ["from afar", "here"]


DIE_WHILE_WRITING = """
import signal, sqlite3, sys
db = sqlite3.connect(sys.argv[1], isolation_level=None)
db.execute("PRAGMA cache_size = 1")
db.execute("BEGIN IMMEDIATE")
db.execute("UPDATE lease SET owner = 'zombie', version = version + 1, body = body || hex(randomblob(4000))")
print("writing", flush=True)
signal.pause()
"""


def test_a_process_killed_in_a_transaction_leaves_a_readable_file(path: Path, store: SqliteStore) -> None:
    rows = [make_row(f"{number:03d}") for number in range(200)]
    store.add(rows)
    with run_python(DIE_WHILE_WRITING, str(path)) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "writing\n"
        assert store.find(Query(PIPELINE)) == rows, "readers never see what is not committed"
        with pytest.raises(StoreUnavailable):
            store.swap([Swap(0, touched(rows[0]))])
        child.send_signal(signal.SIGKILL)
    assert store.find(Query(PIPELINE)) == rows
    assert store.swap([Swap(0, touched(rows[0]))]) == [Outcome.OK]


# --- trouble -----------------------------------------------------------------------------------------------------


def test_a_file_that_somebody_keeps_locked_is_unavailable_for_writes_only(path: Path, store: SqliteStore) -> None:
    store.add([make_row("a")])
    with raw(path) as other:
        other.execute("BEGIN IMMEDIATE")
        for write in (
            lambda: store.add([make_row("b")]),
            lambda: store.swap([Swap(0, touched(make_row("a")))]),
            lambda: store.remove([make_row("a")]),
            lambda: store.claim(ClaimRequest(PIPELINE, "me", "w")),
        ):
            started = time.monotonic()
            with pytest.raises(StoreUnavailable, match="locked"):
                write()
            assert 0.1 < time.monotonic() - started < 2.0
        assert [row.key for row in store.find(Query(PIPELINE))] == ["a"]
        other.execute("ROLLBACK")
    assert store.add([make_row("b")]) == [Outcome.OK]


class FailingCommit:
    """A connection whose COMMIT meets a disk error, before or after it was applied."""

    def __init__(self, db: sqlite3.Connection, applied: bool) -> None:
        self._db = db
        self._applied = applied

    def execute(self, text: str, *values: Any) -> object:
        if text == "COMMIT":
            self._db.execute("COMMIT" if self._applied else "ROLLBACK")
            raise sqlite3.OperationalError("disk I/O error")
        return self._db.execute(text, *values)

    def __getattr__(self, name: str) -> object:
        return getattr(self._db, name)


@pytest.mark.parametrize("applied", [False, True])
def test_a_disk_error_during_commit_is_unknown_never_a_conflict(store: SqliteStore, applied: bool) -> None:
    def break_commit() -> None:
        db = store._connected()
        store._connection = FailingCommit(db, applied)  # type: ignore[assignment]

    break_commit()
    assert store.add([make_row("a"), make_row("b")]) == [Outcome.UNKNOWN] * 2
    assert len(store.find(Query(PIPELINE))) == (2 if applied else 0)
    store.add([make_row("a"), make_row("b")])
    break_commit()
    assert store.swap([Swap(0, touched(make_row("a")))]) == [Outcome.UNKNOWN]
    assert store.remove([make_row("b")]) == [Outcome.OK]
    break_commit()
    with pytest.raises(AnswerLost):
        store.claim(ClaimRequest(PIPELINE, "me", "w"))
    assert len(store.find(Query(PIPELINE, owner="me"))) == (1 if applied else 0)


@pytest.mark.parametrize("severity", ["ABORT", "ROLLBACK"])
def test_an_error_inside_a_transaction_rolls_all_of_it_back(path: Path, store: SqliteStore, severity: str) -> None:
    with raw(path) as other:
        other.execute(
            "CREATE TRIGGER full BEFORE INSERT ON lease WHEN NEW.key = 'last' "
            f"BEGIN SELECT RAISE({severity}, 'no room'); END"
        )
    with pytest.raises(StoreError, match="no room"):
        store.add([make_row("first"), make_row("last")])
    assert store.find(Query(PIPELINE)) == []
    assert store.add([make_row("first")]) == [Outcome.OK]


def test_the_folder_of_the_file_is_made(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "new" / "folder" / "leases.db")
    store.open()
    store.close()
    assert (tmp_path / "new" / "folder" / "leases.db").exists()


def test_a_command_that_only_reads_makes_no_folder(tmp_path: Path) -> None:
    with pytest.raises(SchemaMismatch, match="does not exist"):
        SqliteStore(tmp_path / "typo" / "leases.db", skip_table_creation=True).open()
    assert not (tmp_path / "typo").exists()


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match=r"cannot make the folder of .*leases\.db: (File exists|Not a directory)"):
        SqliteStore(tmp_path / "file" / "leases.db").open()


def test_a_directory_in_place_of_the_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=f"cannot open {tmp_path}"):
        SqliteStore(tmp_path).open()


def test_a_file_that_is_no_database_is_left_alone(path: Path) -> None:
    path.write_text("precious notes\n" * 100)
    with pytest.raises(StoreError, match="not a database"):
        SqliteStore(path).open()
    assert path.read_text().startswith("precious notes")


def test_memory_databases_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(StoreError, match="local file in WAL mode"):
        SqliteStore(Path(":memory:")).open()


# --- tables ------------------------------------------------------------------------------------------------------


def test_commits_survive_a_loss_of_power(path: Path, store: SqliteStore) -> None:
    assert store._connected().execute("PRAGMA synchronous").fetchone() == (2,)
    assert store._connected().execute("PRAGMA journal_mode").fetchone() == ("wal",)


def test_tables_are_not_made_if_that_is_forbidden(path: Path) -> None:
    with pytest.raises(SchemaMismatch, match="does not exist"):
        SqliteStore(path, skip_table_creation=True).open()
    assert not path.exists()
    sqlite3.connect(path).close()
    path.touch()
    with pytest.raises(SchemaMismatch, match=r"no lease tables.*may not be created here"):
        SqliteStore(path, skip_table_creation=True).open()


def test_existing_tables_are_used_if_making_them_is_forbidden(path: Path, store: SqliteStore) -> None:
    store.add([make_row("a")])
    other = SqliteStore(path, skip_table_creation=True)
    assert [row.key for row in other.find(Query(PIPELINE))] == ["a"]
    other.close()


def become_next_version(path: Path, *, oldest: int) -> None:
    """What the next version would do to the tables."""
    with raw(path) as other:
        other.execute("ALTER TABLE lease ADD COLUMN flavour TEXT NOT NULL DEFAULT 'plain'")
        other.execute("UPDATE schema_version SET version = ?, oldest = ?", (SCHEMA_VERSION + 1, oldest))


@pytest.mark.parametrize("skip", [False, True])
def test_nodes_of_this_version_work_on_tables_of_the_next(path: Path, store: SqliteStore, skip: bool) -> None:
    store.add([make_row("a", extra={"flavour": 1})])
    become_next_version(path, oldest=SCHEMA_VERSION)
    other = SqliteStore(path, skip_table_creation=skip)
    for opened in (store, other):
        (lease,) = opened.claim(ClaimRequest(PIPELINE, "me", "w", 1))
        assert lease.extra == {"flavour": 1}
        assert opened.swap([Swap(lease.version, stamped(lease, release(lease, opened.now()), "w"))]) == [Outcome.OK]
    other.close()
    with raw(path) as later:
        assert later.execute("SELECT version FROM schema_version").fetchone() == (SCHEMA_VERSION + 1,)


def test_a_file_from_before_it_said_who_may_use_it_is_used_by_its_own_version_only(path: Path) -> None:
    SqliteStore(path).open()
    with raw(path) as other:
        other.execute("ALTER TABLE schema_version DROP COLUMN oldest")
    SqliteStore(path).open()
    with raw(path) as other:
        other.execute("UPDATE schema_version SET version = version + 1")
    with pytest.raises(SchemaMismatch, match="newer holdfast"):
        SqliteStore(path).open()


@pytest.mark.parametrize("skip", [False, True])
def test_tables_that_only_a_newer_holdfast_can_use_are_refused(path: Path, store: SqliteStore, skip: bool) -> None:
    become_next_version(path, oldest=SCHEMA_VERSION + 1)
    with pytest.raises(SchemaMismatch, match="newer holdfast"):
        SqliteStore(path, skip_table_creation=skip).open()


def test_tables_of_somebody_else_are_refused(path: Path) -> None:
    with raw(path) as other:
        other.execute("CREATE TABLE lease (landlord TEXT, rent INTEGER)")
    with pytest.raises(SchemaMismatch, match="not those of holdfast"):
        SqliteStore(path).open()


def test_tables_that_vanish_are_reported(path: Path, store: SqliteStore) -> None:
    with raw(path) as other:
        other.execute("DROP TABLE lease")
    with pytest.raises(SchemaMismatch, match="no such table"):
        store.find(Query(PIPELINE))


def test_claims_use_small_indexes(store: SqliteStore) -> None:
    from holdfast.stores.sqlite import _claim_search

    order = ClaimRequest("", "", "").order
    plan = store._connected().execute("EXPLAIN QUERY PLAN " + _claim_search(order), ("p", "", 1.0, 1)).fetchall()
    steps = [row[3] for row in plan]
    assert not [step for step in steps if "TEMP B-TREE" in step], steps
    for index in ("lease_assigned", "lease_closed", "lease_unassigned"):
        assert [step for step in steps if index in step], steps


# --- settings ----------------------------------------------------------------------------------------------------


def test_the_plugin_builds_a_store_from_settings(path: Path) -> None:
    store = PLUGIN.build(SqliteConfig(path=path, busy_timeout=0.1))
    assert store.add([make_row("a")]) == [Outcome.OK]
    assert (store.durable, store.shared) == (True, True)
    store.close()


@pytest.mark.parametrize("wrong", [{}, {"path": "x", "busy_timeout": 0}, {"path": "x", "wal": True}])
def test_wrong_settings_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        SqliteConfig.model_validate(wrong)
