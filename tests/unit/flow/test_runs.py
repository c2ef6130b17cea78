"""Runs: bounded passes with a status of their own, one at a time, apart from the live pipeline."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from holdfast.errors import LeaseLost, Refused, UsageError
from holdfast.flow.loop import LoopSettings, PipelineLoop
from holdfast.flow.partition_list import PartitionList
from holdfast.flow.pipeline import Pipeline
from holdfast.flow.run import Run, RunStatus
from holdfast.flow.run_driver import End, Extend, Keep, RunDriver, Wait, ended_status
from holdfast.flow.runs import Runs
from holdfast.leases import split as splits
from holdfast.leases import transitions
from holdfast.leases.lease import Counts, Json, Key, Lease, Partition, Status
from holdfast.leases.split import Split
from holdfast.leases.transitions import Advance, RetryLimits
from holdfast.runs.driving import AGGREGATE_EVERY, Driving
from holdfast.runs.lock import RunLock
from tests.unit.flow.rig import PIPELINE, Fleet, TestNode

PARTITIONS = [
    Partition(
        f"{group}-{i}", group, {"size": 10}, range_start=i * 10, range_end=i * 10 + 10, estimated_count=10, index=i
    )
    for group in ("table", "topic")
    for i in range(2)
]


TOKEN = 1
"""Under which these tests drive runs without a lock."""


class Fixed(RunDriver):
    """The partitions of all these tests, under locks as the configuration names them."""

    def locks(self, configuration: Json) -> Sequence[str]:
        return configuration.get("locks", ())  # type: ignore[no-any-return]

    def partitions(self, run: Run) -> list[Partition]:
        return PARTITIONS


class Site:
    """One node that can create runs."""

    def __init__(self, fleet: Fleet, name: str = "a") -> None:
        self.node = TestNode(fleet, name, retries=RetryLimits(max_retries=0)).join()
        self.runs = Runs(self.node.coordinator)
        self.lock = RunLock(self.node.coordinator, self.runs)

    def create(self, run_id: str = "r1") -> Run:
        self.runs.add(run_id, configuration={"batch": 100}, created_by="ann")
        return self.runs.create(run_id, TOKEN, PARTITIONS)

    def start(self, run_id: str = "r1") -> Run:
        return self.runs.start(run_id, TOKEN)

    def drive(self, run_id: str = "r1", driver: RunDriver | None = None) -> Driving:
        return Driving(self.node.coordinator, run_id, driver or Fixed())

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
    site.start()
    site.work_off("r1")
    ended = site.runs.aggregate("r1", TOKEN)
    ended = site.runs.end("r1", TOKEN, ended_status(ended))
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
    site.start()
    site.work_off("r1", failing)
    assert ended_status(site.runs.aggregate("r1", TOKEN)) is status


def test_a_run_shares_neither_keys_nor_positions_with_the_live_pipeline_or_another_run(
    site: Site, fleet: Fleet
) -> None:
    site.node.turn(2)
    for run_id in ("r1", "r2"):
        site.create(run_id)
        site.start(run_id)
    site.work_off("r1")
    assert site.runs.aggregate("r1", TOKEN).units_left == 0
    assert site.runs.aggregate("r2", TOKEN).units_left == 4
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
    site.start()
    fleet.clock.wait(13)
    loop.turn([], lambda _name, _limit: None)
    assert len(site.node.engine.out) == 4
    site.runs.stop("r1")
    assert site.runs.settle_stop("r1").status is RunStatus.STOPPING
    fleet.clock.wait(13)
    loop.turn([], lambda _name, _limit: None)
    assert not site.node.engine.out
    assert site.runs.settle_stop("r1").status is RunStatus.STOPPED


def test_a_run_that_is_not_running_is_left_alone_also_between_two_passes(site: Site, fleet: Fleet) -> None:
    site.create()
    loop = loop_of(site, "r1")
    for _ in range(200):
        fleet.clock.wait(0.5)
        loop.turn([], lambda _name, _limit: None)
        assert not site.node.engine.out


def test_a_run_with_too_many_partitions_is_refused_and_failed(site: Site) -> None:
    class Many(Fixed):
        def partitions(self, run: Run) -> list[Partition]:
            return [Partition(f"p{i}", "table") for i in range(10_001)]

    site.runs.add("big", configuration={}, created_by="ann")
    driving = site.drive("big", Many())
    assert driving.step() == 0.0
    big = site.runs.show("big")
    assert (big.status, "more than 10000 partitions" in str(big.error)) == (RunStatus.FAILED, True)
    assert driving.step() is None


def test_a_run_cannot_skip_a_state_or_be_created_twice(site: Site) -> None:
    site.create()
    with pytest.raises(UsageError, match="already"):
        site.create()
    site.start()
    with pytest.raises(UsageError, match="is RUNNING and cannot become READY"):
        site.runs.resume("r1")


def test_only_one_run_goes_on_at_a_time(site: Site, fleet: Fleet) -> None:
    site.create("r1")
    site.lock.acquire("r1")
    other = Site(fleet, "b")
    with pytest.raises(Refused, match="'r1' is going on"):
        other.lock.acquire("r2", instead=True)
    site.runs.fail("r1", "somebody ended it")
    site.lock.release()
    other.lock.acquire("r2")
    assert other.lock.holder() == "r2"


def test_a_run_takes_all_of_its_locks_or_none(site: Site, fleet: Fleet) -> None:
    for run_id in ("r1", "r2", "r3"):
        site.create(run_id)
    site.lock.acquire("r1", ["b", "c"])
    other = Site(fleet, "b")
    with pytest.raises(Refused, match="'r1' is going on"):
        other.lock.acquire("r2", ["a", "b"])
    third = Site(fleet, "c")
    third.lock.acquire("r3", ["a", "d"])  # runs without a lock in common go on together
    assert [third.lock.holder(name) for name in "abcd"] == ["r3", "r1", "r1", "r3"]


def test_a_lock_that_a_dead_node_left_stays_with_its_run_until_it_has_ended(site: Site, fleet: Fleet) -> None:
    site.create("r1")
    site.create("r2")
    token = site.lock.acquire("r1", ["a", "b"])
    site.runs.drive("r1", token)
    fleet.clock.wait(31)
    heir = Site(fleet, "b")
    with pytest.raises(Refused, match="'r1' has not ended"):
        heir.lock.acquire("r2", ["b"])
    assert heir.lock.acquire("r1", ["a", "b"]) > token


def test_the_lock_passes_to_another_run_only_from_the_expected_one(site: Site) -> None:
    site.lock.acquire("r1")
    with pytest.raises(Refused, match="not to 'r7'"):
        site.lock.transfer("r7", "r2")
    site.lock.transfer("r1", "r2")
    assert site.lock.holder() == "r2"


def pass_time(fleet: Fleet, sites: Sequence[Site], seconds: int) -> None:
    for _ in range(seconds // 10):
        fleet.clock.wait(10)
        for site in sites:
            site.node.session.heartbeat()


def test_a_lock_that_is_refreshed_is_kept_and_one_that_another_run_took_fails_the_run(site: Site, fleet: Fleet) -> None:
    site.create("r1")
    site.runs.drive("r1", site.lock.acquire("r1"))
    other = Site(fleet, "b")
    for _ in range(7):
        pass_time(fleet, [site, other], 60)
        site.lock.refresh()
    with pytest.raises(Refused):
        other.lock.acquire("r2", instead=True)
    pass_time(fleet, [site, other], 310)
    other.lock.acquire("r2", instead=True)
    with pytest.raises(LeaseLost):
        site.lock.refresh()
    lost = site.runs.show("r1")
    assert lost.status is RunStatus.FAILED
    assert "lock was lost" in str(lost.error)


def test_a_lock_that_was_lost_and_that_no_other_run_has_is_taken_again(site: Site, fleet: Fleet) -> None:
    site.create("r1")
    site.start()
    driving = site.drive("r1")
    assert driving.step() is not None
    heir = Site(fleet, "b")
    pass_time(fleet, [site, heir], 310)
    heirs = heir.drive("r1")
    assert heirs.step() is not None  # it took the lock over
    assert heirs.drives
    driving.keep()
    assert not driving.drives
    assert heir.runs.show("r1").status is RunStatus.RUNNING
    heirs.release()
    assert driving.step() is not None
    assert driving.drives


def test_a_run_that_lost_the_lock_has_failed_before_another_one_has_it(site: Site, fleet: Fleet) -> None:
    site.create("r1")
    site.start()
    site.lock.acquire("r1")
    fleet.clock.wait(31)
    other = Site(fleet, "b")
    other.lock.acquire("r2", instead=True)
    assert other.runs.show("r1").status is RunStatus.FAILED


def test_a_run_is_stopped_although_a_node_died_with_a_partition_in_its_hands(site: Site, fleet: Fleet) -> None:
    site.create("r1")
    site.start()
    (held,) = site.runs.coordinator("r1").claim(1)
    fleet.clock.wait(31)
    other = Site(fleet, "b")
    other.runs.stop("r1")
    assert other.runs.settle_stop("r1").status is RunStatus.STOPPED
    (late,) = site.runs.coordinator("r1").write([held], transitions.release)
    assert isinstance(late, LeaseLost)


class Phased(Fixed):
    """A run of two phases, and the calls that its driver has seen."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.lost = False

    def prepare(self, run: Run) -> Json:
        self.calls.append("prepare")
        return {"mark": 7}

    def advance(self, run: Run, keep: Keep) -> Extend | Wait | End:
        self.calls.append(f"advance {run.phase}")
        if run.phase:
            return End(ended_status(run))
        keep({"mark": 8})
        return Extend("catch-up", [Partition("late", "table", {"size": 10})], {"mark": 9})


def test_a_run_goes_through_the_phases_of_its_driver(site: Site) -> None:
    site.runs.add("r1", configuration={}, created_by="ann")
    driver = Phased()
    driving = site.drive("r1", driver)
    driving.step()
    assert site.runs.show("r1").state == {"mark": 7}
    assert driving.step() == AGGREGATE_EVERY
    site.work_off("r1")
    driving.step()
    extended = site.runs.show("r1")
    assert (extended.status, extended.phase, extended.state) == (RunStatus.RUNNING, "catch-up", {"mark": 9})
    site.work_off("r1")
    assert driving.step() is None
    ended = site.runs.show("r1")
    assert (ended.status, ended.groups["table"].partitions) == (RunStatus.COMPLETED, 3)
    assert driver.calls == ["prepare", "advance ", "advance catch-up"]
    assert sum(node.completed for node in ended.nodes.values()) == 5


def test_a_former_driver_changes_nothing_however_late(site: Site, fleet: Fleet) -> None:
    site.runs.add("r1", configuration={}, created_by="ann")
    zombie, heir = site.drive("r1"), Site(fleet, "b").drive("r1", Phased())
    zombie.step()
    fleet.clock.wait(31)
    heir.step()
    before = site.runs.show("r1")
    token = zombie._held_token()
    late: list[Callable[[], object]] = [
        lambda: site.runs.keep("r1", token, "stale"),
        lambda: site.runs.extend("r1", token, "stale", [Partition("x")], None),
        lambda: site.runs.end("r1", token, RunStatus.COMPLETED),
        lambda: site.runs.aggregate("r1", token),
    ]
    for write in late:
        with pytest.raises(LeaseLost):
            write()
    assert site.runs.show("r1") == before
    assert fleet.store.get([Key(PIPELINE, "r1", "x")]) == [None]


@pytest.mark.parametrize("where", ["list", "row", "rows"])
def test_an_interrupted_creation_is_finished_by_the_next_driver_with_one_list(
    site: Site, fleet: Fleet, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.runs.add("r1", configuration={}, created_by="ann")
    died = RuntimeError("died")

    def die(*_: Any) -> None:
        raise died

    with monkeypatch.context() as patch:
        if where == "list":
            patch.setattr(PartitionList, "_write_chunk", die)
        else:
            patch.setattr(PartitionList, "add_rows" if where == "row" else "remove", die)
        site.drive("r1").step()

    class Other(Fixed):
        def partitions(self, run: Run) -> list[Partition]:
            return [Partition(f"other-{i}", "table") for i in range(3)]

    fleet.clock.wait(31)
    heir = Site(fleet, "b")
    driving = heir.drive("r1", Other())
    driving.step()
    driving.step()
    keys = sorted(lease.key for lease in heir.runs.coordinator("r1").claim(100))
    first = sorted(partition.key for partition in PARTITIONS)
    assert heir.runs.show("r1").status is RunStatus.RUNNING
    assert keys == (["other-0", "other-1", "other-2"] if where == "list" else first)


def test_a_split_whose_partition_has_failed_since_is_finished_by_the_driver(site: Site) -> None:
    driving = site.drive()
    driving.begin({}, "ann")
    driving.step()
    coordinator = site.runs.coordinator("r1")
    first, *others = coordinator.claim(100)
    made = Split({"size": 4}, 4, [Partition("", first.group, {"size": 6}, estimated_count=6)])
    # The node dies before it has added the row of the rest, and the next one fails before it reads on.
    coordinator.write([first], lambda row, now: transitions.halt(splits.split(row, made, first, now), "bad", now))
    advance = Advance("c", 10, {}, Counts(10, 10, 0))
    for lease in others:
        coordinator.write([lease], _committed_and_complete(advance))
    for _ in range(2):
        driving.step()
    assert site.runs.show("r1").status is RunStatus.RUNNING
    (rest,) = coordinator.claim(100)
    assert (rest.key, rest.spec) == (f"{first.key}/1", {"size": 6})
    coordinator.write([rest], _committed_and_complete(advance))
    for _ in range(2):
        driving.step()
    run = site.runs.show("r1")
    assert (run.status, run.counts.processed) == (RunStatus.COMPLETED_WITH_ERRORS, 40)


def test_an_error_that_databases_refuse_in_json_is_stored(site: Site) -> None:
    site.create()
    odd = "bad \0 \ud800 \U0001f600 text"
    assert site.runs.fail("r1", odd).error == "bad \ufffd \ufffd \U0001f600 text"
    coordinator = site.node.coordinator
    coordinator.create([Partition("k")])
    (lease,) = coordinator.claim(1)
    (failed,) = coordinator.write([lease], lambda row, now: transitions.halt(row, odd, now))
    assert isinstance(failed, Lease)
    assert failed.history.last_error == "bad \ufffd \ufffd \U0001f600 text"


def test_a_run_that_was_stopped_is_resumed_where_it_was(site: Site) -> None:
    site.runs.add("r1", configuration={}, created_by="ann")
    driving = site.drive("r1")
    driving.step()
    site.runs.stop("r1")
    assert driving.step() is None
    assert site.runs.show("r1").status is RunStatus.STOPPED
    site.runs.resume("r1")
    assert site.runs.show("r1").status is RunStatus.READY
    driving.step()
    site.work_off("r1")
    assert driving.step() is None
    assert site.runs.show("r1").status is RunStatus.COMPLETED


def test_a_driver_of_before_a_stop_must_take_the_locks_of_the_resumed_run_again(site: Site) -> None:
    site.runs.add("r1", configuration={}, created_by="ann")
    driving = site.drive("r1")
    driving.step()
    token = driving._held_token()
    site.runs.stop("r1")
    site.runs.settle_stop("r1")
    site.runs.resume("r1")
    with pytest.raises(LeaseLost):
        site.runs.start("r1", token)
    driving.step()
    driving.step()
    assert (site.runs.show("r1").status, driving.drives) == (RunStatus.RUNNING, True)


def test_a_run_that_was_stopped_before_it_was_created_is_created_when_it_is_resumed(site: Site) -> None:
    site.runs.add("r1", configuration={}, created_by="ann")
    site.runs.stop("r1")
    assert site.runs.settle_stop("r1").status is RunStatus.STOPPED
    site.runs.resume("r1")
    site.drive("r1").step()
    assert site.runs.show("r1").total == 40


def test_partitions_of_a_run_are_claimed_by_priority_then_the_largest_first(site: Site) -> None:
    class Mixed(Fixed):
        def partitions(self, run: Run) -> list[Partition]:
            return [
                Partition("small", "a", work_units=1),
                Partition("urgent", "z", priority=5, work_units=1),
                Partition("large", "b", work_units=9),
                Partition("second", "a", work_units=9, index=2),
                Partition("first", "a", work_units=9, index=1),
            ]

    site.runs.add("r1", configuration={}, created_by="ann")
    site.drive("r1", Mixed()).step()
    taken = [lease.key for lease in site.runs.coordinator("r1").claim(100)]
    assert taken == ["urgent", "first", "second", "large", "small"]


def test_a_run_that_is_stopped_while_it_is_summed_up_goes_on_stopping(site: Site, fleet: Fleet) -> None:
    site.runs.add("r1", configuration={}, created_by="ann")
    other = Site(fleet, "b")

    class Stopped(Fixed):
        def advance(self, run: Run, keep: Keep) -> Extend | Wait | End:
            other.runs.stop("r1")
            return End(RunStatus.COMPLETED)

    driving = site.drive("r1", Stopped())
    driving.step()
    site.work_off("r1")
    driving.step()
    assert site.runs.show("r1").status is RunStatus.STOPPING
    assert driving.step() is None
    assert site.runs.show("r1").status is RunStatus.STOPPED
