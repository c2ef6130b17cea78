"""The behaviour that every sharded stream must show. Subclass it to test your own.

class TestMyStream(StreamBehaviour):
    def make_stream(self) -> ShardedStream:
        ...                              # a new stream with at least two shards and without records

    def append(self, shard: str, records: Sequence[SampleRecord]) -> None:
        ...                              # by the stream's own client; returns once the records are readable
"""

from __future__ import annotations

import threading
import time

import pytest

from holdfast.errors import SourceUnavailable
from holdfast.flow.shards import RecordsMissing, ShardEnded, ShardFailed, ShardReader
from holdfast.testing.stream_setting import SampleRecord, StreamSetting, bodies, numbered, opened, through_json

SOON = 0.05
"""Seconds for which the suite waits for records that must not come."""


class StreamBehaviour(StreamSetting):
    """The guarantees of a sharded stream that functions rely on."""

    def test_shards_have_distinct_ids_and_numbers(self) -> None:
        stream = self.make_stream()
        shards = stream.shards()
        assert len(shards) >= 2, "the suite needs a stream with two shards"
        assert len({shard.id for shard in shards}) == len({shard.number for shard in shards}) == len(shards)
        assert list(stream.shards()) == list(shards)

    def test_records_arrive_whole_in_order_and_once(self) -> None:
        stream = self.make_stream()
        first, second = (shard.id for shard in stream.shards()[:2])
        sent = [
            SampleRecord(b"plain"),
            SampleRecord(b"", b"key" if self.keeps_keys else None),
            SampleRecord(b"\x00\xff" * 20, None, (("h", b"1"), ("h", b"2")) if self.keeps_headers else ()),
            SampleRecord(None if self.keeps_absent_bodies else b"last"),
            SampleRecord(b"L" * self.max_body),
        ]
        positions = dict(stream.seek([first, second], "earliest"))
        self.append(first, sent)
        self.append(second, numbered(0, 3, "other"))
        with self.reading(stream, positions) as reader:
            records = self.fetched(reader, 8)
            assert reader.fetch(10, SOON) == [], "records came twice"
        found = [record for record in records if record.shard == first]
        assert bodies(found) == [record.body for record in sent]
        if self.keeps_keys:
            assert [record.key for record in found] == [record.key for record in sent]
        assert [tuple(record.headers) for record in found] == [record.headers for record in sent]
        assert bodies(records, second) == [b"other-0", b"other-1", b"other-2"]
        offsets = [record.offset for record in found]
        assert offsets == sorted(set(offsets))
        assert all(abs(record.timestamp / 1000 - time.time()) < 3600 for record in found), "timestamps in milliseconds"

    def test_limits_are_kept_and_nothing_is_lost_by_them(self) -> None:
        stream = self.make_stream()
        shard = stream.shards()[0].id
        self.append(shard, numbered(0, 25))
        with self.reading(stream, dict(stream.seek([shard], "earliest"))) as reader:
            records = self.fetched(reader, 25, limit=4)
        assert bodies(records) == [record.body for record in numbered(0, 25)]

    def test_a_fetch_without_records_ends_in_time(self) -> None:
        stream = self.make_stream()
        with self.reading(stream, dict(stream.seek([stream.shards()[0].id], "earliest"))) as reader:
            started = time.monotonic()
            assert list(reader.fetch(10, 0.2)) == []
            assert time.monotonic() - started < self.patience

    def test_a_waiting_fetch_gets_a_record_that_arrives(self) -> None:
        stream = self.make_stream()
        shard = stream.shards()[1].id
        positions = dict(stream.seek([shard], "latest"))
        appender = threading.Thread(target=self.append, args=(shard, numbered(0, 1)))
        with self.reading(stream, positions) as reader:
            reader.fetch(1, SOON)
            appender.start()
            try:
                started = time.monotonic()
                records = reader.fetch(10, self.patience)
                assert bodies(records) == [b"record-0"]
                assert time.monotonic() - started < self.patience, "the fetch waited for more"
            finally:
                appender.join()

    # --- positions -------------------------------------------------------------------------------------------------

    def test_reading_goes_on_exactly_at_every_position(self) -> None:
        stream = self.make_stream()
        shard = stream.shards()[0].id
        self.append(shard, numbered(0, 4))
        self.append(shard, numbered(4, 3))
        sent = [record.body for record in numbered(0, 7)]
        with self.reading(stream, dict(stream.seek([shard], "earliest"))) as reader:
            records = self.fetched(reader, 7)
            at = [reader.position_at(record.offset) for record in records]
            after = [reader.position_after(record.offset) for record in records]
        for number in range(7):
            with self.reading(stream, {shard: at[number]}) as reader:
                assert bodies(self.fetched(reader, 7 - number)) == sent[number:]
            with self.reading(stream, {shard: after[number]}) as reader:
                assert bodies(self.fetched(reader, 6 - number)) == sent[number + 1 :]
                assert reader.fetch(10, 0) == []

    def test_latest_is_behind_every_record_and_before_the_next(self) -> None:
        stream = self.make_stream()
        shards = [shard.id for shard in stream.shards()[:2]]
        self.append(shards[0], numbered(0, 3))
        positions = dict(stream.seek(shards, "latest"))
        for shard in shards:
            self.append(shard, numbered(3, 2))
        with self.reading(stream, positions) as reader:
            records = self.fetched(reader, 4)
        assert [bodies(records, shard) for shard in shards] == [[b"record-3", b"record-4"]] * 2

    def test_a_time_is_before_the_first_record_at_or_after_it(self) -> None:
        stream = self.make_stream()
        shard = stream.shards()[0].id
        begin = dict(stream.seek([shard], "earliest"))
        for number in range(3):
            self.append(shard, numbered(number, 1))
            time.sleep(0.02)  # so that the timestamps differ
        with self.reading(stream, begin) as reader:
            records = self.fetched(reader, 3)
        for number, record in enumerate(records):
            with self.reading(stream, dict(stream.seek([shard], record.timestamp))) as reader:
                assert bodies(self.fetched(reader, 3 - number)) == bodies(records[number:])
        with self.reading(stream, dict(stream.seek([shard], records[-1].timestamp + 60_000))) as reader:
            assert list(reader.fetch(10, SOON)) == []
            self.append(shard, numbered(9, 1))
            assert bodies(self.fetched(reader, 1)) == [b"record-9"]

    def test_unknown_shards_have_no_position(self) -> None:
        stream = self.make_stream()
        shard = stream.shards()[0].id
        assert dict(stream.seek(["no such shard", shard], "earliest")).keys() == {shard}

    def test_an_unreadable_position_is_reported_and_is_not_a_fresh_start(self) -> None:
        stream = self.make_stream()
        bad, good = (shard.id for shard in stream.shards()[:2])
        self.append(bad, numbered(0, 2))
        self.append(good, numbered(0, 2))
        positions = dict(stream.seek([good], "earliest"))
        with self.reading(stream, {bad: {"no such": "position"}, **positions}) as reader:
            reports, before = self.reported(reader)
            assert [(type(report), report.shard) for report in reports] == [(ShardFailed, bad)]
            records = before + (self.fetched(reader, 2 - len(before)) if len(before) < 2 else [])
            assert bodies(records, good) == [b"record-0", b"record-1"]
            assert bodies(records, bad) == []

    def test_an_unknown_shard_is_reported(self) -> None:
        stream = self.make_stream()
        shard = stream.shards()[0].id
        position = dict(stream.seek([shard], "earliest"))[shard]
        with self.reading(stream, {"no such shard": position}) as reader:
            reports, _ = self.reported(reader)
            assert [(type(report), report.shard) for report in reports] == [(ShardFailed, "no such shard")]

    # --- several shards and readers --------------------------------------------------------------------------------

    def test_a_busy_shard_does_not_keep_back_another(self) -> None:
        stream = self.make_stream()
        busy, quiet = (shard.id for shard in stream.shards()[:2])
        positions = dict(stream.seek([busy, quiet], "earliest"))
        self.append(busy, numbered(0, 1))
        self.append(quiet, numbered(0, 1, "first"))
        with self.reading(stream, positions) as reader:
            self.fetched(reader, 2)
            reader.pause(busy)
            reader.pause(quiet)
            self.append(busy, numbered(1, 300))
            self.append(quiet, numbered(0, 1, "quiet"))
            # A record that has not arrived yet is not kept back: readers that read ahead may do so first.
            attempts = 0
            while not reader.lag(quiet).records and attempts < 10:
                attempts += 1
                assert list(reader.fetch(10, SOON)) == []
            reader.resume(busy)
            reader.resume(quiet)
            assert b"quiet-0" in bodies(self.fetched(reader, 301, limit=10)[:250]), "the quiet shard came last"

    def test_a_paused_shard_waits_and_loses_nothing(self) -> None:
        stream = self.make_stream()
        first, second = (shard.id for shard in stream.shards()[:2])
        positions = dict(stream.seek([first, second], "earliest"))
        self.append(first, numbered(0, 5))
        with self.reading(stream, positions) as reader:
            assert bodies(self.fetched(reader, 2, limit=1)) == [b"record-0", b"record-1"]
            reader.pause(first)
            reader.pause(first)
            self.append(second, numbered(0, 1, "other"))
            assert bodies(self.fetched(reader, 1)) == [b"other-0"]
            assert list(reader.fetch(10, SOON)) == []
            reader.resume(first)
            reader.resume(first)
            assert bodies(self.fetched(reader, 3)) == [b"record-2", b"record-3", b"record-4"]

    def test_a_shard_may_be_paused_before_the_first_fetch(self) -> None:
        stream = self.make_stream()
        shard = stream.shards()[0].id
        begin = dict(stream.seek([shard], "earliest"))
        self.append(shard, numbered(0, 2))
        with self.reading(stream, begin) as reader:
            reader.pause(shard)
            assert list(reader.fetch(10, SOON)) == []
            reader.resume(shard)
            assert bodies(self.fetched(reader, 2)) == [b"record-0", b"record-1"]
            reader.pause(shard)
            self.append(shard, numbered(2, 1))
            reader.remove(shard)
            reader.add(shard, through_json(begin[shard]))
            assert len(self.fetched(reader, 3)) == 3, "a shard that is added again is not paused"

    def test_a_removed_shard_is_silent_and_may_be_added_again(self) -> None:
        stream = self.make_stream()
        shard = stream.shards()[0].id
        self.append(shard, numbered(0, 4))
        with self.reading(stream, dict(stream.seek([shard], "earliest"))) as reader:
            (record,) = self.fetched(reader, 1, limit=1)
            reader.remove(shard)
            reader.remove(shard)
            assert list(reader.fetch(10, SOON)) == []
            reader.add(shard, reader.position_at(record.offset))
            assert bodies(self.fetched(reader, 4)) == [f"record-{number}".encode() for number in range(4)]
            reader.add(shard, reader.position_after(record.offset))
            assert bodies(self.fetched(reader, 3)) == [b"record-1", b"record-2", b"record-3"]

    def test_readers_read_at_their_own_pace(self) -> None:
        stream = self.make_stream()
        shard = stream.shards()[0].id
        begin = dict(stream.seek([shard], "earliest"))
        self.append(shard, numbered(0, 3))
        with self.reading(stream, begin) as fast, self.reading(stream, begin) as slow:
            assert len(self.fetched(fast, 3)) == 3
            assert bodies(self.fetched(slow, 1, limit=1)) == [b"record-0"]
            assert bodies(self.fetched(slow, 2)) == [b"record-1", b"record-2"]

    def test_the_lag_falls_to_zero(self) -> None:
        stream = self.make_stream()
        shard = stream.shards()[0].id
        begin = dict(stream.seek([shard], "earliest"))
        self.append(shard, numbered(0, 5))
        with self.reading(stream, begin) as reader:
            self.fetched(reader, 2, limit=1)
            assert reader.lag(shard).records in (None, 3)
            self.fetched(reader, 3)
            assert reader.lag(shard).records in (None, 0)

    # --- losses, ends and outages ----------------------------------------------------------------------------------

    def test_records_that_retention_has_deleted_are_reported_and_the_shard_halts(self) -> None:
        stream = self.make_stream()
        lost, other = (shard.id for shard in stream.shards()[:2])
        begin = dict(stream.seek([lost, other], "earliest"))
        self.append(lost, numbered(0, 3))
        if not self.delete_records(lost):
            pytest.skip("the suite cannot delete records of this stream")
        self.append(other, numbered(0, 1, "other"))
        with self.reading(stream, begin) as reader:
            reports, before = self.reported(reader)
            assert [(type(report), report.shard) for report in reports] == [(RecordsMissing, lost)]
            assert all(isinstance(report, RecordsMissing) and report.halted for report in reports)
            rest = before or self.fetched(reader, 1)
            assert bodies(rest) == [b"other-0"]
            self.append(lost, numbered(9, 1))
            assert list(reader.fetch(10, SOON)) == []

    def test_a_reader_that_continues_after_a_loss_reports_the_gap_first(self) -> None:
        stream = self.make_stream()
        factory = self.make_continuing_factory()
        shard = stream.shards()[0].id
        begin = dict(stream.seek([shard], "earliest"))
        self.append(shard, numbered(0, 3))
        if factory is None or not self.delete_records(shard):
            pytest.skip("readers of this stream do not continue after a loss")
        (newest,) = dict(stream.seek([shard], "earliest")).values()
        with opened(factory) as reader:
            reader.add(shard, begin[shard])
            records = self.fetched(reader, 1)
            (report,) = reader.reports()
            assert isinstance(report, RecordsMissing)
            assert not report.halted
            assert report.end in (None, records[0].offset)
            assert reader.position_at(records[0].offset) == newest

    def test_a_closed_shard_ends_after_its_last_record_and_its_children_follow(self) -> None:
        stream = self.make_stream()
        shard = stream.shards()[0].id
        begin = dict(stream.seek([shard], "earliest"))
        self.append(shard, numbered(0, 2))
        if not self.split(shard):
            pytest.skip("shards of this stream are never closed")
        children = [found for found in stream.shards() if shard in found.parents]
        assert children, "no shard names the closed one as its parent"
        listed = [found.id for found in stream.shards()]
        assert all(listed.index(shard) < listed.index(child.id) for child in children)
        with self.reading(stream, begin) as reader:
            reports, before = self.reported(reader)
            assert reports == [ShardEnded(shard)]
            assert bodies(before) == [b"record-0", b"record-1"]

    def test_a_stream_that_does_not_respond_is_not_empty(self) -> None:
        self.make_stream()
        factory = self.make_unreachable_factory()
        if factory is None:
            pytest.skip("the stream cannot be away")
        with opened(factory) as reader, pytest.raises(SourceUnavailable):
            _fetch_until_it_raises(reader)


def _fetch_until_it_raises(reader: ShardReader) -> None:
    for _ in range(30):
        assert list(reader.fetch(10, 0.1)) == []
