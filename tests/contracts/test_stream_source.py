"""The source `stream` as a source of ordinary pipelines: planned by offsets, read by tasks."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from holdfast.errors import BatchError, Halt, Unavailable
from holdfast.events import RecordsLost
from holdfast.flow.batch import Batch, Cut, Limits, Wait
from holdfast.flow.source import Source
from holdfast.sources.stream import PLUGIN
from holdfast.sources.stream.frames import NewRecord
from holdfast.sources.stream.segments import segments
from holdfast.sources.stream.source import StreamSource
from holdfast.sources.stream.stream import Stream, StreamSettings
from holdfast.testing.source_setting import at, read_batches
from holdfast.testing.sources import SourceBehaviour


@pytest.fixture
def spark() -> Any:
    """Tasks read a stream by themselves: its rows need no session."""
    return None


class StreamSetting(SourceBehaviour):
    records = 12
    small = Limits(max_bytes=1 << 20, max_records=2)
    given: dict[str, Any]

    @pytest.fixture(autouse=True)
    def _stream(self, tmp_path: Path) -> None:
        self.ahead, self.folder, self.given = 0.0, tmp_path, {}
        self.stream = Stream.create(tmp_path, "orders", StreamSettings(2, segment_bytes=200))
        for shard in range(2):
            for number in range(2):
                self.stream.append(
                    shard, [NewRecord(b"%d" % n, b"k", (("h", b"1"),)) for n in range(number, number + 3)]
                )

    def source(self, name: str, **more: Any) -> StreamSource:
        given = {"name": name, "folder": str(self.folder), "upload": {"max_age": "1s"}, **self.given, **more}
        return StreamSource(PLUGIN.config.model_validate(given), now=lambda: time.time() + self.ahead)

    def make_source(self) -> Source:
        return self.source("orders")

    def make_unreachable_source(self) -> Source:
        return self.source("elsewhere")

    def pass_time(self, seconds: float) -> None:
        self.ahead += seconds


class TestStream(StreamSetting):
    def test_rows_have_the_columns_of_messages(self, spark: Any) -> None:
        with self.opened() as source:
            (batch, _) = self.planned(source, self.leases(source), Limits())
            first = read_batches(source, spark, [batch])[batch.id][0]
        assert {name: first[name] for name in ("topic", "partition", "offset", "key", "value", "headers")} == {
            "topic": "orders",
            "partition": 0,
            "offset": 0,
            "key": b"k",
            "value": b"0",
            "headers": [{"key": "h", "value": b"1"}],
        }
        assert abs(first["timestamp"].timestamp() - time.time()) < 3600

    def test_records_wait_until_they_are_due(self) -> None:
        self.given = {"upload": {"max_age": "1h"}}
        with self.opened() as source:
            leases = self.leases(source)
            (plan,) = source.plan(leases[:1], Limits())
            assert isinstance(plan, Wait)
            self.pass_time(3600)
            (plan,) = source.plan(leases[:1], Limits())
            assert isinstance(plan, Cut)

    def test_the_start_is_kept_from_the_first_discovery(self) -> None:
        self.given = {"start": "latest"}
        state: dict[str, Any] = {}
        with self.opened() as source:
            assert [found.spec["start"] for found in self.partitions(source, state)] == [6, 6]
            self.stream.append(0, [NewRecord(b"new")])
            assert [found.spec["start"] for found in self.partitions(source, state)] == [6, 6]

    def test_records_that_retention_has_deleted_halt_the_shard_or_are_recorded(self, spark: Any) -> None:
        with self.opened() as source:
            lease = self.leases(source)[0]
            batch = Batch("b", lease, source.name(lease), Cut({"offset": 0}, {"offset": 6}))
            self.stream.append(0, [NewRecord(b"x" * 200)])
            self.stream.append(0, [NewRecord(b"in the next segment")])
            for segment in segments(self.stream.path / "00000")[:-1]:
                segment.remove()
            (plan,) = source.plan([lease], Limits())
            first = self.stream.bounds(0)[0]
            assert isinstance(plan, Halt)
            assert plan.lost == (0, first)
            assert isinstance(source, StreamSource)
            assert [event for event in source.noticed() if isinstance(event, RecordsLost)]
            with pytest.raises(BatchError, match="deleted"):
                read_batches(source, spark, [batch])
        self.given = {"on_loss": "record"}
        with self.opened() as source:
            (batch,) = self.planned(source, [lease], Limits())
            assert batch.cut.gaps == ((0, first),)
            assert [row["offset"] for row in read_batches(source, spark, [batch])["b0"]] == [*range(first, 8)]

    def test_a_stream_that_was_created_again_halts(self, spark: Any) -> None:
        with self.opened() as source:
            batches = self.planned(source, self.leases(source), Limits())
            self.stream.delete()
            with pytest.raises(Unavailable):
                read_batches(source, spark, batches)
            Stream.create(self.folder, "orders", StreamSettings(2))
            (plan,) = source.plan([batches[0].lease], Limits())
            assert isinstance(plan, Halt)
            with pytest.raises(BatchError, match="created again"):
                read_batches(source, spark, batches)

    def test_a_shard_that_lost_records_halts(self) -> None:
        with self.opened() as source:
            (plan,) = source.plan([at(self.leases(source)[0], {"offset": 100})], Limits())
            assert isinstance(plan, Halt)
