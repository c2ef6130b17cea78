"""Runs: bounded passes with a status of their own, one at a time, apart from the live pipeline."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from holdfast.errors import LeaseLost, Refused, UsageError
from holdfast.flow.loop import LoopSettings, PipelineLoop
from holdfast.flow.pipeline import Pipeline
from holdfast.flow.run import Run, Runs, RunStatus
from holdfast.leases import transitions
from holdfast.leases.lease import Counts, Key, Lease, Partition, Status
from holdfast.leases.transitions import Advance, RetryLimits
from holdfast.runs.lock import RunLock
from tests.unit.flow.rig import PIPELINE, Fleet, TestNode

PARTITIONS = [
    Partition(
        f"{group}-{i}", group, {"size": 10}, range_start=i * 10, range_end=i * 10 + 10, estimated_count=10, index=i
    )
    for group in ("table", "topic")
    for i in range(2)
]


class Site:
    """One node that can create runs."""

    def __init__(self, fleet: Fleet, name: str = "a") -> None:
        self.node = TestNode(fleet, name, retries=RetryLimits(max_retries=0)).join()
        self.runs = Runs(self.node.coordinator)
        self.lock = RunLock(self.node.coordinator, self.runs)

    def create(self, run_id: str = "r1") -> Run:
        return self.runs.create(run_id, PARTITIONS, configuration={"batch": 100}, created_by="ann")

    def work_off(self, run_id: str, failing: int = 0) -> None:
        """Claim every partition; fail so many of them and complete the others."""
        coordinator = self.runs.coordinator(run_id)
        for number, lease in enumerate(coordinator.claim(100)):
            if number < failing:
                coordinator.write([lease], lambda row, now: transitions.halt(row, "bad", now))
                continue
            advance = Advance(f"c{number}", 10, {}, Counts(10, 9, 1))
            coordinator.write([lease], _committed_and_complete(advance))


def _committed_and_complete(advance: Advance) -> Callable[[Lease, float], Lease]:
    return lambda row, now: transitions.complete(transitions.commit(row, advance, row, now), now)


@pytest.fixture
def fleet() -> Fleet:
    return Fleet({"live": 5})


@pytest.fixture
def site(fleet: Fleet) -> Site:
    return Site(fleet)


def test_a_run_tells_what_it_is_and_how_far_every_group_is(site: Site) -> None:
    created = site.create()
    assert (created.status, created.total, created.created_by) == (RunStatus.READY, 40, "ann")
    assert created.configuration == {"batch": 100}
    site.runs.start("r1")
    site.work_off("r1")
    ended = site.runs.aggregate("r1")
    assert ended.status is RunStatus.COMPLETED
    assert ended.counts == Counts(40, 36, 4)
    assert {name: (group.completed, group.processed) for name, group in ended.groups.items()} == {
        "table": (2, 20),
        "topic": (2, 20),
    }
    assert None not in (ended.created_at, ended.started_at, ended.completed_at, ended.updated_at)


@pytest.mark.parametrize(
    ("failing", "status"),
    [(0, RunStatus.COMPLETED), (1, RunStatus.COMPLETED_WITH_ERRORS), (4, RunStatus.FAILED)],
)
def test_how_a_run_ends_depends_on_how_its_partitions_ended(site: Site, failing: int, status: RunStatus) -> None:
    site.create()
    site.runs.start("r1")
    site.work_off("r1", failing)
    assert site.runs.aggregate("r1").status is status


def test_a_run_shares_neither_keys_nor_positions_with_the_live_pipeline_or_another_run(
    site: Site, fleet: Fleet
) -> None:
    site.node.turn(2)
    for run_id in ("r1", "r2"):
        site.create(run_id)
        site.runs.start(run_id)
    site.work_off("r1")
    assert site.runs.aggregate("r1").status is RunStatus.COMPLETED
    assert site.runs.aggregate("r2").status is RunStatus.RUNNING
    assert {batch.lease.key for batch in site.node.engine.out.values()} == {"live"}
    (other,) = fleet.store.get([Key(PIPELINE, "r2", "table-0")])
    assert other is not None
    assert (other.status, other.progress.position) == (Status.UNASSIGNED, None)


def loop_of(site: Site, run_id: str) -> PipelineLoop:
    node = site.node
    return PipelineLoop(
        site.runs.coordinator(run_id),
        Pipeline(node.fleet.source, (), {}),
        node.engine,
        settings=LoopSettings(),
        may_claim=lambda: site.runs.is_running(run_id),
    )


def test_partitions_are_claimed_only_while_the_run_is_running_and_given_back_when_it_stops(
    site: Site, fleet: Fleet
) -> None:
    site.create()
    loop = loop_of(site, "r1")
    loop.turn([], lambda _name, _limit: None)
    assert not site.node.engine.out
    site.runs.start("r1")
    fleet.clock.wait(13)
    loop.turn([], lambda _name, _limit: None)
    assert len(site.node.engine.out) == 4
    site.runs.stop("r1")
    assert site.runs.aggregate("r1").status is RunStatus.STOPPING
    fleet.clock.wait(13)
    loop.turn([], lambda _name, _limit: None)
    assert not site.node.engine.out
    assert site.runs.aggregate("r1").status is RunStatus.STOPPED


def test_a_run_that_is_not_running_is_left_alone_also_between_two_passes(site: Site, fleet: Fleet) -> None:
    site.create()
    loop = loop_of(site, "r1")
    for _ in range(200):
        fleet.clock.wait(0.5)
        loop.turn([], lambda _name, _limit: None)
        assert not site.node.engine.out


def test_a_run_with_too_many_partitions_is_refused_and_failed(site: Site) -> None:
    many = (Partition(f"p{i}", "table") for i in range(10_001))
    with pytest.raises(Refused, match="more than 10000 partitions"):
        site.runs.create("big", many, configuration=None, created_by="ann")
    assert site.runs.show("big").status is RunStatus.FAILED


def test_a_run_cannot_skip_a_state_or_be_created_twice(site: Site) -> None:
    site.create()
    with pytest.raises(UsageError, match="already"):
        site.create()
    site.runs.start("r1")
    with pytest.raises(UsageError, match="is RUNNING and cannot become READY"):
        site.runs._change("r1", RunStatus.READY)


def test_only_one_run_goes_on_at_a_time(site: Site, fleet: Fleet) -> None:
    site.create("r1")
    site.lock.acquire("r1")
    other = Site(fleet, "b")
    with pytest.raises(Refused, match="'r1' is going on"):
        other.lock.acquire("r2")
    site.lock.release()
    other.lock.acquire("r2")
    assert other.lock.holder() == "r2"


def test_the_lock_passes_to_another_run_only_from_the_expected_one(site: Site) -> None:
    site.lock.acquire("r1")
    with pytest.raises(Refused, match="not to 'r7'"):
        site.lock.transfer("r7", "r2")
    site.lock.transfer("r1", "r2")
    assert site.lock.holder() == "r2"


def test_a_lock_that_is_refreshed_is_kept_and_one_that_is_not_is_lost_and_fails_the_run(
    site: Site, fleet: Fleet
) -> None:
    site.create("r1")
    site.lock.acquire("r1")
    other = Site(fleet, "b")
    for beat in range(40):
        fleet.clock.wait(10)
        site.node.session.heartbeat()
        other.node.session.heartbeat()
        if beat % 6 == 0:
            site.lock.refresh()
    with pytest.raises(Refused):
        other.lock.acquire("r2")
    for _ in range(31):
        fleet.clock.wait(10)
        site.node.session.heartbeat()
        other.node.session.heartbeat()
    other.lock.acquire("r2")
    with pytest.raises(LeaseLost):
        site.lock.refresh()
    lost = site.runs.show("r1")
    assert lost.status is RunStatus.FAILED
    assert "lock was lost" in str(lost.error)


@pytest.mark.parametrize(("policy", "status"), [("recover", RunStatus.RUNNING), ("fail", RunStatus.FAILED)])
def test_a_run_whose_node_died_is_recovered_or_failed_at_the_next_start(
    fleet: Fleet, policy: str, status: RunStatus
) -> None:
    dead = Site(fleet)
    dead.create("r1")
    dead.runs.start("r1")
    dead.lock.acquire("r1")
    young = Site(fleet, "b")
    assert young.lock.recover("recover") == [], "its node lives"
    fleet.clock.wait(31)
    heir = Site(fleet, "c")
    resumed = heir.lock.recover(policy)  # type: ignore[arg-type]
    assert [run.id for run in resumed] == (["r1"] if policy == "recover" else [])
    assert heir.runs.show("r1").status is status


def test_a_run_that_lost_the_lock_has_failed_before_another_one_has_it(site: Site, fleet: Fleet) -> None:
    site.create("r1")
    site.runs.start("r1")
    site.lock.acquire("r1")
    fleet.clock.wait(31)
    other = Site(fleet, "b")
    other.lock.acquire("r2")
    assert other.runs.show("r1").status is RunStatus.FAILED


def test_a_node_that_lost_the_lock_leaves_the_run_to_the_one_that_recovered_it(site: Site, fleet: Fleet) -> None:
    site.create("r1")
    site.runs.start("r1")
    site.lock.acquire("r1")
    fleet.clock.wait(31)
    heir = Site(fleet, "b")
    assert [run.id for run in heir.lock.recover("recover")] == ["r1"]
    with pytest.raises(LeaseLost):
        site.lock.refresh()
    assert heir.runs.show("r1").status is RunStatus.RUNNING


def test_a_run_is_stopped_although_a_node_died_with_a_partition_in_its_hands(site: Site, fleet: Fleet) -> None:
    site.create("r1")
    site.runs.start("r1")
    (held,) = site.runs.coordinator("r1").claim(1)
    fleet.clock.wait(31)
    other = Site(fleet, "b")
    other.runs.stop("r1")
    assert other.runs.aggregate("r1").status is RunStatus.STOPPED
    (late,) = site.runs.coordinator("r1").write([held], transitions.release)
    assert isinstance(late, LeaseLost)


def test_a_run_that_is_stopped_while_it_is_summed_up_goes_on_stopping(site: Site, fleet: Fleet) -> None:
    site.create("r1")
    site.runs.start("r1")
    site.work_off("r1")
    other = Site(fleet, "b")
    find = fleet.store.find
    stopped: list[Run] = []

    def find_then_stop(query: Any) -> list[Lease]:
        rows = find(query)
        if query.run == "r1" and not stopped:
            stopped.append(other.runs.stop("r1"))
        return rows

    fleet.store.find = find_then_stop  # type: ignore[method-assign]
    assert site.runs.aggregate("r1").status is RunStatus.STOPPING
    assert site.runs.aggregate("r1").status is RunStatus.STOPPED
