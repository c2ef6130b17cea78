from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import settings
from pydantic import ValidationError

from holdfast.config.secrets import Secret
from holdfast.errors import StoreError, StoreUnavailable, UsageError
from holdfast.leases.lease import Key, Status
from holdfast.leases.query import Query
from holdfast.leases.store import ClaimRequest, Outcome, Store, Swap
from holdfast.stores.postgresql import PLUGIN, PostgresqlConfig
from holdfast.stores.postgresql.connection import _conninfo, server_name
from holdfast.stores.postgresql.store import PostgresqlStore
from holdfast.testing.rows import PIPELINE, assigned_row, make_row, touched
from holdfast.testing.stores import StoreBehaviour, StoreMachine
from tests.servers.behaviour import ServerStoreBehaviour
from tests.servers.databases import Postgresql, TurnableServerClock, request
from tests.servers.processes import PostgresqlServer


@pytest.fixture(scope="module", autouse=True)
def _server_of_the_machine(postgresql_server: PostgresqlServer) -> None:
    PostgresqlMachine.server = postgresql_server


class TestPostgresqlStore(StoreBehaviour):
    @pytest.fixture(autouse=True)
    def one_table(self, postgresql_server: PostgresqlServer) -> None:
        self.database = Postgresql(postgresql_server)
        self.clock = TurnableServerClock(self.database)

    def make_store(self) -> Store:
        return self.database.make_store(self.clock.sql)

    def child_factory(self) -> Callable[[], Store]:
        return self.database.factory(self.clock.sql)

    def pass_time(self, seconds: float) -> None:
        self.clock.turn(seconds)

    def corrupt(self, store: Store, key: Key) -> None:
        text = f'UPDATE {self.database.table} SET "body" = left("body", 20)'
        self.database.run(f'{text} WHERE "pipeline" = %s AND "run" = %s AND "key" = %s', values=key)


class PostgresqlMachine(StoreMachine):
    server: PostgresqlServer
    tables: tuple[Postgresql, TurnableServerClock] | None = None

    def make_store(self) -> Store:
        if PostgresqlMachine.tables is None:
            database = Postgresql(self.server)
            PostgresqlMachine.tables = database, TurnableServerClock(database)
            store = database.make_store()
            store.open()
            store.close()
        database, self.clock = PostgresqlMachine.tables
        database.run(f"DELETE FROM {database.table}")
        return database.make_store(self.clock.sql)

    def pass_time(self, seconds: float) -> None:
        self.clock.turn(seconds)


TestPostgresqlStoreAgainstTheModel = PostgresqlMachine.TestCase
TestPostgresqlStoreAgainstTheModel.settings = settings(max_examples=25, stateful_step_count=40, deadline=None)


class TestPostgresqlServer(ServerStoreBehaviour):
    # The message "execute all of it"; the statement is parsed and bound in messages before.
    commit = b"E\x00\x00\x00\x09\x00\x00\x00\x00\x00"

    @pytest.fixture(autouse=True)
    def one_table(self, postgresql_server: PostgresqlServer) -> None:
        self.database = Postgresql(postgresql_server)
        self.server_port = self.database.server.port

    # --- traps -------------------------------------------------------------------------------------------------

    def test_time_spent_waiting_for_a_lock_does_not_shorten_the_lease(self) -> None:
        store = self.open()
        store.add([make_row("a"), make_row("b")])
        store.claim(request())
        with self.database.session() as other, ThreadPoolExecutor() as pool:
            other.execute(f"LOCK TABLE {self.database.table} IN ACCESS EXCLUSIVE MODE")
            answer = pool.submit(store.claim, request(ownership_timeout=60.0))
            time.sleep(1.2)
            assert not answer.done()
            released_at = time.time()
            other.connection.commit()
            (lease,) = answer.result()
        assert lease.history.claimed_at is not None
        assert lease.history.claimed_at >= released_at - 0.1
        assert lease.ownership.due_at == lease.history.claimed_at + 60.0

    def test_a_lease_that_its_owner_renewed_meanwhile_is_not_taken(self) -> None:
        store = self.open()
        store.add([assigned_row("a", "you", due_at=1.0), make_row("b", status=Status.CLOSED, due_at=2.0)])
        store.claim(request(pipeline="none"))
        with self.database.session() as other, ThreadPoolExecutor() as pool:
            other.execute(f"LOCK TABLE {self.database.table} IN ACCESS EXCLUSIVE MODE")
            answer = pool.submit(store.claim, request(9))
            time.sleep(0.3)
            other.execute(f'UPDATE {self.database.table} SET "due_at" = NULL, "version" = 5 WHERE "key" = \'a\'')
            other.connection.commit()
            assert [lease.key for lease in answer.result()] == ["b"]
        assert [row.owner for row in store.find(Query(PIPELINE))] == ["you", "me"]

    def test_a_candidate_that_changed_after_it_was_seen_is_judged_anew(self) -> None:
        store = self.open()
        store.add([make_row(key, ordinal=ordinal) for ordinal, key in enumerate("abc")])
        # Reading the first row takes a second: meanwhile it is claimed by somebody else, and no longer locked.
        name = f"{self.database.prefix}slowly"
        self.database.run(
            f"CREATE FUNCTION {name}(t text) RETURNS boolean LANGUAGE plpgsql AS "
            "$$ BEGIN IF t = 'a' THEN PERFORM pg_sleep(1); END IF; RETURN true; END $$"
        )
        slow = PostgresqlStore(self.database.settings())
        self._stores.append(slow)
        look = slow._look(request().order)
        slow._look = lambda _order: look.replace(  # type: ignore[assignment,method-assign,unused-ignore]
            "\"status\" = 'UNASSIGNED' AND", f'"status" = \'UNASSIGNED\' AND {name}("key") AND'
        )
        with ThreadPoolExecutor() as pool:
            answer = pool.submit(slow.claim, request(2, owner="slow"))
            time.sleep(0.4)
            assert [lease.key for lease in store.claim(request())] == ["a"]
            assert [lease.key for lease in answer.result()] == ["b", "c"]
        assert [(row.owner, row.token) for row in store.find(Query(PIPELINE))] == [("me", 1), ("slow", 1), ("slow", 1)]

    def test_a_statement_that_the_server_undid_for_anothers_sake_is_sent_again(self) -> None:
        store = self.open()
        rows = [make_row("a"), make_row("b")]
        store.add(rows)
        with self.database.session() as other, ThreadPoolExecutor() as pool:
            self.database.lock(other, "b")
            answer = pool.submit(store.swap, [Swap(0, touched(row)) for row in rows])
            time.sleep(0.3)
            # Now each waits for the other, and the server undoes the one that has waited for longer.
            self.database.lock(other, "a")
            other.connection.rollback()
            assert answer.result() == [Outcome.OK, Outcome.OK]

    def test_a_server_that_no_longer_writes_is_left_for_the_one_that_does(self) -> None:
        store = self.open()
        assert isinstance(store, PostgresqlStore)
        with store._connections.lent() as db:
            db.execute("SET default_transaction_read_only = on")
        with pytest.raises(StoreUnavailable, match="read-only"):
            store.add([make_row("a")])
        assert store.add([make_row("a")]) == [Outcome.OK]

    # --- plans -------------------------------------------------------------------------------------------------

    def test_plans_made_for_a_small_table_stay_good_for_a_large_one(self) -> None:
        store = self.open()
        assert isinstance(store, PostgresqlStore)
        store.add([make_row("a"), assigned_row("b", "me", due_at=1.0), make_row("c", status=Status.CLOSED)])
        self.database.run(f"ANALYZE {self.database.table}")
        for text in (store._look(request().order), store._claims.head):
            plan = self.plan(store, text, [b"p", b"", b"1", b"o", None, b'"w"', b"0", b"0", b""])
            assert "Seq Scan" not in plan, plan
            assert "Sort" not in plan, plan
            assert f"{self.database.prefix}lease_unassigned" in plan
        for text in (store._texts.get, store._texts.update, store._texts.delete):
            numbered = "".join(f"{part}${number}" for number, part in enumerate(text.split("%s")[:-1], start=1))
            plan = self.plan(store, numbered + text.split("%s")[-1], [b"{}"] * text.count("%s"))
            assert "Seq Scan" not in plan, plan
            assert "Nested Loop" in plan, plan

    def plan(self, store: PostgresqlStore, text: str, values: list[bytes | None]) -> str:
        with store._connections.lent() as db:
            rows = db.run_prepared(f"EXPLAIN {text}", values[: max(map(int, re.findall(r"\$(\d+)", text)))])
        return "\n".join(line for (line,) in rows)

    def test_a_server_that_does_not_wait_for_the_disk_is_told_to(self) -> None:
        self.database.run("ALTER ROLE postgres SET synchronous_commit = off")
        try:
            store = self.open()
            assert isinstance(store, PostgresqlStore)
            assert store._read("SHOW synchronous_commit", ()) == [("on",)]
        finally:
            self.database.run("ALTER ROLE postgres RESET synchronous_commit")

    def test_a_database_that_cannot_hold_every_name_is_refused(self) -> None:
        connection = self.database.connect()
        connection.autocommit = True
        connection.execute("CREATE DATABASE latin ENCODING 'LATIN1' LOCALE 'C' TEMPLATE template0")
        connection.close()
        with pytest.raises(StoreError, match=r"LATIN1.*must be UTF8"):
            self.open(database="latin")


# --- settings --------------------------------------------------------------------------------------------------------


def test_the_plugin_builds_a_store_from_settings(postgresql_server: PostgresqlServer) -> None:
    store = PLUGIN.build(Postgresql(postgresql_server).settings())
    assert store.add([make_row("a")]) == [Outcome.OK]
    assert (store.durable, store.shared) == (True, True)
    assert len(store.claim(ClaimRequest(PIPELINE, "me", "w"))) == 1
    store.close()


def test_a_missing_driver_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "holdfast.stores.postgresql.store", None)
    with pytest.raises(UsageError, match=r"pip install 'holdfast\[postgresql\]'"):
        PLUGIN.build(PLUGIN.config())


def test_settings_are_read_without_the_driver() -> None:
    script = "import sys, holdfast.stores.postgresql; print('psycopg' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], capture_output=True, check=True).stdout == b"False\n"


@pytest.mark.parametrize(
    "wrong",
    [
        {"table_prefix": 'x"; DROP TABLE y; --'},
        {"table_prefix": "x" * 33},
        {"port": 0},
        {"statement_timeout": 0},
        {"url": "postgresql://h/d", "host": "h"},
        {"tls": {"mode": "maybe"}},
        {"sslmode": "require"},
    ],
)
def test_wrong_settings_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        PostgresqlConfig.model_validate(wrong)


def test_tls_settings_are_handed_to_the_driver() -> None:
    config = PostgresqlConfig.model_validate({"tls": {"mode": "verify-full", "ca": "/ca.pem", "key": "/key.pem"}})
    said = _conninfo(config)
    assert "sslmode=verify-full" in said
    assert "sslrootcert=/ca.pem" in said
    assert "sslkey=/key.pem" in said
    url = PostgresqlConfig(url=Secret("postgresql://u:p@h/d?sslmode=require"))
    assert "sslmode=require" in _conninfo(url)


def test_no_secret_is_in_messages() -> None:
    config = PostgresqlConfig(url=Secret("postgresql://user:hidden@db.example:5433/leases"))
    assert server_name(config) == "postgresql at db.example:5433/leases"
    assert "hidden" not in repr(config)
    with pytest.raises(StoreError) as caught:
        PostgresqlStore(PostgresqlConfig(url=Secret("postgresql://user:hidden@[x/leases")))
    assert "hidden" not in str(caught.value)
