from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pymysql
import pytest
from hypothesis import settings
from pydantic import ValidationError
from pymysql.cursors import Cursor

from holdfast.config.secrets import Secret
from holdfast.errors import StoreError, StoreUnavailable, UsageError
from holdfast.leases.codec import encode_body
from holdfast.leases.lease import Key
from holdfast.leases.query import Query
from holdfast.leases.store import SMALLEST_BODY, ClaimingStore, ClaimRequest, Outcome, Store, Swap
from holdfast.stores.mysql import PLUGIN, MysqlConfig
from holdfast.stores.mysql.connection import server_name
from holdfast.stores.mysql.store import MysqlStore
from holdfast.testing.rows import PIPELINE, make_row, touched
from holdfast.testing.stores import StoreBehaviour, StoreMachine
from tests.servers.behaviour import ServerStoreBehaviour
from tests.servers.databases import Mariadb, TurnableServerClock, request
from tests.servers.processes import MariadbServer

OK, CONFLICT = Outcome.OK, Outcome.CONFLICT


@pytest.fixture(scope="module", autouse=True)
def _server_of_the_machine(mariadb_server: MariadbServer) -> None:
    MysqlMachine.server = mariadb_server


class TestMysqlStore(StoreBehaviour):
    @pytest.fixture(autouse=True)
    def one_table(self, mariadb_server: MariadbServer) -> None:
        self.database = Mariadb(mariadb_server)
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


class MysqlMachine(StoreMachine):
    server: MariadbServer
    tables: tuple[Mariadb, TurnableServerClock] | None = None

    def make_store(self) -> Store:
        if MysqlMachine.tables is None:
            database = Mariadb(self.server)
            MysqlMachine.tables = database, TurnableServerClock(database)
            store = database.make_store()
            store.open()
            store.close()
        database, self.clock = MysqlMachine.tables
        database.run(f"DELETE FROM {database.table}")
        return database.make_store(self.clock.sql)

    def pass_time(self, seconds: float) -> None:
        self.clock.turn(seconds)


TestMysqlStoreAgainstTheModel = MysqlMachine.TestCase
TestMysqlStoreAgainstTheModel.settings = settings(max_examples=25, stateful_step_count=40, deadline=None)


class TestMariadbServer(ServerStoreBehaviour):
    commit = b"COMMIT"

    @pytest.fixture(autouse=True)
    def one_table(self, mariadb_server: MariadbServer) -> None:
        self.database = Mariadb(mariadb_server)
        self.server_port = self.database.server.port

    def mysql(self, **changes: Any) -> MysqlStore:
        store: ClaimingStore = self.open(**changes)
        assert isinstance(store, MysqlStore)
        return store

    # --- traps -------------------------------------------------------------------------------------------------

    def test_a_transaction_sees_what_others_have_committed_since_it_began(self) -> None:
        store = self.mysql()
        store.add([make_row("a")])

        def work(cursor: Cursor) -> list[int]:
            versions = []
            for version in (1, 2):
                (row,) = store._rows_of(cursor, [make_row("a").id], "SELECT version FROM lease")
                versions.append(row[0])
                self.database.run(f'UPDATE {self.database.table} SET "version" = %s', values=(version,))
            return versions

        assert store._write(work) == [0, 1]

    def test_a_claim_under_way_does_not_keep_others_from_adding_rows(self) -> None:
        store, other = self.mysql(), self.open(statement_timeout=1.0)
        store.add([make_row(key, ordinal=ordinal) for ordinal, key in enumerate("bdf")])

        def work(cursor: Cursor) -> list[str]:
            taken = store._claimed(cursor, request(9))
            assert other.add([make_row(key, ordinal=ordinal) for ordinal, key in enumerate("aceg")]) == [OK] * 4
            return [lease.key for lease in taken]

        assert store._write(work) == ["b", "d", "f"]

    def test_after_a_lock_timeout_nothing_of_the_transaction_is_applied(self) -> None:
        store = self.mysql(statement_timeout=1.0)
        rows = [make_row("a"), make_row("b")]
        store.add(rows)
        with self.database.session() as other:
            self.database.lock(other, "b")
            with pytest.raises(pymysql.Error) as caught, store._connections.lent() as db:
                store._transaction(db, lambda cursor: self.swap_both(store, cursor))
            assert caught.value.args[0] == 1205
            assert store.find(Query(PIPELINE)) == rows
            # The connection is good for the next one, which must not commit what was left over.
            assert store.swap([Swap(9, touched(rows[0]))]) == [CONFLICT]
        assert store.find(Query(PIPELINE)) == rows

    def swap_both(self, store: MysqlStore, cursor: Cursor) -> None:
        for key in ("a", "b"):
            text = 'UPDATE lease SET "version" = 7 WHERE "pipeline" = ? AND "key" = ?'
            store._met(cursor, text, (PIPELINE, key))

    def test_a_transaction_that_the_server_undid_for_anothers_sake_is_done_again(self) -> None:
        store = self.mysql()
        rows = [make_row("a"), make_row("b"), *(make_row(f"c{number}") for number in range(50))]
        store.add(rows)
        with self.database.session() as other, ThreadPoolExecutor() as pool:
            # The server undoes the one that has changed less.
            other.execute(f"UPDATE {self.database.table} SET \"group\" = 'x' WHERE \"key\" > 'a'")
            answer = pool.submit(store.swap, [Swap(0, touched(row)) for row in rows[:2]])
            time.sleep(0.3)
            self.database.lock(other, "a")
            other.connection.rollback()
            assert answer.result() == [OK, OK]

    @pytest.mark.parametrize("code", [1213, 1205, 1020])
    @pytest.mark.parametrize("at_commit", [False, True])
    def test_a_clash_is_answered_by_doing_all_of_it_again(self, code: int, at_commit: bool) -> None:
        store = self.mysql()
        store.add([make_row("a")])
        tries = list[int]()

        def work(cursor: Cursor) -> Outcome:
            tries.append(len(tries))
            outcome = store._met(cursor, 'UPDATE lease SET "version" = "version" + 1', ())
            if len(tries) < 3:
                if at_commit:
                    cursor.connection.commit = self.clash(code)  # type: ignore[method-assign]
                else:
                    self.clash(code)()
            return outcome

        assert store._write(work) is OK
        assert tries == [0, 1, 2]
        assert [row.version for row in store.find(Query(PIPELINE))] == [1]

    def clash(self, code: int) -> Callable[[], None]:
        def fail() -> None:
            raise pymysql.OperationalError(code, "clash")

        return fail

    def test_a_row_that_appears_between_the_look_and_the_insert_is_a_conflict(self) -> None:
        store = self.mysql()
        rows_of = store._rows_of
        others = [make_row("b")]

        def look(cursor: Cursor, *arguments: Any) -> Any:
            found = rows_of(cursor, *arguments)
            if others:
                self.open().add([others.pop()])
            return found

        store._rows_of = look  # type: ignore[method-assign,assignment]
        assert store.add([make_row("a"), make_row("b", group="mine"), make_row("c")]) == [OK, CONFLICT, OK]
        assert [row.group for row in store.find(Query(PIPELINE))] == ["", "", ""]

    def test_settings_of_the_server_do_not_bend_rows_or_time(self) -> None:
        for setting in ("sql_mode = ''", "time_zone = '+05:00'", "tx_isolation = 'SERIALIZABLE'"):
            self.database.run(f"SET GLOBAL {setting}")
        try:
            store = self.open()
            assert abs(store.now() - time.time()) < 5.0
            with pytest.raises(StoreError, match="too long"):
                store.add([make_row("a"), make_row("k" * 2001)])
            assert store.find(Query(PIPELINE)) == []
            self.test_a_claim_under_way_does_not_keep_others_from_adding_rows()
        finally:
            for setting in ("sql_mode", "time_zone", "tx_isolation"):
                self.database.run(f"SET GLOBAL {setting} = DEFAULT")

    def test_a_server_that_no_longer_writes_is_left_for_the_one_that_does(self) -> None:
        store = self.mysql()
        with store._connections.lent() as db:
            db.cursor().execute("SET SESSION TRANSACTION READ ONLY")
        with pytest.raises(StoreUnavailable, match="READ ONLY"):
            store.add([make_row("a")])
        assert store.add([make_row("a")]) == [OK]

    def test_whoever_makes_the_tables_is_waited_for(self) -> None:
        with self.database.session() as other:
            other.execute("SELECT GET_LOCK(%s, 0)", (f"tests.{self.database.table}",))
            with pytest.raises(StoreUnavailable, match="another node is creating the tables"):
                self.open(statement_timeout=1.0)
        assert self.open().add([make_row("a")]) == [OK]

    # --- plans -------------------------------------------------------------------------------------------------

    def test_claims_lock_no_more_rows_than_they_take(self) -> None:
        store = self.mysql()
        store.add([make_row(f"{number:03d}", ordinal=number) for number in range(50)])

        def work(cursor: Cursor) -> list[str]:
            taken = store._claimed(cursor, request(3))
            assert [lease.key for lease in self.open().claim(request(3, owner="you"))] == ["003", "004", "005"]
            return [lease.key for lease in taken]

        assert store._write(work) == ["000", "001", "002"]


# --- settings --------------------------------------------------------------------------------------------------------


def test_the_plugin_builds_a_store_from_settings(mariadb_server: MariadbServer) -> None:
    store = PLUGIN.build(Mariadb(mariadb_server).settings())
    assert store.add([make_row("a")]) == [OK]
    assert (store.durable, store.shared) == (True, True)
    assert len(store.claim(ClaimRequest(PIPELINE, "me", "w"))) == 1
    store.close()


def test_a_missing_driver_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "holdfast.stores.mysql.store", None)
    with pytest.raises(UsageError, match=r"pip install 'holdfast\[mysql\]'"):
        PLUGIN.build(PLUGIN.config())


def test_settings_are_read_without_the_driver() -> None:
    script = "import sys, holdfast.stores.mysql; print('pymysql' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], capture_output=True, check=True).stdout == b"False\n"


@pytest.mark.parametrize(
    "wrong",
    [
        {"table_prefix": 'x"; DROP TABLE y; --'},
        {"table_prefix": "x" * 33},
        {"port": 0},
        {"connect_timeout": 0},
        {"url": "mysql://h/d", "user": "u"},
        {"tls": {"check_host": False}},
        {"ssl": True},
    ],
)
def test_wrong_settings_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        MysqlConfig.model_validate(wrong)


def test_no_secret_is_in_messages() -> None:
    config = MysqlConfig(url=Secret("mysql://user:hidden@db.example:3307/leases"))
    assert server_name(config) == "mysql at db.example:3307/leases"
    assert "hidden" not in repr(config)
    for url in ("mysql://user:hidden@db:port/leases", "http://user:hidden@db/leases"):
        with pytest.raises((StoreError, ValidationError)) as caught:
            MysqlStore(MysqlConfig(url=Secret(url)))
        assert "hidden" not in str(caught.value)


def test_rows_fit_into_the_packets_of_the_server(mariadb_server: MariadbServer) -> None:
    database = Mariadb(mariadb_server)
    ((before,),) = database.run("SELECT @@global.max_allowed_packet")
    try:
        database.run(f"SET GLOBAL max_allowed_packet = {1 << 20}")
        store = database.make_store()
        store.open()
        assert SMALLEST_BODY <= store.max_body_bytes < 1 << 20
        # Each of these characters is sent as two.
        empty = len(encode_body(make_row("large", spec={"text": ""})))
        row = make_row("large", spec={"text": "'" * (store.max_body_bytes - empty)})
        assert store.add([row]) == [OK]
        assert store.get([row.id]) == [row]
        store.close()
        database.run("SET GLOBAL max_allowed_packet = 262144")
        with pytest.raises(StoreError, match="max_allowed_packet is 262144"):
            database.make_store().open()
    finally:
        database.run(f"SET GLOBAL max_allowed_packet = {before}")
