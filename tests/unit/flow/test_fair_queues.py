"""Shards take turns, whatever one of them has, and a pause keeps records in their order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import pytest

from holdfast.flow.fair_queues import FairQueues, RecordQueue
from holdfast.flow.shards import StreamRecord


def records(shard: str, first: int, end: int) -> list[StreamRecord]:
    return [StreamRecord(shard, offset, 0, None, (), b"") for offset in range(first, end)]


def taken(queues: FairQueues, limit: int) -> list[tuple[str, int]]:
    return [(shard, record.offset) for shard, records in queues.take(limit) for record in records]


def test_each_shard_has_an_equal_share_and_what_is_left_goes_to_those_that_have_more() -> None:
    queues = FairQueues()
    queues.put("busy", records("busy", 0, 100))
    queues.put("quiet", records("quiet", 0, 1))
    first = taken(queues, 10)
    assert first == [*(("busy", offset) for offset in range(5)), ("quiet", 0), *(("busy", at) for at in range(5, 9))]
    assert taken(queues, 100) == [("busy", offset) for offset in range(9, 100)]
    assert taken(queues, 1) == []


def test_more_shards_than_records_take_turns() -> None:
    queues = FairQueues()
    for shard in "abc":
        queues.put(shard, records(shard, 0, 2))
    assert [taken(queues, 2) for _ in range(3)] == [
        [("a", 0), ("b", 0)],
        [("c", 0), ("a", 1)],
        [("b", 1), ("c", 1)],
    ]


def test_a_paused_shard_keeps_its_records_in_order_and_a_dropped_one_does_not() -> None:
    queues = FairQueues()
    queues.put("a", records("a", 0, 2))
    queues.paused.add("a")
    queues.put("a", records("a", 2, 3))
    assert (taken(queues, 9), queues.ready, len(queues.waiting("a"))) == ([], 0, 3)
    queues.paused.discard("a")
    assert taken(queues, 2) == [("a", 0), ("a", 1)]
    queues.drop("a")
    assert taken(queues, 9) == []


class Made(Sequence[StreamRecord]):
    """Records that are made when they are read; `made` counts them."""

    def __init__(self, offsets: range, made: list[int]) -> None:
        self.offsets, self.made = offsets, made

    def __len__(self) -> int:
        return len(self.offsets)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return Made(self.offsets[index], self.made)
        self.made.append(self.offsets[index])
        return StreamRecord("a", self.offsets[index], 0, None, (), b"")


def test_records_that_are_made_when_they_are_read_stay_unmade_on_their_way() -> None:
    queues, made, queue = FairQueues(), list[int](), RecordQueue()
    for first in range(0, 100, 10):
        queues.put("a", Made(range(first, first + 10), made))
    while fetched := queues.take(25):
        for _, parts in fetched:
            queue.extend(parts)
    batches = [queue.take(30) for _ in range(4)]
    assert ([len(batch) for batch in batches], made, len(queue)) == ([30, 30, 30, 10], [], 0)
    assert [(batch[0].offset, batch[-1].offset, batch[5].offset) for batch in batches] == [
        (first, min(first + 29, 99), first + 5) for first in range(0, 100, 30)
    ]
    assert sorted(made) == sorted([*range(0, 100, 30), 29, 59, 89, 99, 5, 35, 65, 95])
    assert [record.offset for batch in batches for record in batch] == list(range(100))
    assert [record.offset for record in batches[0][8:12]] == [8, 9, 10, 11]


def test_a_queue_gives_back_its_records_one_by_one_and_all_at_once() -> None:
    queue = RecordQueue()
    queue.extend(records("a", 0, 2))
    queue.extend([])
    queue.extend(records("a", 2, 5))
    assert (queue.first.offset, queue.popleft().offset, queue.popleft().offset, len(queue)) == (0, 0, 1, 3)
    assert [record.offset for record in queue] == [2, 3, 4]
    queue.clear()
    assert (len(queue), bool(queue), list(queue.take(9))) == (0, False, [])


class Cut(list[StreamRecord]):
    """Records; `copied` has the length of each slice."""

    copied: ClassVar[list[int]] = []

    def __getitem__(self, index: Any) -> Any:
        found = super().__getitem__(index)
        if isinstance(index, slice):
            self.copied.append(len(found))
            return Cut(found)
        return found


def test_whoever_takes_records_one_by_one_copies_none_of_the_others() -> None:
    queue = RecordQueue()
    queue.extend(Cut(records("a", 0, 10)))
    queue.extend(Cut(records("a", 10, 12)))
    assert [queue.popleft().offset for _ in range(4)] == [0, 1, 2, 3]
    assert (queue.first.offset, len(queue), [record.offset for record in queue]) == (4, 8, [*range(4, 12)])
    assert [record.offset for record in queue.take(2)] == [4, 5]
    assert [queue.popleft().offset for _ in range(len(queue))] == [*range(6, 12)]
    assert (len(queue), [*queue], Cut.copied) == (0, [], [2])
    with pytest.raises(IndexError):
        queue.popleft()
    queue.extend(Cut(records("a", 12, 15)))
    assert queue.popleft().offset == 12
    queue.clear()
    queue.extend(Cut(records("a", 15, 16)))
    assert [record.offset for record in queue.take(5)] == [15]


def test_the_rest_of_a_part_and_the_next_one_are_taken_together() -> None:
    queue = RecordQueue()
    queue.extend(records("a", 0, 3))
    queue.extend(records("a", 3, 6))
    queue.popleft()
    assert [record.offset for record in queue.take(4)] == [1, 2, 3, 4]
    assert [record.offset for record in queue] == [5]
