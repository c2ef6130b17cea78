"""Suspects run apart from the innocent, in groups that are halved until the culprit is alone."""

from __future__ import annotations

from collections import Counter

from holdfast.flow.batch import Cut, Name
from holdfast.flow.held import Held
from holdfast.flow.rounds import grouped
from holdfast.leases.lease import Status
from holdfast.leases.transitions import RetryLimits
from holdfast.testing.rows import assigned_row
from tests.unit.flow.rig import Fleet, TestNode

CUT = Cut(0, 1)


def sizes(*pasts: tuple[int, int], most: int = 16, limits: RetryLimits = RetryLimits()) -> list[int]:
    """Sizes of the rounds of partitions with so many take-overs and attempts."""
    planned = [
        (Held(assigned_row(f"p{n}", "me", takeovers=takeovers, attempts=attempts), Name("s", f"p{n}")), CUT)
        for n, (takeovers, attempts) in enumerate(pasts)
    ]
    return [len(group) for group in grouped(planned, most, limits)]


def test_those_above_suspicion_share_a_round() -> None:
    assert sizes(*[(0, 0)] * 10, *[(1, 0)] * 6) == [16]


def test_suspects_are_halved_with_each_take_over() -> None:
    assert sizes(*[(2, 0)] * 16) == [8, 8]
    assert sizes(*[(3, 0)] * 16) == [4, 4, 4, 4]
    assert sizes(*[(4, 0)] * 5) == [2, 2, 1]
    assert sizes(*[(9, 0)] * 3) == [1, 1, 1]


def test_the_innocent_come_second_and_never_share_a_round_with_suspects() -> None:
    assert sizes((2, 0), (3, 0), (0, 0), (0, 0), (0, 0)) == [1, 3, 1]


def test_one_whose_own_batch_failed_runs_alone() -> None:
    assert sizes((0, 1), (0, 1), (0, 0)) == [1, 1, 1]


def test_one_that_the_next_death_would_halt_runs_alone_however_large_rounds_are() -> None:
    assert sizes(*[(10, 0)] * 3, most=1 << 20) == [1, 1, 1]
    assert sizes(*[(2, 0)] * 3, limits=RetryLimits(max_takeovers=2)) == [1, 1, 1]


def test_a_culprit_among_many_is_halted_in_few_jobs_and_nobody_else_is() -> None:
    """Each round that holds the culprit kills its node; all that was out is taken over by the next one."""
    number = 64
    fleet = Fleet({f"p{n:02}": 1 for n in range(number)})
    fleet.source.lives_long = True
    jobs: Counter[int] = Counter()
    for life in range(30):
        node = TestNode(fleet, f"n{life}").start()
        while node.engine.out and not any(b.lease.key == "p13" for b in node.engine.out.values()):
            for batch in list(node.engine.out.values()):
                node.stage(batch.lease.key)
            node.turn(2)
        jobs[life] = len(node.engine.rounds)
        # Those beside the culprit are through before it strikes, unless they share its round.
        guilty = next((group for group in node.engine.rounds if any(b.lease.key == "p13" for b in group)), [])
        for batch in [one for one in node.engine.out.values() if one not in guilty]:
            node.stage(batch.lease.key)
        node.turn()
        fleet.clock.wait(31)
        if fleet.row("p13").status is Status.FAILED:
            break
    else:
        raise AssertionError("the culprit was never halted")
    failed = [key for key in fleet.source.sizes if fleet.row(key).status is Status.FAILED]
    assert failed == ["p13"]
    assert jobs.total() < number, "not one job for each suspect"
