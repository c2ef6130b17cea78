"""What a store on a server must do beyond the behaviour suite: when the server goes, hangs, or does not answer."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from holdfast.errors import AnswerLost, LeaseLost, SchemaMismatch, StoreError, StoreUnavailable
from holdfast.leases import transitions
from holdfast.leases.coordinator import ClaimPolicy, Coordinator
from holdfast.leases.lease import FINISHED, Key, Lease, Status
from holdfast.leases.session import NodeInfo, Session, SessionTiming
from holdfast.leases.store import ClaimingStore, ClaimRequest, Outcome, Query, Store, Swap
from holdfast.leases.transitions import Advance, take
from holdfast.testing.rows import PIPELINE, assigned_row, make_row, touched
from holdfast.testing.worlds import TurnableClock, make_world
from tests.servers.databases import Database
from tests.servers.processes import PASSWORD
from tests.servers.proxy import Proxy

OK, CONFLICT, UNKNOWN = Outcome.OK, Outcome.CONFLICT, Outcome.UNKNOWN


def request(limit: int = 1, **changes: Any) -> ClaimRequest:
    return replace(ClaimRequest(PIPELINE, "me", "claim", limit), **changes)


class ServerStoreBehaviour:
    """Subclasses give the database."""

    database: Database
    _stores: list[Store]

    @pytest.fixture(autouse=True)
    def _stores_are_closed(self) -> Iterator[None]:
        self._stores = []
        yield
        for store in self._stores:
            store.close()

    def open(self, **changes: Any) -> ClaimingStore:
        """A store on the test's tables, opened."""
        store = self.database.make_store(**changes)
        self._stores.append(store)
        store.open()
        return store

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
        store.add([make_row("a", due_at=store.now() + 0.5), make_row("b", due_at=store.now() + 999)])
        assert store.claim(request(9)) == store.find(Query(PIPELINE, due=True)) == []
        time.sleep(0.7)
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
            assert time.monotonic() - started < 1.0
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

    # --- a server that goes and comes --------------------------------------------------------------------------

    def every_call(self, store: ClaimingStore) -> list[Callable[[], Any]]:
        row = make_row("a")
        return [
            store.now,
            lambda: store.add([row]),
            lambda: store.get([row.id]),
            lambda: store.find(Query(PIPELINE)),
            lambda: store.snapshot(PIPELINE, "$nodes"),
            lambda: store.swap([Swap(0, row)]),
            lambda: store.remove([row]),
            lambda: store.count(PIPELINE),
            lambda: store.claim(request()),
        ]

    def test_a_server_that_is_away_is_unavailable_and_then_works_again(self) -> None:
        store = self.open(connect_timeout=2.0)
        store.add([make_row("a")])
        self.database.server.stop()
        try:
            for call in self.every_call(store):
                with pytest.raises(StoreUnavailable, match=str(self.database.server.port)) as caught:
                    call()
                assert not isinstance(caught.value, AnswerLost)
        finally:
            self.database.server.start()
        assert [row.key for row in store.find(Query(PIPELINE))] == ["a"]
        assert [lease.key for lease in store.claim(request())] == ["a"]

    def test_a_restart_that_nobody_was_there_to_see_costs_nothing(self) -> None:
        store = self.open()
        store.add([make_row("a")])
        self.database.server.crash()
        self.database.server.start()
        time.sleep(1.1)
        assert store.swap([Swap(0, touched(make_row("a")))]) == [OK]

    def test_nodes_wait_for_a_server_that_restarts_and_lose_nothing(self) -> None:
        total, per_node = 240, 4
        self.open().add([make_row(f"{number:03d}", ordinal=number) for number in range(total)])
        first_done = threading.Barrier(per_node + 1)

        def work(number: int) -> list[Lease]:
            node = self.node(f"node {number}")
            done = self.finish(node, node.claim(7))
            first_done.wait()
            while any(status not in FINISHED for status in node.counts()):
                done += self.finish(node, node.claim(7) or node.owned())
            return done

        with ThreadPoolExecutor(per_node) as pool:
            results = [pool.submit(work, number) for number in range(per_node)]
            first_done.wait()
            self.database.server.crash()
            time.sleep(0.5)
            self.database.server.start()
            done = [lease for result in results for lease in result.result()]
        assert len({lease.key for lease in done}) == len(done) == total
        rows = self.open().find(Query(PIPELINE))
        assert {(row.status, row.commit.sequence, row.token) for row in rows} == {(Status.COMPLETED, 1, 1)}
        assert len(rows) == total

    def node(self, name: str) -> Coordinator:
        """A node that really waits, but not for long."""
        clock = TurnableClock()
        clock.on_wait = lambda: time.sleep(0.05)
        world = make_world(name, clock=clock)
        store = self.open()
        session = Session(store, world, "$nodes", NodeInfo(name, name), SessionTiming())
        session.join()
        return Coordinator(store, world, session, PIPELINE, policy=ClaimPolicy())

    def finish(self, node: Coordinator, batch: list[Lease]) -> list[Lease]:
        """Commit and complete each lease, as often as it takes; nobody else may have it."""
        changes = [(lease, self.commit_of(lease)) for lease in batch]
        committed = [row for row in node.write_each(changes) if not isinstance(row, LeaseLost)]
        finished = [row for row in node.write(committed, transitions.complete) if not isinstance(row, LeaseLost)]
        assert len(finished) == len(batch)
        return finished

    def commit_of(self, lease: Lease) -> Callable[[Lease], Lease]:
        advance = Advance("only one", {"done": lease.key}, {})
        return lambda row: transitions.commit(row, advance, lease, 1.0)

    def test_a_server_that_hangs_is_not_waited_for_for_ever(self) -> None:
        store = self.open(statement_timeout=1.0, connect_timeout=1.0)
        store.add([make_row("a"), make_row("b")])
        self.database.server.freeze()
        try:
            started = time.monotonic()
            with pytest.raises(StoreUnavailable):
                store.find(Query(PIPELINE))
            with pytest.raises(StoreUnavailable):
                store.claim(request())
            assert time.monotonic() - started < 8.0
        finally:
            self.database.server.thaw()
        assert len(store.find(Query(PIPELINE))) == 2
        assert store.add([make_row("c")]) == [OK]

    # --- lost answers ------------------------------------------------------------------------------------------

    commit: bytes
    """What is in the request that makes a write final."""

    @contextmanager
    def through_a_proxy(self) -> Iterator[tuple[ClaimingStore, Proxy]]:
        with Proxy(self.database.server.port) as proxy:
            store = self.open(port=proxy.port)
            yield store, proxy
            store.close()

    @pytest.mark.parametrize(("delivered", "withheld"), [(True, 1 << 16), (True, 3), (False, 0)])
    def test_a_commit_without_an_answer_is_unknown_never_a_conflict(self, delivered: bool, withheld: int) -> None:
        row = make_row("a")
        with self.through_a_proxy() as (store, proxy):
            proxy.cut(self.commit, delivered=delivered, withheld=withheld)
            assert store.add([row, make_row("b")]) == [UNKNOWN, UNKNOWN]
            self.eventually(lambda: len(store.find(Query(PIPELINE))) == (2 if delivered else 0))
            store.add([row, make_row("b")])
            proxy.cut(self.commit, delivered=delivered, withheld=withheld)
            assert store.swap([Swap(0, touched(row, "mine"))]) == [UNKNOWN]
            self.eventually(lambda: store.find(Query(PIPELINE))[0].version == (1 if delivered else 0))
            proxy.cut(self.commit, delivered=delivered, withheld=withheld)
            assert store.remove([make_row("b")]) == [UNKNOWN]
            self.eventually(lambda: len(store.find(Query(PIPELINE))) == (1 if delivered else 2))

    @pytest.mark.parametrize("delivered", [True, False])
    def test_a_claim_without_an_answer_is_told_and_found_again(self, delivered: bool) -> None:
        with self.through_a_proxy() as (store, proxy):
            store.add([make_row("a")])
            proxy.cut(self.commit, delivered=delivered)
            with pytest.raises(AnswerLost):
                store.claim(request())
            self.eventually(lambda: len(store.find(Query(PIPELINE, owner="me"))) == (1 if delivered else 0))

    def eventually(self, holds: Callable[[], bool]) -> None:
        """The server may still be at work when the line is cut."""
        give_up_at = time.monotonic() + 5.0
        while not holds():
            assert time.monotonic() < give_up_at
            time.sleep(0.02)

    # --- tables ------------------------------------------------------------------------------------------------

    def test_tables_are_made_once_by_many_who_start_together(self) -> None:
        stores = [self.database.make_store() for _ in range(8)]
        self._stores += stores
        together = threading.Barrier(8)

        def start(store: ClaimingStore) -> list[Outcome]:
            together.wait()
            store.open()
            return store.add([make_row("a")])

        with ThreadPoolExecutor(8) as pool:
            outcomes = [outcome for (outcome,) in pool.map(start, stores)]
        assert sorted(outcomes, key=lambda one: one.name) == [CONFLICT] * 7 + [OK]
        assert self.database.run(f"SELECT count(*) FROM {self.database.versions}") == [(1,)]

    def test_tables_are_not_made_if_that_is_forbidden(self) -> None:
        with pytest.raises(SchemaMismatch, match=r"no lease tables.*nothing is created here"):
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
        for one in (store, self.open()):
            assert [lease.key for lease in one.claim(request(1))] == ["a"]
            (row,) = one.get([make_row("a").id])
            assert row is not None
            assert row.extra == {"flavour": {"of": "the next version"}}
            free = transitions.release(row, one.now())
            assert one.swap([Swap(row.version, transitions.stamped(row, free, "w"))]) == [OK]
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

    def test_a_wrong_password_is_told_without_it(self) -> None:
        with pytest.raises((StoreError, StoreUnavailable)) as caught:
            self.open(password="wrong and secret")
        assert "secret" not in str(caught.value)

    def test_a_url_can_take_the_place_of_the_parts(self) -> None:
        scheme = {"postgres": "postgresql", "tests": "mysql"}[self.database.name]
        word = PASSWORD.replace("'", "%27").replace(" ", "%20")
        place = f"127.0.0.1:{self.database.server.port}/{self.database.name}"
        config = self.database.config(
            url=f"{scheme}://{self.database.server.user}:{word}@{place}", table_prefix=self.database.prefix
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
