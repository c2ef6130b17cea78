"""The pace of reads: a fortieth of the time for all of them together."""

from __future__ import annotations

import pytest

from holdfast.web.pace import Pace

COSTS = {"large": 0.5, "map": 0.02, "page": 0.1, "small": 0.001}


def waits(pace: Pace, now: float = 0.0) -> dict[str, float]:
    for thing, cost in COSTS.items():
        pace.wait(thing, cost, now)
    return {thing: pace.wait(thing, cost, now) for thing, cost in COSTS.items()}


def test_all_reads_together_take_their_share_of_the_time() -> None:
    found = waits(Pace(0.0, 40.0))
    assert sum(COSTS[thing] / wait for thing, wait in found.items()) == pytest.approx(1 / 40)


def test_what_costs_less_is_read_more_often_and_never_more_often_than_every() -> None:
    found = waits(Pace(2.0, 40.0))
    assert found["small"] == 2.0 < found["map"] < found["page"] < found["large"]


def test_one_thing_alone_has_the_whole_share() -> None:
    assert Pace(2.0, 40.0).wait("large", 0.5, 0.0) == pytest.approx(20.0)


def test_what_nobody_looks_at_any_more_takes_no_time_from_others() -> None:
    pace = Pace(2.0, 40.0)
    waits(pace)
    assert pace.wait("large", 0.5, 10.0) > 20.0
    assert pace.wait("large", 0.5, 500.0) == pytest.approx(20.0)


def test_one_read_that_is_slow_by_chance_does_not_make_a_page_old() -> None:
    pace = Pace(2.0, 40.0)
    assert [pace.wait("page", took, 0.0) for took in (0.01, 1.0, 0.01)] == [2.0, 2.0, 2.0]
    assert [pace.wait("page", took, 0.0) for took in (1.0, 1.0)] == pytest.approx([2.0, 40.0])
