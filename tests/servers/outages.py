"""What a store must do when its database server crashes and restarts. Part of `ServerStoreBehaviour`."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from holdfast.errors import LeaseLost
from holdfast.leases import transitions
from holdfast.leases.coordinator import ClaimPolicy, Coordinator
from holdfast.leases.lease import FINISHED, Lease, Status
from holdfast.leases.query import Query
from holdfast.leases.session import NodeInfo, Session, SessionTiming
from holdfast.leases.store import ClaimingStore, Outcome, Store, Swap
from holdfast.leases.transitions import Advance
from holdfast.testing import OutageBehaviour
from holdfast.testing.rows import PIPELINE, make_row, touched
from holdfast.testing.worlds import TurnableClock, make_world
from tests.servers.databases import Database

OK = Outcome.OK


class DatabaseOutageBehaviour(OutageBehaviour):
    """Outages of a database server. Subclasses give the database."""

    database: Database

    def make_store(self, port: int) -> Store:
        return self.database.make_store(port=port, statement_timeout=1.0, connect_timeout=1.0)

    def make_store_with_wrong_password(self, port: int, password: str) -> Store:
        return self.database.make_store(port=port, password=password)

    def open(self, **changes: Any) -> ClaimingStore:
        """A store on the test's tables, opened."""
        store = self.database.make_store(**changes)
        self._stores.append(store)
        store.open()
        return store

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
