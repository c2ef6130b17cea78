from __future__ import annotations

import random

from holdfast.leases.coordinator import WIDEST, Contention
from holdfast.testing.rows import make_row

ROWS = [make_row(f"{number:02d}") for number in range(64)]


def test_while_nobody_else_claims_leases_are_taken_in_order() -> None:
    contention = Contention(random.Random(1))
    for _ in range(5):
        assert contention.choose(ROWS, 4) == ROWS[:4]
        contention.learn(won=4, lost=0)
    assert contention.width == 1


def test_who_mostly_loses_looks_twice_as_far_each_time_up_to_a_bound() -> None:
    contention = Contention(random.Random(1))
    widths = []
    for _ in range(6):
        contention.learn(won=1, lost=3)
        widths.append(contention.width)
    assert widths == [2, 4, 8, 16, WIDEST, WIDEST]
    contention.learn(won=3, lost=1)
    assert contention.width == WIDEST
    for _ in range(5):
        contention.learn(won=4, lost=0)
    assert contention.width == 1


def test_claimers_that_lost_choose_different_leases_and_keep_their_order() -> None:
    first, second = Contention(random.Random(1)), Contention(random.Random(2))
    for contention in (first, second):
        contention.learn(won=0, lost=4)
    mine, yours = first.choose(ROWS, 8), second.choose(ROWS, 8)
    assert len(mine) == len(yours) == 8
    assert mine != yours
    assert mine == sorted(mine, key=ROWS.index)


def test_what_is_left_is_taken_whole() -> None:
    contention = Contention(random.Random(1))
    contention.learn(won=0, lost=4)
    assert contention.choose(ROWS[:3], 4) == ROWS[:3]
