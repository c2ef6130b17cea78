"""Progress as people see it: from events and sums."""

from __future__ import annotations

import pytest

from holdfast.events import (
    AttemptFailed,
    BatchCommitted,
    Event,
    LagMeasured,
    NodeLeft,
    PartitionCompleted,
    PartitionFailed,
    PartitionLost,
    PipelineProgressed,
    SessionEnded,
)
from holdfast.leases.lease import Counts, Status
from holdfast.leases.sums import PartitionSum
from holdfast.observe.progress import Progress, rounded, shortened


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def committed(records: int, dead: int = 0) -> BatchCommitted:
    return BatchCommitted("orders", "a", 1, records, dead)


def test_records_are_those_of_the_store_and_what_this_node_committed_since() -> None:
    clock = Clock()
    progress = Progress(["orders"], clock)
    progress(committed(100))
    clock.now = 10.0
    sums = [
        PartitionSum("", Status.COMPLETED, "b", 3, counts=Counts(processed=900, succeeded=890, dead=10)),
        PartitionSum("", Status.ASSIGNED, "a", 2, counts=Counts(processed=100, succeeded=100)),
        PartitionSum("", Status.ASSIGNED, "b", 1),
        PartitionSum("", Status.FAILED, "b", 1),
    ]
    progress.learn({"orders": sums})
    progress(committed(50))
    (now,) = progress.now(advance=True)
    assert now == PipelineProgressed("orders", 3, 7, 1050, 15.0, None, None, 0, 1, 10, 2)
    progress.learn({"orders": sums}, {"orders": 3})
    assert progress.now()[0].nodes == 3, "also nodes that hold nothing"
    clock.now = 20.0
    assert progress.now()[0].rate == 0.0


def test_a_display_shows_the_rate_of_the_last_seconds() -> None:
    clock = Clock()
    progress = Progress(["orders"], clock)
    seen = []
    # Spark starts for 40 seconds, then 1,000 records are committed.
    for seconds, records in [(40, 0), (45, 500), (50, 500), (55, 0), (61, 0)]:
        clock.now = seconds
        progress(committed(records))
        seen.append(progress.recent()[0].rate)
    assert seen == [0.0, 11.1, 100.0, 66.7, 0.0]


def test_the_time_left_follows_from_the_partitions_that_were_completed() -> None:
    clock = Clock()
    progress = Progress(["orders"], clock)
    progress.learn(
        {"orders": [PartitionSum("", Status.COMPLETED, "a", 10), PartitionSum("", Status.ASSIGNED, "a", 90)]}
    )
    clock.now = 60.0
    progress.learn(
        {"orders": [PartitionSum("", Status.COMPLETED, "a", 40), PartitionSum("", Status.ASSIGNED, "a", 60)]}
    )
    assert progress.now()[0].seconds_left == 120


def test_partitions_that_this_node_completes_count_at_once_and_once() -> None:
    clock = Clock()
    clock.now = 50.0  # Spark has started
    progress = Progress(["orders"], clock)
    progress.learn({"orders": []})
    clock.now = 100.0
    progress.learn({"orders": [PartitionSum("", Status.ASSIGNED, "a", 8)]})
    clock.now = 110.0
    for key in ("a", "b", "a"):
        progress(PartitionCompleted("orders", key, 10))
    assert (progress.now()[0].completed, progress.now()[0].seconds_left) == (2, 30)
    progress.learn({"orders": [PartitionSum("", Status.COMPLETED, "a", 2), PartitionSum("", Status.ASSIGNED, "a", 6)]})
    assert progress.now()[0].completed == 2


def test_a_source_that_measures_its_lag_has_a_lag_and_no_end() -> None:
    progress = Progress(["orders"])
    for key, records in (("a", 5), ("b", 7), ("a", 2)):
        progress(LagMeasured("orders", key, records, None))
    now = progress.now()[0]
    assert (now.lag, now.seconds_left) == (9, None)


@pytest.mark.parametrize(
    ("end", "lags"),
    [
        (PartitionLost("orders", "a", "another owner"), [7, 1]),
        (PartitionFailed("orders", "a", "bad"), [7, 1]),
        (PartitionLost("elsewhere", "a", "another owner"), [12, 1]),
        (SessionEnded("s", "silent"), [None, None]),
        (NodeLeft("n", "s"), [None, None]),
    ],
    ids=["lost", "failed", "of another pipeline", "session ended", "node left"],
)
def test_the_lag_is_that_of_partitions_that_are_held(end: Event, lags: list[int | None]) -> None:
    progress = Progress(["orders", "users"])
    for pipeline, key, records in (("orders", "a", 5), ("orders", "b", 7), ("users", "a", 1)):
        progress(LagMeasured(pipeline, key, records, None))
    progress(end)
    assert [each.lag for each in progress.now()] == lags


def test_the_last_line_tells_records_duration_rate_and_failures() -> None:
    clock = Clock()
    progress = Progress(["orders", "users"], clock)
    progress(committed(12345, dead=2))
    progress(AttemptFailed("orders", "x", 1, "bad"))
    progress(PartitionFailed("orders", "x", "bad"))
    progress(PartitionFailed("elsewhere", "y", "bad"))
    clock.now = 125.0
    assert str(progress.summary()) == "12,345 records in 2m 5s (98.8/s), 2 dead letters, 1 partition failed"


@pytest.mark.parametrize(
    ("number", "text"), [(0, "0"), (0.1234, "0.123"), (98.76, "98.8"), (123.4, "123"), (1234567.8, "1,234,568")]
)
def test_numbers_are_rounded(number: float, text: str) -> None:
    assert rounded(number) == text


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.123, "0.1s"), (12.4, "12s"), (60, "1m"), (3725, "1h 2m"), (90061, "1d 1h"), (59.7, "1m")]
)
def test_durations_are_rounded(seconds: float, text: str) -> None:
    assert shortened(seconds) == text
