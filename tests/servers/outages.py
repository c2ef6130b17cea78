"""What a store must do when its server goes, hangs, or does not answer. Part of `ServerStoreBehaviour`."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest

from holdfast.errors import AnswerLost, LeaseLost, StoreUnavailable
from holdfast.leases import transitions
from holdfast.leases.coordinator import ClaimPolicy, Coordinator
from holdfast.leases.lease import FINISHED, Lease, Status
from holdfast.leases.query import Query
from holdfast.leases.session import NodeInfo, Session, SessionTiming
from holdfast.leases.store import ClaimingStore, Outcome, Store, Swap
from holdfast.leases.transitions import Advance
from holdfast.testing.rows import PIPELINE, make_row, touched
from holdfast.testing.worlds import TurnableClock, make_world
from tests.servers.databases import Database, request
from tests.servers.proxy import Proxy

OK, UNKNOWN = Outcome.OK, Outcome.UNKNOWN


class OutageBehaviour:
    """Nothing is lost and nothing is guessed. Subclasses give the database."""

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
        total, nodes = 240, 4
        self.open().add([make_row(f"{number:03d}", ordinal=number) for number in range(total)])
        first_done = threading.Barrier(nodes + 1, timeout=60)

        def work(number: int) -> list[Lease]:
            node = self.node(f"node {number}")
            done = self.finish(node, node.claim(7))
            first_done.wait()
            while any(status not in FINISHED for status in node.counts()):
                done += self.finish(node, node.claim(7) or node.owned())
            return done

        with ThreadPoolExecutor(nodes) as pool:
            results = [pool.submit(work, number) for number in range(nodes)]
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
