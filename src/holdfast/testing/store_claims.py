"""What a store must do when leases are claimed, one at a time or by many at once. Part of `StoreBehaviour`."""

from __future__ import annotations

import multiprocessing
import threading
from collections.abc import Callable
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest

from holdfast.leases.coordinator import ClaimPolicy, Coordinator
from holdfast.leases.lease import Lease, Status
from holdfast.leases.query import Query
from holdfast.leases.session import NodeInfo, Session, SessionTiming
from holdfast.leases.store import ClaimingStore, ClaimRequest, Outcome, Store, Swap
from holdfast.leases.transitions import complete, stamped, take
from holdfast.testing.rows import ODD_TEXTS, PIPELINE, assigned_row, make_row, touched
from holdfast.testing.store_setting import StoreSetting, restless_threads
from holdfast.testing.worlds import make_world

CLAIMERS = 8
MANY = 10_000
BATCH = 125


class ClaimBehaviour(StoreSetting):
    """Leases are taken in order of claim, each by one owner, whether the store claims in one step or not."""

    many: int = MANY
    """Number of leases for which many processes race; fewer if each costs a request."""

    def claim(self, limit: int = 100, owner: str = "me", **settings: Any) -> list[Lease]:
        """Claim through the store's own `claim`, or by find and swap where it has none."""
        request = replace(ClaimRequest(PIPELINE, owner, f"claim by {owner}", limit), **settings)
        return claim_through(self.store, request)

    def claimed(self, limit: int = 100, **settings: Any) -> list[str]:
        """Keys of the claimed leases, in order."""
        return [lease.key for lease in self.claim(limit, **settings)]

    def add_one_of_each(self) -> None:
        """Rows of every kind: a and c and u can be claimed, in the order of their numbers; the others cannot."""
        now = self.store.now()
        self.store.add(
            [
                make_row("u3", priority=1, ordinal=8),
                make_row("u1", priority=2, ordinal=9),
                make_row("u2", priority=1, ordinal=7),
                make_row("c2", status=Status.CLOSED, due_at=now - 5),
                make_row("c1", status=Status.CLOSED, due_at=now - 50),
                assigned_row("a2", "dead", due_at=now - 5),
                assigned_row("a1", "dead", due_at=now - 50),
                assigned_row("held", "alive"),
                assigned_row("held until", "alive", due_at=now + 999),
                make_row("not yet", priority=9, due_at=now + 999),
                make_row("asleep", status=Status.CLOSED, due_at=now + 999),
                make_row("done", status=Status.COMPLETED, due_at=None),
                make_row("failed", status=Status.FAILED, due_at=None),
                make_row("other run", run="1"),
                make_row("other pipeline", pipeline="other"),
            ]
        )

    def test_expired_then_closed_then_unassigned_by_priority_and_ordinal(self) -> None:
        self.add_one_of_each()
        assert self.claimed() == ["a1", "a2", "c1", "c2", "u1", "u2", "u3"]
        assert self.claimed() == []

    def test_closed_last_puts_unassigned_before_closed(self) -> None:
        self.add_one_of_each()
        assert self.claimed(closed_last=True) == ["a1", "a2", "u1", "u2", "u3", "c1", "c2"]

    @pytest.mark.parametrize("limit", [1, 2, 3, 5])
    def test_a_limit_cuts_the_same_order(self, limit: int) -> None:
        self.add_one_of_each()
        order: list[str] = []
        while batch := self.claimed(limit):
            assert len(batch) <= limit
            order += batch
        assert order == ["a1", "a2", "c1", "c2", "u1", "u2", "u3"]
        assert self.claimed(0) == []

    def test_only_rows_of_that_pipeline_and_run_are_claimed(self) -> None:
        self.add_one_of_each()
        assert self.claimed(run="1") == ["other run"]
        assert self.claimed(pipeline="other") == ["other pipeline"]
        assert self.claimed(pipeline="none") == []

    def test_claims_with_odd_names(self) -> None:
        texts = [text for text in ODD_TEXTS if len(text) < 100]
        self.store.add([make_row(text, pipeline=text, run=text) for text in texts])
        for text in texts:
            (lease,) = self.claim(owner=text, pipeline=text, run=text)
            assert (lease.key, lease.owner) == (text, text)

    def test_a_claim_is_what_take_makes_of_the_row(self) -> None:
        row = assigned_row("a", "dead", due_at=1.0, state={"n": 1}, version=7, takeovers=2, started_at=3.0)
        self.store.add([row])
        before = self.store.now()
        (lease,) = self.claim(ownership_timeout=60.0)
        now = lease.history.claimed_at
        assert now is not None
        assert before <= now <= self.store.now()
        assert lease == stamped(row, take(row, "me", now, now + 60.0), "claim by me")
        assert (lease.token, lease.version, lease.history.takeovers) == (row.token + 1, 8, 3)
        assert self.row("a") == lease

    def test_a_claim_without_timeout_has_no_deadline(self) -> None:
        self.store.add([make_row("a")])
        (lease,) = self.claim()
        assert lease.ownership.due_at is None
        assert self.found_due() == []

    def test_a_deadline_that_has_passed_makes_the_lease_claimable(self) -> None:
        self.store.add([make_row("a")])
        assert self.claimed(ownership_timeout=2 * self.tick) == ["a"]
        assert self.claimed(owner="you") == []
        self.pass_time(3 * self.tick)
        (lease,) = self.claim(owner="you")
        assert (lease.owner, lease.token) == ("you", 2)

    def test_a_row_that_was_handed_back_can_be_claimed_again(self) -> None:
        self.store.add([make_row("a"), make_row("b")])
        (first,) = self.claim(1)
        freed = replace(first, ownership=replace(first.ownership, status=Status.UNASSIGNED, owner=None, due_at=0.0))
        self.store.swap([Swap(first.version, stamped(first, freed, "freed"))])
        assert self.claimed() == ["a", "b"]
        assert self.row("a").token == 2

    def test_a_completed_row_is_never_claimed_again(self) -> None:
        self.store.add([make_row("a")])
        (lease,) = self.claim()
        self.store.swap([Swap(lease.version, stamped(lease, complete(lease, 1.0), "done"))])
        assert self.claimed() == []

    def test_a_row_that_waits_does_not_block_those_behind_it(self) -> None:
        later = self.store.now() + 2 * self.tick
        self.store.add([make_row(f"w{n}", priority=9, due_at=later) for n in range(20)])
        self.store.add([make_row("a")])
        assert self.claimed(1) == ["a"]
        self.pass_time(3 * self.tick)
        assert len(self.claimed()) == 20

    def test_a_row_at_the_size_limit_can_be_claimed(self) -> None:
        size = self.store.max_body_bytes - 300
        self.store.add([make_row("a", spec={"text": "x" * size})])
        assert self.claimed() == ["a"]

    def test_each_of_many_leases_is_claimed_exactly_once_by_many_processes(self) -> None:
        self.store.add([make_row(f"{number:05d}", ordinal=number) for number in range(self.many)])
        owners = [f"owner {number}" for number in range(CLAIMERS)]
        with self.claimers() as pool, restless_threads():
            factory = self.child_factory() or self.make_store
            work = [pool.submit(claim_all, factory, PIPELINE, owner, BATCH) for owner in owners]
            claims = [(owner, key) for owner, task in zip(owners, work, strict=True) for key in task.result()]
        assert len(claims) == self.many
        owner_of = {key: owner for owner, key in claims}
        rows = self.store.find(Query(PIPELINE))
        assert {row.key: row.owner for row in rows} == owner_of
        assert {row.token for row in rows} == {1}

    def test_of_many_threads_that_write_one_row_one_wins(self) -> None:
        rows = [make_row(f"{number:03d}") for number in range(100)]
        handles = [self.store, self.another_store()] * (CLAIMERS // 2)
        barrier = threading.Barrier(CLAIMERS)

        def race(call: Callable[[Store, str], list[Outcome]]) -> list[str]:
            names = [f"thread {number}" for number in range(CLAIMERS)]
            with ThreadPoolExecutor(CLAIMERS) as pool, restless_threads():
                results = list(pool.map(call, handles, names))
            winners = [[name for name, outcome in zip(names, of_row, strict=True) if outcome is Outcome.OK]
                       for of_row in zip(*results, strict=True)]  # fmt: skip
            assert {len(names) for names in winners} == {1}
            return [name for (name,) in winners]

        def add(store: Store, name: str) -> list[Outcome]:
            barrier.wait()
            return [store.add([touched(row, name)])[0] for row in rows]

        def swap(store: Store, name: str) -> list[Outcome]:
            barrier.wait()
            return [store.swap([Swap(1, touched(touched(row), name))])[0] for row in rows]

        for call in (add, swap):
            winners = race(call)
            assert [row.ownership.write_id for row in self.store.find(Query(PIPELINE))] == winners

    def claimers(self) -> Executor:
        """Processes if the table can be shared by them, else threads."""
        if self.child_factory() is None:
            return ThreadPoolExecutor(CLAIMERS)
        # Never a fork of this process, whose clients have threads; where there is a server that forks, it is quicker.
        method = "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"
        return ProcessPoolExecutor(CLAIMERS, mp_context=multiprocessing.get_context(method))

    def found_due(self) -> list[Lease]:
        """The rows that can be claimed now."""
        return self.store.find(Query(PIPELINE, due=True))


def claim_through(store: Store, request: ClaimRequest) -> list[Lease]:
    """The leases that the request takes, by the store's `claim` or by the coordinator's find and swap."""
    if isinstance(store, ClaimingStore):
        return store.claim(request)
    return claimer(store, request)._find_and_swap(request)  # noqa: SLF001 - the step that a claiming store replaces


def claimer(store: Store, request: ClaimRequest) -> Coordinator:
    """A coordinator whose claims are equivalent to this request."""
    world = make_world(request.owner, seed=len(request.owner) + ord(request.owner[-1:] or "0"))
    policy = ClaimPolicy(closed_last=request.closed_last, ownership_timeout=request.ownership_timeout)
    session = Session(store, world, "$nodes", NodeInfo("node", request.owner), SessionTiming())
    return Coordinator(store, world, session, request.pipeline, run=request.run, policy=policy)


def claim_all(factory: Callable[[], Store], pipeline: str, owner: str, batch: int) -> list[str]:
    """Claim until nothing is left; returns the keys. Runs in a separate process."""
    store = factory()
    store.open()
    keys: list[str] = []
    number = 0
    try:
        node = claimer(store, ClaimRequest(pipeline, owner, ""))
        while not _all_taken(store, pipeline):
            number += 1
            request = ClaimRequest(pipeline, owner, f"{owner} {number}", batch)
            claim = store.claim if isinstance(store, ClaimingStore) else node._find_and_swap  # noqa: SLF001
            keys += [lease.key for lease in claim(request)]
    finally:
        store.close()
    return keys


def _all_taken(store: Store, pipeline: str) -> bool:
    # A claim that lost every race to others returns nothing although there is work left.
    return Status.UNASSIGNED not in store.count(pipeline)
