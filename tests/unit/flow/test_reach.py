"""How many leases a node holds where partitions are soon done."""

from __future__ import annotations

from holdfast.flow.reach import Reach
from holdfast.leases.lease import Lease
from holdfast.testing.flows import NumbersSource

SIZES = {"tiny": 1, "large": 1000}


class Sized(NumbersSource):
    """Light up to 999."""

    def is_light(self, leases: list[Lease]) -> bool:  # type: ignore[override]
        return sum(SIZES[lease.key] for lease in leases) < 1000


def tiny(number: int) -> list[Lease]:
    return [Lease("p", "tiny")] * number


def test_a_node_takes_more_tiny_partitions_step_by_step_up_to_ten_times_as_many() -> None:
    reach, held = Reach(Sized({}), 10), 0
    steps = []
    for _ in range(5):
        held += reach.room(tiny(held), held)
        steps.append(held)
    assert steps == [10, 20, 40, 80, 100]
    assert reach.batches == 100


def test_one_large_partition_ends_it() -> None:
    reach = Reach(Sized({}), 10)
    assert reach.room(tiny(10), 10) == 10
    assert reach.room([*tiny(19), Lease("p", "large")], 20) == -10
    assert reach.batches == 10


def test_a_node_takes_no_more_than_a_round_before_it_has_begun_with_it() -> None:
    reach = Reach(NumbersSource({}), 10)
    assert reach.room(tiny(4), 4) == 6
    assert reach.room(tiny(10), 10) == 0


def test_the_leases_of_the_next_round_are_taken_while_one_is_out() -> None:
    reach = Reach(NumbersSource({}), 10)
    assert reach.room(tiny(10), 0) == 10
    assert reach.room(tiny(20), 10) == 0
    assert reach.room(tiny(20), 0) == 0
