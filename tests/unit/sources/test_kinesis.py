"""The source `kinesis` without a server: what a reader does when Kinesis refuses, and which shards wait for others."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from holdfast.errors import BatchError, Halt, SourceUnavailable
from holdfast.flow.batch import Cut
from holdfast.flow.shards import RecordsMissing, ShardFailed
from holdfast.leases.lease import Json, Progress, new_lease
from holdfast.sources.kinesis import shard_reader
from holdfast.sources.kinesis.client import IteratorExpired, StreamAccess, StreamSummary, Throttled
from holdfast.sources.kinesis.config import KinesisConfig
from holdfast.sources.kinesis.shard_reader import KinesisReader, KinesisReaderFactory, record_number
from holdfast.sources.kinesis.source import KinesisSource

NOW = datetime(2026, 1, 2, tzinfo=UTC).timestamp()
DAY = 86_400.0


class FakeKinesis:
    """Records by shard, and errors that come first."""

    def __init__(self) -> None:
        self.id = "created"
        self.numbers: dict[str, list[int]] = defaultdict(list)
        self.ages: dict[int, float] = {}
        self.errors: deque[Exception] = deque()
        self.undescribed: deque[Exception] = deque()
        self.positions: list[Json] = []
        self.listed: list[Mapping[str, Any]] = []

    def summary(self) -> StreamSummary:
        if self.undescribed:
            raise self.undescribed.popleft()
        return StreamSummary(self.id, DAY, NOW)

    def shards(self) -> list[Mapping[str, Any]]:
        return self.listed

    def iterator(self, shard: str, position: Json) -> str:
        self.positions.append(position)
        first = int(position["at"]) if "at" in position else 0
        return f"{shard}:{first}"

    def records(self, iterator: str, limit: int) -> Mapping[str, Any]:
        if self.errors:
            raise self.errors.popleft()
        shard, _, first = iterator.partition(":")
        numbers = [number for number in self.numbers[shard] if number >= int(first)][:limit]
        return {
            "Records": [self._record(number) for number in numbers],
            "NextShardIterator": f"{shard}:{(numbers[-1] if numbers else int(first) - 1) + 1}",
            "MillisBehindLatest": 7,
        }

    def _record(self, number: int) -> Mapping[str, Any]:
        arrived = datetime.fromtimestamp(NOW - self.ages.get(number, 0.0), UTC)
        return {
            "SequenceNumber": str(number),
            "PartitionKey": "k",
            "Data": b"%d" % number,
            "ApproximateArrivalTimestamp": arrived,
        }

    def close(self) -> None:
        pass


@pytest.fixture
def kinesis(monkeypatch: pytest.MonkeyPatch) -> FakeKinesis:
    fake = FakeKinesis()
    monkeypatch.setattr(shard_reader, "KinesisClient", lambda *_: fake)
    monkeypatch.setattr(shard_reader, "FIRST_PAUSE", 0.001)
    return fake


def reader(on_loss: str = "halt") -> KinesisReader:
    return KinesisReaderFactory(StreamAccess("s", "r"), "created", on_loss, interval=0.001).open()


def offsets(made: KinesisReader, count: int) -> list[int]:
    found: list[int] = []
    while len(found) < count:
        try:
            found += [record.offset for record in made.fetch(10, 5.0)]
        except SourceUnavailable:
            continue
    return found


@pytest.mark.parametrize("error", [Throttled("slow"), IteratorExpired("old"), SourceUnavailable("away")], ids=str)
def test_nothing_is_lost_or_repeated_when_kinesis_refuses(kinesis: FakeKinesis, error: Exception) -> None:
    kinesis.numbers["0"] = [1, 2]
    made = reader()
    made.add("s/0", {"earliest": True})
    assert offsets(made, 2) == [1, 2]
    kinesis.errors.extend([error] * 3)
    kinesis.numbers["0"] += [3]
    assert offsets(made, 1) == [3]
    assert made.reports() == []
    made.close()


def test_a_shard_that_is_throttled_waits_longer_each_time(kinesis: FakeKinesis) -> None:
    now = [100.0]
    made = KinesisReader(KinesisReaderFactory(StreamAccess("s", "r"), "created"), lambda: now[0])
    made.add("s/0", {"earliest": True})
    kinesis.errors.extend([Throttled("slow")] * 2)
    kinesis.numbers["0"] = [1]
    waits = []
    while not (records := list(made.fetch(10, 0.0))):
        made._wait(0.01)
        reading = made._readings["s/0"]
        if reading.running is None and reading.due_at > now[0]:
            waits.append(reading.due_at - now[0])
            now[0] = reading.due_at
    assert [record.offset for record in records] == [1]
    assert waits == [0.5, 1.0]
    made.close()


def test_a_position_that_kinesis_does_not_know_fails_its_shard_alone(kinesis: FakeKinesis) -> None:
    kinesis.errors.append(BatchError("refused"))
    made = reader()
    made.add("s/0", {"earliest": True})
    while not (reports := made.reports()):
        made.fetch(1, 0.1)
    assert reports == [ShardFailed("s/0", "refused")]
    made.close()


def test_an_error_that_nobody_expects_fails_its_shard_alone(kinesis: FakeKinesis) -> None:
    kinesis.numbers["1"] = [1]
    kinesis.errors.append(KeyError("Records"))
    made = reader()
    made.add("s/0", {"earliest": True})
    while not (reports := made.reports()):
        made.fetch(1, 0.1)
    assert reports == [ShardFailed("s/0", "KeyError: 'Records'")]
    made.add("s/1", {"earliest": True})
    assert offsets(made, 1) == [1]
    made.close()


@pytest.mark.parametrize("error", [SourceUnavailable("away"), BatchError("refused"), KeyError("date")], ids=repr)
def test_a_stream_that_cannot_be_described_is_away_until_it_can(kinesis: FakeKinesis, error: Exception) -> None:
    kinesis.numbers["0"] = [1]
    kinesis.undescribed.append(error)
    made = reader()
    made.add("s/0", {"earliest": True})
    made.fetch(1, 0.0)
    made._wait(5.0)
    with pytest.raises(SourceUnavailable, match=str(error.args[0])):
        made.fetch(1, 0.0)
    assert offsets(made, 1) == [1]
    made.close()


@pytest.mark.parametrize(
    ("position", "left", "age", "missing"),
    [
        ({"after": "5"}, [5, 6], 0.0, None),
        ({"at": "5"}, [5, 6], 0.0, None),
        # The record that was read last is gone, and the next one goes soon: others went between them.
        ({"after": "5"}, [8], DAY - 60, (5, 8)),
        # It is gone because nothing was sent for a day.
        ({"after": "5"}, [8], 60.0, None),
        # The next record to read is gone.
        ({"at": "5"}, [8], 60.0, (5, 8)),
    ],
)
@pytest.mark.parametrize("on_loss", ["halt", "record"])
def test_records_that_retention_deleted_are_reported(
    kinesis: FakeKinesis, position: Json, left: list[int], age: float, missing: tuple[int, int] | None, on_loss: str
) -> None:
    kinesis.numbers["0"], kinesis.ages[left[-1]] = left, age
    made = reader(on_loss)
    made.add("s/0", position)
    if missing is not None:
        while not (reports := made.reports()):
            made.fetch(0, 0.1)
        assert reports == [RecordsMissing("s/0", *missing, on_loss == "halt")]
    if missing is None or on_loss == "record":
        expected = [number for number in left if number > 5 or "at" in position]
        assert offsets(made, len(expected)) == expected
    assert made.reports() == []
    made.close()


def source(kinesis: FakeKinesis, **settings: object) -> KinesisSource:
    made = KinesisSource(KinesisConfig.model_validate({"stream": "s", "region": "r", **settings}))
    made._opened = kinesis  # type: ignore[assignment]
    return made


def shard(number: int, *parents: int, closed: bool = False) -> Mapping[str, Any]:
    names = ("ParentShardId", "AdjacentParentShardId")
    ends = {"EndingSequenceNumber": "9"} if closed else {}
    return {
        "ShardId": f"shardId-{number:012}",
        "SequenceNumberRange": {"StartingSequenceNumber": "0", **ends},
        **{name: f"shardId-{parent:012}" for name, parent in zip(names, parents, strict=False)},
    }


def test_children_follow_their_parents_as_long_as_these_are_listed(kinesis: FakeKinesis) -> None:
    kinesis.listed = [shard(3, 1, 2), shard(0), shard(1, closed=True), shard(2, 9, closed=True)]
    found = list(source(kinesis).discover({}))
    assert [(partition.index, [key[-1] for key in partition.after]) for partition in found] == [
        (0, []),
        (1, []),
        (2, []),
        (3, ["1", "2"]),
    ]


def test_a_stream_that_was_created_again_is_left_out_and_halts(kinesis: FakeKinesis) -> None:
    kinesis.listed = [shard(0)]
    made, state = source(kinesis), dict[str, Any]()
    (partition,) = made.discover(state)
    lease = new_lease("p", partition, "w", now=0.0)
    assert made.begin([lease]) == [Cut({"earliest": True}, None)]
    kinesis.id = "again"
    assert list(made.discover(state)) == []
    assert isinstance(made.begin([lease])[0], Halt)
    assert "created again" in str(made.noticed())


def test_shards_found_later_begin_at_their_first_record(kinesis: FakeKinesis) -> None:
    kinesis.listed = [shard(0)]
    time = {"start": "time", "start_time": "2001-01-01T00:00:00Z"}
    made, state = source(kinesis, **time), dict[str, Any]()
    (first,) = made.discover(state)
    kinesis.listed.append(shard(1, 0))
    _, second = made.discover(state)
    assert first.spec["start"] == {"time": 978307200000}
    assert second.spec["start"] == {"earliest": True}


def test_a_stored_position_counts(kinesis: FakeKinesis) -> None:
    kinesis.listed = [shard(0)]
    (partition,) = source(kinesis).discover({})
    lease = replace(new_lease("p", partition, "w", now=0.0), progress=Progress({"after": "7"}))
    assert source(kinesis).begin([lease]) == [Cut({"after": "7"}, None)]


def test_the_number_of_a_record_is_taken_out_of_its_sequence_number() -> None:
    """Two of a real stream, and one of another form."""
    earlier, later = (
        49590338271490256608559692538361571095921575989136588898,
        49590338271490256608559692540925702759324208523137515618,
    )
    assert (record_number(earlier), record_number(later)) == (1734642199, 1734644320)
    assert record_number(49545115243490985018280067714973144582180062593244200961) is None
    assert record_number(7) is None
