"""The remembered head of the queue: cheap for those who claim much, and never a position where leases are forgotten."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from holdfast.leases import transitions
from holdfast.leases.lease import Lease, Status
from holdfast.leases.query import Query
from holdfast.leases.store import Outcome, Swap
from holdfast.stores.postgresql import claims
from holdfast.stores.postgresql.claims import Head, QueuePosition
from holdfast.stores.postgresql.store import PostgresqlStore
from holdfast.testing.rows import PIPELINE, assigned_row, make_row
from tests.servers.databases import Postgresql, request
from tests.servers.processes import PostgresqlServer

FEW, SOON = 10, 0.4


@pytest.fixture
def database(postgresql_server: PostgresqlServer) -> Postgresql:
    return Postgresql(postgresql_server)


@pytest.fixture
def handle(database: Postgresql) -> Iterator[Callable[[], PostgresqlStore]]:
    stores: list[PostgresqlStore] = []

    def open_one() -> PostgresqlStore:
        stores.append(PostgresqlStore(database.settings()))
        stores[-1].open()
        return stores[-1]

    yield open_one
    for store in stores:
        store.close()


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claims, "WORTH_REMEMBERING", FEW)
    monkeypatch.setattr(claims, "LOOK_EVERY", SOON)


@pytest.fixture
def busy(handle: Callable[[], PostgresqlStore]) -> PostgresqlStore:
    """A store that has claimed so much that it goes on from the head."""
    store = handle()
    store.add([make_row(f"{number:04d}", ordinal=number) for number in range(3000)])
    assert len(store.claim(request(FEW))) == FEW
    return store


def claim_until(store: PostgresqlStore, key: str) -> float:
    """Claim one by one until this lease is among them; answers how long that took. The queue must not run dry."""
    started = time.monotonic()
    while True:
        (lease,) = store.claim(request())
        if lease.key == key:
            return time.monotonic() - started


def free(store: PostgresqlStore, key: str) -> None:
    """Hand a lease back."""
    (row,) = store.get([make_row(key).id])
    assert row is not None
    released = transitions.stamped(row, transitions.release(row, store.now()), "released")
    assert store.swap([Swap(row.version, released)]) == [Outcome.OK]


def test_claims_go_on_behind_the_last_one(busy: PostgresqlStore) -> None:
    assert [lease.key for _ in range(5) for lease in busy.claim(request())] == [f"{FEW + n:04d}" for n in range(5)]
    assert [lease.key for lease in busy.claim(request(100))] == [f"{FEW + 5 + n:04d}" for n in range(100)]


def test_a_lease_that_another_node_hands_back_is_found_within_one_look(
    busy: PostgresqlStore, handle: Callable[[], PostgresqlStore]
) -> None:
    free(handle(), "0003")
    assert claim_until(busy, "0003") < SOON + 1.0
    assert busy.count(PIPELINE)[Status.UNASSIGNED] > 0


def test_a_lease_whose_owner_is_gone_is_found_within_one_look(
    busy: PostgresqlStore, handle: Callable[[], PostgresqlStore]
) -> None:
    handle().add([assigned_row("orphan", "dead", due_at=1.0), make_row("asleep", status=Status.CLOSED, due_at=1.0)])
    assert claim_until(busy, "orphan") < SOON + 1.0
    assert claim_until(busy, "asleep") < SOON + 1.0


def test_a_lease_whose_time_comes_is_found_within_one_look(
    busy: PostgresqlStore, handle: Callable[[], PostgresqlStore]
) -> None:
    handle().add([make_row("later", priority=9, due_at=busy.now() + 0.2)])
    assert claim_until(busy, "later") < 0.2 + SOON + 1.0


def test_what_this_node_hands_back_it_finds_at_once(busy: PostgresqlStore) -> None:
    busy.claim(request())
    free(busy, "0003")
    assert [lease.key for lease in busy.claim(request())] == ["0003"]
    assert [lease.key for lease in busy.claim(request())] == ["0011"]


@pytest.mark.parametrize(
    "row",
    [
        make_row("urgent", priority=1, ordinal=9999),
        make_row("early", ordinal=-1),
        make_row("asleep", status=Status.CLOSED, due_at=1.0),
        assigned_row("orphan", "dead", due_at=1.0),
    ],
    ids=lambda row: row.key,
)
def test_what_this_node_adds_before_the_head_it_finds_at_once(busy: PostgresqlStore, row: Lease) -> None:
    busy.claim(request())
    busy.add([row])
    assert [lease.key for lease in busy.claim(request())] == [row.key]


def test_the_next_priority_follows_when_one_is_used_up(handle: Callable[[], PostgresqlStore]) -> None:
    store = handle()
    store.add([make_row(f"{p}{n}", priority=p, ordinal=n) for p in (1, 2) for n in range(FEW)])
    taken = [lease.key for _ in range(2 * FEW) for lease in store.claim(request())]
    assert taken == [f"{p}{n}" for p in (2, 1) for n in range(FEW)]
    assert store.claim(request()) == []


def test_nothing_is_forgotten_when_leases_come_and_go(
    busy: PostgresqlStore, handle: Callable[[], PostgresqlStore]
) -> None:
    other = handle()
    for key in ("0001", "0007"):
        free(other, key)
    while busy.claim(request(100)):
        pass
    assert busy.count(PIPELINE) == {Status.ASSIGNED: 3000}
    assert {row.token for row in busy.find(Query(PIPELINE)) if row.key in ("0001", "0007")} == {2}


def test_a_claim_from_the_head_does_not_walk_over_what_was_claimed_before(
    busy: PostgresqlStore, database: Postgresql
) -> None:
    database.run(f"ALTER TABLE {database.table} SET (autovacuum_enabled = off)")
    for _ in range(20):
        assert len(busy.claim(request(100))) == 100
    position = busy._heads[PIPELINE, ""]._last
    assert position is not None
    assert position.key == "2009"
    look, head = busy._look(request().order), busy._claims.head
    assert pages(busy, head, position) < pages(busy, look, None) / 3


def pages(store: PostgresqlStore, text: str, position: QueuePosition | None) -> int:
    """How many pages a claim looks at."""
    values = [PIPELINE.encode(), b"", b"1", b"o", None, b'"w"']
    if position is not None:
        values += [b"%d" % position.priority, b"%d" % position.ordinal, position.key.encode()]
    with store._connections.lent() as db:
        ((plan,),) = db.run_prepared(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {text}", values)
    plan = plan if isinstance(plan, list) else json.loads(plan)
    return int(plan[0]["Plan"]["Shared Hit Blocks"])


# --- the rule itself -------------------------------------------------------------------------------------------------


def used(**claims: Any) -> Head:
    head = Head()
    head.looked(**{"number": FEW, "last": QueuePosition(0, 5, "k"), "started": 10.0, "now": 10.0, **claims})
    return head


def test_few_claims_are_not_worth_it() -> None:
    assert used(number=FEW - 1).position(10.1) is None
    assert used().position(10.1) == QueuePosition(0, 5, "k")


def test_a_look_is_due_after_a_while() -> None:
    assert used().position(10.0 + SOON) is None


def test_a_look_that_takes_long_is_done_less_often_but_often_enough() -> None:
    assert used(now=10.1).position(12.0) == QueuePosition(0, 5, "k")
    assert used(now=10.1).position(12.2) is None
    assert used(now=19.0).position(23.9) == QueuePosition(0, 5, "k")
    assert used(now=19.0).position(24.1) is None


def test_a_claim_that_found_no_unassigned_lease_makes_the_next_one_look() -> None:
    head = used()
    head.went_on(0, None)
    assert head.position(10.1) is None


@pytest.mark.parametrize(
    ("row", "forgotten"),
    [
        (make_row("k", ordinal=5), True),
        (make_row("j", ordinal=5), True),
        (make_row("z", ordinal=4), True),
        (make_row("z", ordinal=9, priority=1), True),
        (make_row("l", ordinal=5), False),
        (make_row("a", ordinal=4, priority=-1), False),
        (assigned_row("a", "me"), False),
        (assigned_row("a", "me", due_at=1.0), True),
        (make_row("a", status=Status.CLOSED, due_at=9e9), True),
        (make_row("a", status=Status.COMPLETED, due_at=None), False),
    ],
)
def test_own_writes_before_the_place_make_the_next_claim_look(row: Lease, forgotten: bool) -> None:
    head = used()
    head.written(row)
    assert (head.position(10.1) is None) == forgotten
