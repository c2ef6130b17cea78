"""How many leases a node holds where partitions are soon done, and what becomes of two rounds at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from holdfast.events import BatchCancelled, PipelineFinished
from holdfast.flow.batch import Limits
from holdfast.flow.holdings import Capacity, Pace
from holdfast.flow.run import GroupStats, Run, RunStatus
from holdfast.flow.source import WeighsPartitions
from holdfast.leases.lease import Lease
from holdfast.runs.execution import most_leases
from holdfast.testing.flows import NumbersSource
from holdfast.testing.worlds import TurnableClock
from tests.unit.flow.rig import Fleet, TestNode

SIZES = {"tiny": 1, "large": 1000}


PACE = Pace(TurnableClock())


class Sized(NumbersSource, WeighsPartitions):
    """Light up to 999."""

    def is_light(self, leases: Sequence[Lease]) -> bool:
        return sum(SIZES[lease.key] for lease in leases) < 1000


def tiny(number: int) -> list[Lease]:
    return [Lease("p", "tiny")] * number


def test_a_node_takes_more_tiny_partitions_step_by_step_up_to_twenty_times_as_many() -> None:
    reach, held = Capacity(Sized({}), 10, PACE), 0
    steps = []
    for _ in range(8):
        held += reach.room(tiny(held), 0)
        steps.append(held)
    assert steps == [5, 25, 105, 200, 200, 200, 200, 200]
    assert reach.round_size == 100


def test_one_large_partition_ends_it() -> None:
    reach = Capacity(Sized({}), 10, PACE)
    assert reach.room(tiny(10), 0) == 20
    assert [reach.room([*tiny(29), Lease("p", "large")], 0) for _ in range(2)] == [-10, -20]
    assert reach.round_size == 5


def test_no_more_are_taken_while_some_wait() -> None:
    reach = Capacity(Sized({}), 10, PACE)
    assert [reach.room(tiny(5), 5), reach.room(tiny(5), 1), reach.room(tiny(5), 0)] == [0, 4, 20]


def test_half_of_what_is_held_is_a_round_and_the_other_half_is_taken_when_that_is_out() -> None:
    reach = Capacity(NumbersSource({}), 10, PACE)
    assert reach.room([], 0) == 5
    assert reach.room(tiny(5), 5) == 0
    assert reach.room(tiny(5), 0) == 5
    assert reach.room(tiny(10), 5) == 0
    assert reach.room(tiny(7), 5) == 0


def test_one_at_a_time_is_one() -> None:
    reach = Capacity(NumbersSource({}), 1, PACE)
    assert reach.round_size == 1
    assert reach.room([], 0) == 1
    assert reach.room(tiny(1), 0) == 0


# --- in the loop ----------------------------------------------------------------------------------------------------


def many(count: int) -> dict[str, int]:
    return {f"p{number:02}": 1 for number in range(count)}


def node_of_ten(fleet: Fleet, name: str = "a", *, timeout: float = 3600.0) -> TestNode:
    return TestNode(fleet, name, limits=Limits(timeout=timeout), max_batches=10).join()


def test_two_nodes_have_as_many_each_of_partitions_that_are_not_tiny() -> None:
    fleet = Fleet(many(20))
    nodes = [node_of_ten(fleet, name) for name in "ab"]
    for _ in range(4):
        for node in nodes:
            node.turn()
    assert [len(node.engine.out) for node in nodes] == [10, 10]
    assert [[len(batches) for batches in node.engine.rounds] for node in nodes] == [[5, 5], [5, 5]]


def test_the_next_turn_comes_soon_while_leases_are_found_and_the_engine_has_room_for_them() -> None:
    fleet = Fleet(many(8))
    node = node_of_ten(fleet)
    eager = []
    for _ in range(4):
        node.turn()
        eager.append((len(node.engine.out), node.loop.eager))
    assert eager == [(0, False), (5, True), (8, True), (8, False)]


def test_it_does_not_while_the_engine_is_full() -> None:
    node = node_of_ten(Fleet(many(8)))
    node.turn(2)
    node.engine._room = 0
    assert not node.loop.eager


def test_the_time_in_which_a_round_waits_for_the_one_before_it_is_not_counted_against_it() -> None:
    fleet = Fleet(many(10))
    node = node_of_ten(fleet, timeout=100.0)
    node.turn(3)
    first, second = node.engine.rounds
    for batches in (first, second):
        for _ in range(6):
            fleet.clock.wait(10)
            node.session.heartbeat()
            node.turn()
        for batch in batches:
            node.stage(batch.lease.key)
        node.turn()
    assert fleet.emitted(BatchCancelled) == []
    assert len(fleet.visible()) == 10


def test_a_round_that_hangs_behind_another_is_cancelled_all_the_same() -> None:
    fleet = Fleet(many(10))
    node = node_of_ten(fleet, timeout=100.0)
    node.turn(3)
    for _ in range(21):
        fleet.clock.wait(10)
        node.session.heartbeat()
        node.turn()
    assert len(fleet.emitted(BatchCancelled)) == 10


def test_what_comes_while_a_round_is_out_is_begun_with_as_soon_as_that_is_over() -> None:
    fleet = Fleet(many(3))
    node = node_of_ten(fleet)
    node.turn(3)
    assert len(node.engine.out) == 3
    for batch in list(node.engine.out.values()):
        node.stage(batch.lease.key)
    began = fleet.clock.time
    node.turn()
    assert fleet.emitted(PipelineFinished)
    assert fleet.clock.time == began


def test_a_pace_lets_no_round_begin_before_the_records_of_the_last_one_are_paid() -> None:
    clock = TurnableClock()
    pace = Pace(clock)
    assert (pace.allows, Capacity(NumbersSource({}), 10, pace).round_size) == (True, 5)
    pace.limit = 100
    pace.learn(250)
    assert Capacity(NumbersSource({}), 10, pace).round_size == 1
    allowed = [pace.allows]
    for seconds in (2.4, 0.2):
        clock.wait(seconds)
        allowed.append(pace.allows)
    assert allowed == [False, False, True]
    pace.learn(1000)
    pace.limit = None
    assert pace.allows


def test_a_node_holds_a_part_of_what_is_left_and_no_more_than_it_reads_soon() -> None:
    run = Run("r", RunStatus.RUNNING, groups={"t": GroupStats(partitions=1000, total=1_000_000, completed=200)})
    assert most_leases(run, nodes=2, rate=0.0) == 100
    assert most_leases(run, nodes=2, rate=5000.0) == 32
    assert most_leases(run, nodes=1, rate=0.0) == 800, "there is nobody to share with"
    assert most_leases(run, nodes=1, rate=5000.0) == 32
    large_first = {"t": GroupStats(partitions=1000, total=1_000_000, completed=200, processed=680_000)}
    assert most_leases(replace(run, groups=large_first), nodes=2, rate=2500.0) == 50, "the rest are small"
    assert most_leases(replace(run, groups={"t": GroupStats(10, 100, 9)}), nodes=5, rate=1.0) == 4
    pace = Pace(TurnableClock())
    pace.most_leases = 3
    assert Capacity(NumbersSource({}), 10, pace).room([], 0) == 3
