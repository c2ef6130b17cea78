"""Shards take turns, whatever one of them has, and a pause keeps records in their order."""

from __future__ import annotations

from holdfast.flow.fair_queues import FairQueues
from holdfast.flow.shards import StreamRecord


def records(shard: str, first: int, end: int) -> list[StreamRecord]:
    return [StreamRecord(shard, offset, 0, None, (), b"") for offset in range(first, end)]


def taken(queues: FairQueues, limit: int) -> list[tuple[str, int]]:
    return [(record.shard, record.offset) for record in queues.take(limit)]


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
