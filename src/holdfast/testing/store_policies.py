"""What must hold for sessions, sweeps, lost responses and rows that cannot be read. Part of `StoreBehaviour`."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from holdfast.errors import PartitionNotOwned, SessionExpired
from holdfast.events import NodeExpired, PartitionHalted, PartitionOrphaned
from holdfast.leases import transitions
from holdfast.leases.coordinator import ClaimPolicy, Coordinator
from holdfast.leases.lease import Counts, History, Key, Lease, Order, Partition, Progress, Status
from holdfast.leases.operator import Operator
from holdfast.leases.query import Query
from holdfast.leases.session import NodeInfo, Session, SessionTiming, nodes_of
from holdfast.leases.source_coordinator import SourceCoordinator
from holdfast.leases.store import ClaimingStore, Store
from holdfast.leases.sums import summed, sums
from holdfast.leases.transitions import Advance
from holdfast.testing.faults import Fault, LossyStore, LossyTable, PlainStore
from holdfast.testing.rows import PIPELINE, assigned_row, make_row
from holdfast.testing.store_setting import StoreSetting
from holdfast.testing.worlds import FakeWorld, TurnableClock, make_world

HOUR = 3600.0
NOT_UTF8 = b'{"v": 1, "spec": {"path": "caf\xe9\xff"}}'


@dataclass(frozen=True)
class Member:
    """One node of a fleet, with a clock of its own."""

    world: FakeWorld
    session: Session
    leases: Coordinator

    def keys(self, limit: int = 100) -> list[str]:
        """Claim, and return the keys."""
        return [lease.key for lease in self.leases.claim(limit)]

    def commit(self, lease: Lease, number: int) -> Lease:
        """Commit position `number`; the lease must still be this node's."""
        advance = Advance(f"commit {number}", {"offset": number}, {"files": [number]})
        (written,) = self.leases.write([lease], lambda row, now: transitions.commit(row, advance, lease, now))
        assert isinstance(written, Lease), written
        return written


class PolicyBehaviour(StoreSetting):
    """Nodes that share the store keep their leases exactly as long as they live."""

    def member(
        self, name: str, *, prefix: str = "", store: Store | None = None, clock_at: float = 0.0, joined: bool = True
    ) -> Member:
        """A node of the fleet of that prefix."""
        store = store or self.store
        world = make_world(name, clock=TurnableClock(clock_at))
        timing = SessionTiming(timeout=8 * self.tick, heartbeat=2 * self.tick, margin=self.tick)
        session = Session(store, world, nodes_of(prefix), NodeInfo(name, name, (PIPELINE,)), timing)
        if joined:
            session.join()
        pipeline = f"{prefix}|{PIPELINE}" if prefix else PIPELINE
        return Member(world, session, Coordinator(store, world, session, pipeline, policy=ClaimPolicy()))

    def source(self, member: Member, ownership_timeout: float) -> SourceCoordinator:
        """The API for source authors, on that node."""
        return SourceCoordinator(
            member.leases.store, member.world, member.session, PIPELINE, ownership_timeout=ownership_timeout
        )

    def pass_time_with_heartbeats(self, seconds: float, *members: Member) -> None:
        """Advance the store's clock while these nodes renew their sessions and sweep."""
        steps = max(1, round(seconds / (2 * self.tick)))
        for _ in range(steps):
            self.pass_time(seconds / steps)
            for member in members:
                member.world.clock.turn(seconds / steps)
                member.session.heartbeat()
                member.leases.sweep()

    # --- sessions ----------------------------------------------------------------------------------------------

    def test_partitions_are_summed_by_group_status_and_session(self) -> None:
        """A store that sums rows itself finds the same sums as a reader of all rows."""
        counted = Progress(counts=Counts(5, 3, 1, 1))
        rows = [
            replace(make_row("a", run="r"), group="t", order=Order(work_units=7, estimated_count=9), progress=counted),
            replace(make_row("b", run="r"), group="t", progress=counted),
            replace(make_row("c", run="r", status=Status.COMPLETED), group="ü", history=History(done_by="n1")),
            replace(assigned_row("d", "n1", run="r"), group="ü", progress=counted),
            replace(assigned_row("e", "n2", run="r"), group="ü", history=History(last_error="bad \ud800 text")),
            make_row("f"),
        ]
        self.store.add(rows)
        expected = summed(rows[:5])
        assert sorted(sums(self.store, PIPELINE, "r"), key=repr) == sorted(expected, key=repr)
        assert sums(self.store, PIPELINE, "none") == []

    def test_a_silent_session_ends_by_the_clock_of_the_store(self) -> None:
        a, b = self.member("a"), self.member("b")
        a.leases.create([Partition("k")])
        assert a.keys() == ["k"]
        self.pass_time_with_heartbeats(12 * self.tick, b)
        assert [event.session for event in b.world.seen(NodeExpired)] == [a.session.id]
        assert [event.key for event in b.world.seen(PartitionOrphaned)] == ["k"]
        (lease,) = b.leases.claim(1)
        assert (lease.owner, lease.token, lease.history.begun) == (b.session.id, 2, False)
        with pytest.raises(SessionExpired):
            a.session.heartbeat()
        assert not a.session.usable

    def test_a_session_that_was_ended_stays_ended(self) -> None:
        a, b = self.member("a"), self.member("b")
        self.pass_time_with_heartbeats(12 * self.tick, b)
        for _ in range(3):
            with pytest.raises(SessionExpired):
                a.session.heartbeat()
        assert self.row(a.session.id, nodes_of("")).status is Status.COMPLETED
        a.session.join()
        a.session.heartbeat()

    def test_a_session_that_is_late_but_not_yet_ended_can_still_renew(self) -> None:
        a = self.member("a")
        self.pass_time(9 * self.tick)
        a.session.heartbeat()
        self.member("b").leases.sweep()
        a.session.heartbeat()

    def test_a_node_that_leaves_is_replaced_at_once(self) -> None:
        a, b = self.member("a"), self.member("b")
        a.leases.create([Partition("k")])
        a.leases.claim(1)
        a.session.leave()
        b.leases.sweep()
        assert b.keys() == ["k"]

    def test_clocks_of_nodes_neither_steal_nor_lose_leases(self) -> None:
        ahead, behind = self.member("ahead", clock_at=HOUR), self.member("behind", clock_at=-HOUR)
        ahead.leases.create([Partition("k1"), Partition("k2")])
        (mine,), (yours,) = ahead.leases.claim(1), behind.leases.claim(1)
        for number, jump in enumerate((HOUR, -3 * HOUR, 2 * HOUR), start=1):
            ahead.world.clock.turn(jump)
            behind.world.clock.turn(-jump)
            self.pass_time_with_heartbeats(4 * self.tick, ahead, behind)
            assert ahead.keys() == behind.keys() == []
            mine, yours = ahead.commit(mine, number), behind.commit(yours, number)
            mine, yours = self.publish(ahead, mine), self.publish(behind, yours)
        assert (mine.token, mine.history.takeovers, yours.token) == (1, 0, 1)

    def publish(self, member: Member, lease: Lease) -> Lease:
        """Clear the receipts of the last commit."""
        (done,) = member.leases.write([lease], lambda row, now: transitions.published(row, lease.commit.commit_id, now))
        assert isinstance(done, Lease)
        return done

    def test_a_claim_that_lands_after_its_owner_was_swept_is_freed_by_the_next_sweep(self) -> None:
        a, b = self.member("a"), self.member("b")
        self.pass_time_with_heartbeats(12 * self.tick, b)
        b.leases.create([Partition("k")])
        (late,) = a.leases.claim(1)
        assert b.keys() == []
        b.leases.sweep()
        (lease,) = b.leases.claim(1)
        assert lease.token == late.token + 1

    def test_fleets_with_other_prefixes_never_see_each_other(self) -> None:
        x, y = self.member("x", prefix="x"), self.member("y", prefix="y")
        for member in (x, y):
            member.leases.create([Partition("k")])
        (lease,) = x.leases.claim(1)
        self.pass_time_with_heartbeats(12 * self.tick, y)
        assert self.row(x.session.id, nodes_of("x")).status is Status.ASSIGNED
        assert self.row("k", x.leases.pipeline) == lease
        assert y.keys() == ["k"]
        seen = self.store.snapshot(y.leases.pipeline, nodes_of("y"))
        assert [row.key for row in seen.sessions] == [y.session.id]
        assert [(row.pipeline, row.owner) for row in seen.leases] == [(y.leases.pipeline, y.session.id)]

    # --- deadlines of leases -----------------------------------------------------------------------------------

    def test_a_lease_past_its_own_deadline_may_be_taken_from_a_living_node(self) -> None:
        a, b = self.member("a"), self.member("b")
        mine, yours = self.source(a, 4 * self.tick), self.source(b, 99.0)
        mine.create_partitions([Partition("k")])
        assert mine.acquire_next() is not None
        mine.save_state("k", {"n": 1})
        assert yours.acquire_next() is None
        self.pass_time_with_heartbeats(6 * self.tick, a, b)
        taken = yours.acquire_next()
        assert taken is not None
        assert (taken.progress.state, taken.token) == ({"n": 1}, 2)
        with pytest.raises(PartitionNotOwned):
            mine.save_state("k", {"n": 2})
        with pytest.raises(PartitionNotOwned):
            mine.complete("k")
        assert self.row("k") == taken

    def test_saving_state_renews_the_deadline(self) -> None:
        a, b = self.member("a"), self.member("b")
        mine, yours = self.source(a, 8 * self.tick), self.source(b, 99.0)
        mine.create_partitions([Partition("k")])
        assert mine.acquire_next() is not None
        for number in range(3):
            self.pass_time_with_heartbeats(4 * self.tick, a, b)
            mine.save_state("k", number)
            assert yours.acquire_next() is None
        mine.complete("k")

    # --- lost responses -----------------------------------------------------------------------------------------

    def lossy(self) -> LossyTable:
        """The store, wrapped so that responses can be lost."""
        return LossyStore(self.store) if isinstance(self.store, ClaimingStore) else LossyTable(self.store)

    @pytest.mark.parametrize("fault", list(Fault))
    def test_a_commit_whose_answer_is_lost_is_made_exactly_once(self, fault: Fault) -> None:
        store = self.lossy()
        a = self.member("a", store=store)
        a.leases.create([Partition("k")])
        (lease,) = a.leases.claim(1)
        store.order("swap", fault, None, Fault.ANSWER_LOST)
        written = a.commit(lease, 1)
        store.deliver()
        assert (written.commit.sequence, written.progress.position) == (1, {"offset": 1})
        assert self.row("k") == written

    @pytest.mark.parametrize("fault", [fault for fault in Fault if fault is not Fault.LATE])
    def test_a_claim_whose_response_is_lost_is_found_afterwards(self, fault: Fault) -> None:
        store = self.lossy()
        a = self.member("a", store=store)
        a.leases.create([Partition("k")])
        store.order("claim" if isinstance(store, ClaimingStore) else "swap", fault)
        assert a.leases.claim(1) == []
        found = a.leases.claim(1) or a.leases.owned()
        assert [lease.key for lease in found] == ["k"]
        assert self.row("k").token == 1

    @pytest.mark.parametrize("fault", [fault for fault in Fault if fault is not Fault.LATE])
    def test_partitions_whose_answer_is_lost_are_made_and_counted_once(self, fault: Fault) -> None:
        store = self.lossy()
        a, b = self.member("a", store=store), self.member("b")
        b.leases.create([Partition("there already")])
        store.order("add", fault)
        assert a.leases.create([Partition("k1"), Partition("there already"), Partition("k2")]) == 2
        assert self.store.count(PIPELINE) == {Status.UNASSIGNED: 3}

    def test_a_store_that_is_away_for_a_while_costs_nothing_but_time(self) -> None:
        store = self.lossy()
        a = self.member("a", store=store)
        a.leases.create([Partition("k")])
        (lease,) = a.leases.claim(1)
        store.order("swap", Fault.AWAY, Fault.UNKNOWN, Fault.AWAY)
        store.order("get", Fault.AWAY, Fault.AWAY)
        store.order("now", Fault.AWAY)
        assert a.commit(lease, 1).commit.sequence == 1
        assert len(a.world.clock.waits) == 4

    def test_a_store_without_claim_is_used_by_find_and_swap(self) -> None:
        a = self.member("a", store=PlainStore(self.store))
        a.leases.create([Partition("low"), Partition("high", priority=1), Partition("low too")])
        assert a.keys(2) == ["high", "low"]
        assert a.keys(2) == ["low too"]
        assert {row.owner for row in self.store.find(Query(PIPELINE))} == {a.session.id}

    # --- rows that cannot be read ------------------------------------------------------------------------------

    @pytest.mark.parametrize("plain", [False, True])
    def test_unreadable_progress_is_failed_and_kept_never_started_afresh(self, plain: bool) -> None:
        a = self.member("a", store=PlainStore(self.store) if plain else self.store)
        a.leases.create([Partition("bad"), Partition("good")])
        self.corrupt(self.store, Key(PIPELINE, "", "bad"))
        found = self.row("bad")
        assert found.unreadable
        assert [row.unreadable for row in self.store.find(Query(PIPELINE))] == [found.unreadable, None]
        assert a.keys() == ["good"]
        failed = self.row("bad")
        assert (failed.status, failed.token, failed.owner) == (Status.FAILED, found.token, None)
        assert failed.unreadable == found.unreadable
        assert [event.key for event in a.world.seen(PartitionHalted)] == ["bad"]
        assert a.keys() == []

    def test_a_body_that_is_not_utf8_is_failed_and_kept_byte_by_byte(self) -> None:
        a = self.member("a")
        a.leases.create([Partition("bad"), Partition("good")])
        self.corrupt_bytes(self.store, Key(PIPELINE, "", "bad"), NOT_UTF8)
        found = self.row("bad")
        assert found.unreadable is not None
        assert found.unreadable.encode("utf-8", "surrogateescape") == NOT_UTF8
        assert a.keys() == ["good"]
        failed = self.another_store().get([found.id])[0]
        assert failed is not None
        assert (failed.status, failed.unreadable) == (Status.FAILED, found.unreadable)

    # --- purge and forget --------------------------------------------------------------------------------------

    def finish(self, key: str) -> Lease:
        """A partition that was taken twice and completed."""
        a, b = self.member("a"), self.member("b")
        a.leases.create([Partition(key, spec={"large": "x" * 1000})])
        (first,) = a.leases.claim(1)
        a.leases.release([first])
        (second,) = b.leases.claim(1)
        (done,) = b.leases.write([second], transitions.complete)
        assert isinstance(done, Lease)
        for member in (a, b):
            member.session.leave()
        return done

    def test_purge_keeps_key_and_token(self) -> None:
        done = self.finish("k")
        operator = Operator(self.store, make_world("op").new_id, PIPELINE)
        assert operator.purge(list(operator.purgeable(older_than=-1.0))) == 1
        purged = self.row("k")
        assert (purged.status, purged.token, dict(purged.spec)) == (Status.COMPLETED, done.token, {})
        assert list(operator.purgeable(older_than=-1.0)) == []
        assert self.member("c").leases.create([Partition("k")]) == 0

    def test_a_row_made_anew_never_starts_with_a_token_used_before(self) -> None:
        done = self.finish("k")
        operator = Operator(self.store, make_world("op").new_id, PIPELINE, rest=-1.0)
        assert operator.purge([done]) == 1
        assert operator.forget(list(operator.forgettable())) == 1
        assert self.store.get([done.id]) == [None]
        c = self.member("c")
        c.leases.create([Partition("k")])
        (anew,) = c.leases.claim(1)
        assert anew.token > done.token

    def test_forget_leaves_what_was_not_purged_or_has_changed(self) -> None:
        done = self.finish("k")
        self.store.add([make_row("free")])
        operator = Operator(self.store, make_world("op").new_id, PIPELINE, rest=-1.0)
        assert operator.forget([done, make_row("free")]) == 0
        operator.purge([done])
        (tombstone,) = operator.forgettable()
        assert operator.purge([tombstone]) == 1
        assert operator.forget([tombstone]) == 0
        assert self.store.count(PIPELINE) == {Status.UNASSIGNED: 1, Status.COMPLETED: 1}
