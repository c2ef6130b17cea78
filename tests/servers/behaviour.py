"""What a store on a server must do beyond the behaviour suite, the same for every kind of server."""

from __future__ import annotations

import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from holdfast.errors import AnswerLost, SchemaMismatch, StoreError, StoreUnavailable
from holdfast.leases import transitions
from holdfast.leases.lease import Key, Status
from holdfast.leases.query import Query
from holdfast.leases.store import ClaimingStore, Outcome, Swap
from holdfast.leases.transitions import take
from holdfast.testing.rows import PIPELINE, assigned_row, make_row, touched
from tests.servers.databases import request
from tests.servers.outages import DatabaseOutageBehaviour
from tests.servers.processes import PASSWORD

OK, CONFLICT = Outcome.OK, Outcome.CONFLICT


class ServerStoreBehaviour(DatabaseOutageBehaviour):
    """Rows, clocks, locks, tables and settings on a real server."""

    def body_of(self, key: str) -> str:
        ((body,),) = self.database.run(f'SELECT "body" FROM {self.database.table} WHERE "key" = %s', values=(key,))
        return str(body)

    # --- the server's clock ------------------------------------------------------------------------------------

    def test_the_clock_is_the_servers(self) -> None:
        assert abs(self.open().now() - time.time()) < 5.0

    def test_a_claim_is_stamped_with_the_servers_time(self) -> None:
        store = self.open()
        store.add([make_row("a")])
        before = store.now()
        (lease,) = store.claim(request(ownership_timeout=60.0))
        now = lease.history.claimed_at
        assert now is not None
        assert before <= now <= store.now()
        assert lease.ownership.due_at == now + 60.0
        assert store.get([lease.id]) == [lease]

    def test_rows_become_due_while_the_clock_goes_on(self) -> None:
        store = self.open()
        store.add([make_row("a", due_at=store.now() + 1.0), make_row("b", due_at=store.now() + 999)])
        assert store.claim(request(9)) == store.find(Query(PIPELINE, due=True)) == []
        time.sleep(1.2)
        assert [row.key for row in store.find(Query(PIPELINE, due=True))] == ["a"]
        assert [lease.key for lease in store.claim(request(9))] == ["a"]

    # --- what a claim makes of a row ---------------------------------------------------------------------------

    @pytest.mark.parametrize("timeout", [None, 60.0])
    def test_a_claim_is_what_take_makes_of_any_row(self, timeout: float | None) -> None:
        store = self.open()
        fresh = make_row("fresh", created_at=1.0)
        rows = [
            fresh,
            make_row("started", started_at=2.5, takeovers=3, claimed_at=2.5, attempts=1, last_error="é"),
            make_row("closed", status=Status.CLOSED, due_at=5.0, closed_count=2, extra={"later": [1]}),
            assigned_row("lapsed", "dead", due_at=7.0, takeovers=1, state={"n": [1, None]}, version=9),
            assigned_row("lapsed before it started", "dead", due_at=8.0),
            assigned_row("lapsed with nothing out", "dead", due_at=8.0, takeovers=2, begun=False),
            assigned_row("lapsed with a batch out", "dead", due_at=8.0, takeovers=2, begun=True),
            assigned_row("taken by its owner again", "me", due_at=8.0, takeovers=2, begun=True),
        ]
        store.add(rows)
        claimed = {lease.key: lease for lease in store.claim(request(9, ownership_timeout=timeout, write_id='w"\0'))}
        for row in rows:
            now = claimed[row.key].history.claimed_at
            assert now is not None
            due_at = None if timeout is None else now + timeout
            assert claimed[row.key] == transitions.stamped(row, take(row, "me", now, due_at), 'w"\0')
        assert store.get([row.id for row in rows]) == [claimed[row.key] for row in rows]

    def test_claims_of_one_lease_follow_each_other_without_a_write_in_between(self) -> None:
        store = self.open()
        store.add([make_row("a")])
        (first,) = store.claim(request(ownership_timeout=0.0))
        row = first
        for number in range(1, 4):
            (lease,) = store.claim(request(owner=f"owner {number}", ownership_timeout=0.0))
            assert lease.history.claimed_at is not None
            now = lease.history.claimed_at
            assert lease == transitions.stamped(row, take(row, f"owner {number}", now, now), "claim")
            row = lease
        assert (row.token, row.history.takeovers, row.history.started_at) == (4, 3, first.history.claimed_at)
        released = transitions.stamped(row, transitions.release(row, store.now()), "released")
        assert store.swap([Swap(row.version, released)]) == [OK]
        assert store.get([row.id]) == [released]

    def test_a_write_that_changes_nothing_is_no_lost_lease(self) -> None:
        store = self.open()
        row = assigned_row("a", "me", version=3)
        store.add([row])
        assert store.swap([Swap(3, row)]) == [OK]

    def test_a_body_that_a_person_wrote_is_claimed_if_it_can_be_read(self) -> None:
        store = self.open()
        store.add([make_row(key) for key in "abcd"])
        for key, add in (("b", ',"position":7} \n'), ("c", "")):
            body = self.body_of(key).removesuffix("}") + add
            self.database.run(f'UPDATE {self.database.table} SET "body" = %s WHERE "key" = %s', values=(body, key))
        found = {row.key: row for row in store.claim(request(9))}
        assert sorted(found) == ["a", "b", "c", "d"]
        assert (found["b"].progress.position, found["b"].owner, found["b"].token) == (7, "me", 1)
        assert (found["c"].unreadable, found["c"].owner, found["c"].token) == (self.body_of("c"), None, 0)
        assert store.get([lease.id for lease in found.values()]) == list(found.values())

    # --- others at the same rows -------------------------------------------------------------------------------

    def test_a_row_that_somebody_holds_is_passed_over_at_once(self) -> None:
        store = self.open()
        store.add([make_row(key) for key in "abc"])
        with self.database.session() as other:
            self.database.lock(other, "a")
            started = time.monotonic()
            assert [lease.key for lease in store.claim(request(2))] == ["b", "c"]
            assert store.claim(request(9)) == []
            assert time.monotonic() - started < 1.8
        assert [lease.key for lease in store.claim(request(2))] == ["a"]

    def test_a_swap_that_waited_is_judged_by_the_new_version(self) -> None:
        store = self.open()
        rows = [make_row("a"), make_row("b")]
        store.add(rows)
        with self.database.session() as other, ThreadPoolExecutor() as pool:
            other.execute(f'UPDATE {self.database.table} SET "version" = 5 WHERE "key" = \'a\'')
            answer = pool.submit(store.swap, [Swap(0, touched(row)) for row in rows])
            time.sleep(0.3)
            assert not answer.done()
            other.connection.commit()
            assert answer.result() == [CONFLICT, OK]
        assert [row.version for row in store.find(Query(PIPELINE))] == [5, 1]

    def test_a_lock_that_is_held_too_long_makes_the_store_unavailable_and_applies_nothing(self) -> None:
        store = self.open(statement_timeout=1.0)
        rows = [make_row("a"), make_row("b")]
        store.add(rows)
        with self.database.session() as other:
            self.database.lock(other, "b")
            with pytest.raises(StoreUnavailable) as caught:
                store.swap([Swap(0, touched(row)) for row in rows])
            assert not isinstance(caught.value, AnswerLost)
        assert store.find(Query(PIPELINE)) == rows
        assert store.swap([Swap(0, touched(row)) for row in rows]) == [OK, OK]

    def test_a_call_that_waits_does_not_hold_up_other_threads(self) -> None:
        store = self.open()
        store.add([make_row("a"), assigned_row("b", "me")])
        with self.database.session() as other, ThreadPoolExecutor() as pool:
            self.database.lock(other, "a")
            waiting = pool.submit(store.swap, [Swap(0, touched(make_row("a")))])
            for number in range(20):
                (row,) = store.get([Key(PIPELINE, "", "b")])
                assert row is not None
                assert store.swap([Swap(number, touched(row))]) == [OK]
            assert not waiting.done()
            other.connection.rollback()
            assert waiting.result() == [OK]

    # --- tables ------------------------------------------------------------------------------------------------

    def test_tables_are_made_once_by_many_who_start_together(self) -> None:
        stores = [self.database.make_store() for _ in range(8)]
        self._stores += stores
        barrier = threading.Barrier(8, timeout=60)

        def start(store: ClaimingStore) -> list[Outcome]:
            barrier.wait()
            store.open()
            return store.add([make_row("a")])

        with ThreadPoolExecutor(8) as pool:
            outcomes = [outcome for (outcome,) in pool.map(start, stores)]
        assert sorted(outcomes, key=lambda outcome: outcome.name) == [CONFLICT] * 7 + [OK]
        assert self.database.run(f"SELECT count(*) FROM {self.database.versions}") == [(1,)]

    def test_tables_are_not_made_if_that_is_forbidden(self) -> None:
        with pytest.raises(SchemaMismatch, match=r"no lease tables.*may not be created here"):
            self.open(skip_table_creation=True)
        self.open().add([make_row("a")])
        assert self.open(skip_table_creation=True).get([make_row("a").id]) == [make_row("a")]

    def test_tables_of_somebody_else_are_refused(self) -> None:
        self.database.run(f"CREATE TABLE {self.database.table} (landlord int)")
        with pytest.raises(StoreError):
            self.open().find(Query(PIPELINE))

    def test_tables_that_vanish_are_reported(self) -> None:
        store = self.open()
        self.database.run(f"DROP TABLE {self.database.table}")
        with pytest.raises(SchemaMismatch, match="not those of holdfast"):
            store.find(Query(PIPELINE))
        with pytest.raises(SchemaMismatch, match="not those of holdfast"):
            store.add([make_row("a")])

    def test_nodes_of_this_version_work_on_tables_of_the_next_and_lose_nothing_of_it(self) -> None:
        store = self.open()
        store.add([make_row("a", state={"n": 1}), make_row("b")])
        self.become_next_version()
        body = self.body_of("a").removesuffix("}") + ',"flavour":{"of":"the next version"}}'
        changes = f'UPDATE {self.database.table} SET "flavour" = %s, "body" = %s WHERE "key" = %s'
        self.database.run(changes, values=("vanilla", body, "a"))
        for handle in (store, self.open()):
            assert [lease.key for lease in handle.claim(request(1))] == ["a"]
            (row,) = handle.get([make_row("a").id])
            assert row is not None
            assert row.extra == {"flavour": {"of": "the next version"}}
            free = transitions.release(row, handle.now())
            assert handle.swap([Swap(row.version, transitions.stamped(row, free, "w"))]) == [OK]
        assert store.add([make_row("c")]) == [OK]
        found = f'SELECT "key", "flavour" FROM {self.database.table} ORDER BY "key"'
        rows = [(_text(key), flavour and _text(flavour)) for key, flavour in self.database.run(found)]
        assert rows == [("a", "vanilla"), ("b", None), ("c", None)]
        (kept,) = store.get([make_row("a").id])
        assert kept is not None
        assert (kept.extra, kept.progress.state) == ({"flavour": {"of": "the next version"}}, {"n": 1})

    def become_next_version(self, oldest: int = 1) -> None:
        """What the next version would do to the tables."""
        self.database.run(f'ALTER TABLE {self.database.table} ADD COLUMN "flavour" varchar(100)')
        self.database.run(f'UPDATE {self.database.versions} SET "version" = 2, "oldest" = %s', values=(oldest,))

    @pytest.mark.parametrize("skip", [False, True])
    def test_tables_that_only_a_newer_holdfast_can_use_are_refused(self, skip: bool) -> None:
        self.open()
        self.become_next_version(oldest=2)
        with pytest.raises(SchemaMismatch, match="newer holdfast"):
            self.open(skip_table_creation=skip)

    # --- settings ----------------------------------------------------------------------------------------------

    def test_a_url_can_take_the_place_of_the_parts(self) -> None:
        scheme = {"postgres": "postgresql", "tests": "mysql"}[self.database.name]
        word = PASSWORD.replace("'", "%27").replace(" ", "%20")
        address = f"127.0.0.1:{self.database.server.port}/{self.database.name}"
        config = self.database.config(
            url=f"{scheme}://{self.database.server.user}:{word}@{address}", table_prefix=self.database.prefix
        )
        store: ClaimingStore = self.database.store(config)
        self._stores.append(store)
        assert store.add([make_row("a")]) == [OK]

    def test_a_name_that_is_too_long_is_refused_and_not_cut(self) -> None:
        store = self.open()
        with pytest.raises(StoreError):
            store.add([make_row("a"), make_row("ok", pipeline=random.Random(1).randbytes(9000).hex())])
        assert store.find(Query(PIPELINE)) == []


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
