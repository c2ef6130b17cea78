"""The embedded stream shows the behaviour of streams; streams that are wrong on purpose do not."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from msgspec import structs

from holdfast.flow.shards import ReaderFactory, RecordsMissing, ShardReport, StreamRecord
from holdfast.leases.lease import Json
from holdfast.sources.stream.config import StreamConfig
from holdfast.sources.stream.frames import NewRecord
from holdfast.sources.stream.reader import EmbeddedReader, EmbeddedReaderFactory
from holdfast.sources.stream.segments import segments
from holdfast.sources.stream.source import StreamSource
from holdfast.sources.stream.stream import Stream, StreamSettings, shard_folder, shard_number
from holdfast.testing.stream_setting import SampleRecord
from holdfast.testing.streams import StreamBehaviour

NAME = "suite"


class EmbeddedSetting(StreamBehaviour):
    """A stream of two shards in a folder, with tiny segments."""

    folder: Path
    settings = StreamSettings(2, segment_bytes=200)

    @pytest.fixture(autouse=True)
    def _in(self, tmp_path: Path) -> None:
        self.folder = tmp_path

    def make_stream(self) -> StreamSource:
        self.stream = Stream.create(self.folder, NAME, self.settings)
        return self.source("halt")

    def source(self, on_loss: str) -> StreamSource:
        source = StreamSource(
            StreamConfig.model_validate({"name": NAME, "folder": str(self.folder), "on_loss": on_loss})
        )
        source.open()
        return source

    def append(self, shard: str, records: Sequence[SampleRecord]) -> None:
        stream = Stream.open(self.folder, NAME)
        stream.append(shard_number(shard), [NewRecord(*record) for record in records])
        stream.close()

    def make_continuing_factory(self) -> ReaderFactory:
        return self.source("record").reader_factory()

    def delete_records(self, shard: str) -> bool:
        stream = Stream.open(self.folder, NAME)
        stream.append(shard_number(shard), [NewRecord(b"x" * 300)])
        stream.append(shard_number(shard), [NewRecord(b"newest")])
        stream.close()
        for segment in segments(shard_folder(self.folder / NAME, shard_number(shard)))[:-1]:
            segment.remove()
        return True

    def make_unreachable_factory(self) -> ReaderFactory:
        return EmbeddedReaderFactory(self.folder, "elsewhere", "id")


class TestEmbeddedStream(EmbeddedSetting):
    pass


class TestEmbeddedStreamOnDisk(EmbeddedSetting):
    settings = StreamSettings(3, durability="disk")

    def delete_records(self, shard: str) -> bool:
        return False


# --- streams that are wrong on purpose -------------------------------------------------------------------------------


class OneTooFar(EmbeddedReader):
    """The position after a record skips the next one."""

    def position_after(self, offset: int) -> Json:
        return super().position_at(offset + 2)


class Repeats(EmbeddedReader):
    """The first records come twice."""

    kept: list[StreamRecord] | None = None

    def fetch(self, limit: int, timeout: float) -> list[StreamRecord]:
        found = super().fetch(limit, timeout)
        if self.kept is None and found:
            self.kept = found
        elif not found and self.kept:
            found, self.kept = self.kept[:limit], []
        return found


class IgnoresLimits(EmbeddedReader):
    def fetch(self, limit: int, timeout: float) -> list[StreamRecord]:
        return super().fetch(limit + 1, timeout)


class Unordered(EmbeddedReader):
    def fetch(self, limit: int, timeout: float) -> list[StreamRecord]:
        return super().fetch(limit, timeout)[::-1]


class SilentLoss(EmbeddedReader):
    """Skips what retention has deleted without a word."""

    def reports(self) -> list[ShardReport]:
        return [report for report in super().reports() if not isinstance(report, RecordsMissing)]


class FreshStart(EmbeddedReader):
    """Begins anew where it cannot read the position."""

    def add(self, shard: str, position: Json) -> None:
        super().add(shard, position if "offset" in position else {"offset": 0})


class EmptyWhenAway(EmbeddedReader):
    def fetch(self, limit: int, timeout: float) -> list[StreamRecord]:
        try:
            return super().fetch(limit, timeout)
        except Exception:  # noqa: BLE001 - the fault is the point
            return []


class LosesKeys(EmbeddedReader):
    def fetch(self, limit: int, timeout: float) -> list[StreamRecord]:
        return [structs.replace(record, key=None) for record in super().fetch(limit, timeout)]


class ForgetsPaused(EmbeddedReader):
    """What was read and not fetched is lost in a pause."""

    def pause(self, shard: str) -> None:
        super().pause(shard)
        self._readings[shard].waiting = []
        self._readings[shard].fetched = 0


FOUND_BY = {
    OneTooFar: StreamBehaviour.test_reading_goes_on_exactly_at_every_position,
    Repeats: StreamBehaviour.test_records_arrive_whole_in_order_and_once,
    IgnoresLimits: StreamBehaviour.test_limits_are_kept_and_nothing_is_lost_by_them,
    Unordered: StreamBehaviour.test_records_arrive_whole_in_order_and_once,
    SilentLoss: StreamBehaviour.test_records_that_retention_has_deleted_are_reported_and_the_shard_halts,
    FreshStart: StreamBehaviour.test_an_unreadable_position_is_reported_and_is_not_a_fresh_start,
    EmptyWhenAway: StreamBehaviour.test_a_stream_that_does_not_respond_is_not_empty,
    LosesKeys: StreamBehaviour.test_records_arrive_whole_in_order_and_once,
    ForgetsPaused: StreamBehaviour.test_a_paused_shard_waits_and_loses_nothing,
}


@pytest.mark.parametrize("broken", FOUND_BY)
def test_a_broken_stream_is_found_out(
    broken: type[EmbeddedReader], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    suite = EmbeddedSetting()
    suite.patience, suite.folder = 0.3, tmp_path
    monkeypatch.setattr(EmbeddedReaderFactory, "open", lambda factory: broken(factory))  # noqa: PLW0108 - a class would not be bound
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        FOUND_BY[broken](suite)
