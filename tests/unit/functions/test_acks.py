from __future__ import annotations

import random
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest

from holdfast.functions.acks import ShardAcks


class Numbers:
    """Positions that are the offset of the next record."""

    def position_at(self, offset: int) -> int:
        return offset

    def position_after(self, offset: int) -> int:
        return offset + 1


def _position(acks: ShardAcks, start: int | None = None) -> Any:
    return acks.position(Numbers(), start)


def _row(acks: ShardAcks, start: int | None = None) -> tuple[Any, Any]:
    return _position(acks, start), acks.acked


def _delivered(acks: ShardAcks, *offsets: int) -> list[int]:
    return [offset for offset in offsets if acks.deliver(offset)]


def test_the_position_is_the_longest_acked_prefix() -> None:
    acks = ShardAcks(window=10)
    assert _delivered(acks, 5, 6, 7, 8) == [5, 6, 7, 8]
    assert _position(acks) == 5
    acks.ack(7)
    assert _row(acks) == (5, ((7, 8),))
    acks.ack(5)
    assert _row(acks) == (6, ((7, 8),))
    acks.ack(6)
    assert _row(acks) == (8, ())


def test_ack_10_before_5_never_loses_5() -> None:
    acks = ShardAcks(window=100)
    _delivered(acks, *range(11))
    acks.ack(10)
    restarted = ShardAcks(acks.acked, window=100)
    assert _delivered(restarted, *range(12)) == [*range(10), 11]
    for offset in (0, 1, 2, 3, 4, 6, 7, 8, 9):
        restarted.ack(offset)
    assert _row(restarted) == (5, ((6, 11),))
    restarted.ack(5)
    assert _position(restarted) == 11


def test_an_ack_that_comes_later_never_moves_the_position_back() -> None:
    acks = ShardAcks(window=10)
    _delivered(acks, 0, 1, 2)
    for offset in (0, 1, 2, 1, 0):
        assert acks.ack(offset)
    assert _row(acks) == (3, ())


def test_neighbours_share_a_range_although_offsets_have_gaps() -> None:
    acks = ShardAcks(window=10)
    _delivered(acks, 0, 4, 9, 20)
    acks.ack(4)
    acks.ack(9)
    assert acks.acked == ((4, 10),)
    acks.ack(0)
    assert _row(acks) == (20, ())


def test_an_early_ack_is_remembered_and_its_record_not_delivered() -> None:
    acks = ShardAcks(window=10)
    _delivered(acks, 0)
    assert acks.ack(2)
    assert acks.acked == ((2, 3),)
    assert _delivered(acks, 1, 2, 3) == [1, 3]
    acks.ack(0)
    acks.ack(1)
    assert _row(acks) == (3, ())


def test_an_early_ack_of_the_next_record_stays_a_range_until_the_record_is_read() -> None:
    acks = ShardAcks(window=10)
    acks.ack(7)
    assert _row(acks, 7) == (7, ((7, 8),))
    assert not acks.deliver(7)
    assert _row(acks, 7) == (8, ())
    assert acks.deliver(8)


def test_an_early_ack_of_an_offset_that_no_record_has_is_forgotten_when_it_is_passed() -> None:
    acks = ShardAcks(window=10)
    acks.ack(5)
    assert _delivered(acks, 3, 9) == [3, 9]
    assert acks.acked == ()
    acks.ack(3)
    assert _position(acks) == 9


def test_early_acks_are_bounded_and_one_too_many_is_reported() -> None:
    acks = ShardAcks(window=3)
    assert [acks.ack(offset) for offset in (10, 20, 30, 40)] == [True, True, True, False]
    assert acks.ack(20)
    assert acks.acked == ((10, 11), (20, 21), (30, 31))


def test_a_full_window_opens_when_its_first_record_is_acked() -> None:
    acks = ShardAcks(window=3)
    _delivered(acks, 0, 1, 2)
    assert acks.full
    acks.ack(2)
    assert acks.full, "the acknowledged record still counts: its range is in the row"
    acks.ack(0)
    assert not acks.full


def test_offsets_may_be_as_long_as_those_of_kinesis() -> None:
    first = 49590338271490256608559692538361571095921575989136588898
    acks = ShardAcks(window=5)
    _delivered(acks, first, first + 7)
    acks.ack(first + 7)
    assert acks.acked == ((first + 7, first + 8),)


def test_records_that_the_row_names_as_acked_are_not_delivered_and_stay_in_the_row() -> None:
    acks = ShardAcks(((2, 4), (6, 9)), window=10)
    assert _delivered(acks, 0, 1, 2, 3) == [0, 1]
    assert acks.acked == ((2, 4), (6, 9))
    acks.ack(0)
    acks.ack(1)
    assert _row(acks) == (4, ((6, 9),))


# --- against a model -------------------------------------------------------------------------------------------------


class History:
    """A random history of one shard with restarts, and a model that keeps plain sets."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.window = self.dice.choice([1, 2, 5, 20])
        step: Callable[[], int] = self.dice.choice([lambda: 1, lambda: self.dice.choice([1, 1, 2, 9])])
        self.records = [0]
        while len(self.records) < 40:
            self.records.append(self.records[-1] + step())
        self.acked: set[int] = set()
        self.committed: tuple[int, tuple[tuple[int, int], ...], frozenset[int]] = (0, (), frozenset())
        self.acks = ShardAcks(window=self.window)
        self.read = self.start = 0

    def run(self) -> None:
        steps = [self.deliver, self.deliver, self.ack, self.ack, self.commit, self.restart]
        for _ in range(120):
            self.dice.choices(steps, [8, 8, 8, 8, 4, 1])[0]()
        self.commit()

    def deliver(self) -> None:
        if self.read == len(self.records) or self.acks.full:
            return
        offset = self.records[self.read]
        assert self.acks.deliver(offset) == (offset not in self.acked)
        self.read += 1

    def ack(self) -> None:
        """Mostly of a record that is out; sometimes of one that was not read yet, or again."""
        near = self.records[max(0, self.read - 8) : self.read]
        offset = self.dice.choice(near if near and self.dice.random() < 0.8 else self.records)
        if self.acks.ack(offset):
            self.acked.add(offset)

    def commit(self) -> None:
        self.check()
        self.committed = self.position(), self.acks.acked, frozenset(self.acked)

    def restart(self) -> None:
        position, ranges, acked = self.committed
        self.start = position
        self.acks, self.acked = ShardAcks(ranges, window=self.window), set(acked)
        self.read = next((at for at, offset in enumerate(self.records) if offset >= position), len(self.records))
        self.check()

    def position(self) -> Any:
        return self.acks.position(Numbers(), self.start)

    def check(self) -> None:
        position, ranges = self.position(), self.acks.acked
        covered = {offset for offset in self.records if offset < position}
        covered |= {offset for offset in self.records for start, end in ranges if start <= offset < end}
        assert covered == self.acked, "exactly the acknowledged records are before the position or in a range"
        assert all(offset in self.acked for offset in self.records if offset < position)
        assert list(ranges) == sorted(ranges)
        assert all(before[1] < after[0] for before, after in pairwise(ranges))
        assert len(ranges) <= 2 * self.window
        unacked = [offset for offset in self.records[: self.read] if offset not in self.acked]
        assert position == (unacked[0] if unacked else self.start if self.acks.last is None else self.acks.last + 1)


@pytest.mark.parametrize("seeds", [range(first, first + 500) for first in range(0, 3000, 500)], ids=str)
def test_nothing_unacked_is_skipped_or_committed_in_any_history(seeds: range) -> None:
    for seed in seeds:
        try:
            History(seed).run()
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
