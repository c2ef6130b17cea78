"""What a subclass of `StreamBehaviour` defines, and how the suite reads, as a task does."""

from __future__ import annotations

import json
import pickle
import time
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from holdfast.flow.shards import Headers, ReaderFactory, ShardedStream, ShardReader, ShardReport, StreamRecord
from holdfast.leases.lease import Json


class SampleRecord(NamedTuple):
    """A record that the suite appends."""

    body: bytes | None
    key: bytes | None = None
    headers: Headers = ()


class StreamSetting:
    """What a subclass of `StreamBehaviour` defines, and methods that use a stream as a task does."""

    patience = 20.0
    """Seconds within which an appended record must be fetched."""
    keeps_absent_bodies = True
    keeps_keys = True
    keeps_headers = True
    max_body = 1 << 20
    """Bytes of the largest body that the suite appends."""

    @abstractmethod
    def make_stream(self) -> ShardedStream:
        """A new stream without records, with at least two shards, ready for use."""

    @abstractmethod
    def append(self, shard: str, records: Sequence[SampleRecord]) -> None:
        """Append records to a shard of the stream that was made last; returns once they are readable."""

    def make_continuing_factory(self) -> ReaderFactory | None:
        """A factory for the stream that was made last, whose readers continue after a loss; None if impossible."""
        return None

    def delete_records(self, shard: str) -> bool:
        """Let retention delete all records of the shard except the newest; False if that cannot be done."""
        return False

    def split(self, shard: str) -> bool:
        """Close the shard and open children for it; False if the stream cannot do that."""
        return False

    def make_unreachable_factory(self) -> ReaderFactory | None:
        """A factory for a stream that does not respond; None if that cannot happen."""
        return None

    # --- as a task reads -------------------------------------------------------------------------------------------

    @contextmanager
    def reading(self, stream: ShardedStream, positions: dict[str, Json]) -> Iterator[ShardReader]:
        """A reader of these shards, made by a factory that was sent to a task."""
        with opened(stream.reader_factory()) as reader:
            for shard, position in positions.items():
                reader.add(shard, through_json(position))
            yield reader

    def fetched(self, reader: ShardReader, count: int, limit: int = 1000) -> list[StreamRecord]:
        """The next records; fails if they do not come in time, or if more come."""
        records: list[StreamRecord] = []
        deadline = time.monotonic() + self.patience
        while len(records) < count and time.monotonic() < deadline:
            found = reader.fetch(limit, 0.5)
            assert len(found) <= limit, f"{len(found)} records, and the limit was {limit}"
            records += found
        assert len(records) == count, f"{len(records)} of {count} records came: {records}; {reader.reports()}"
        return records

    def reported(self, reader: ShardReader) -> tuple[list[ShardReport], list[StreamRecord]]:
        """What the reader reports next, and the records that came before."""
        records: list[StreamRecord] = []
        deadline = time.monotonic() + self.patience
        while time.monotonic() < deadline:
            records += reader.fetch(1000, 0.1)
            if reports := reader.reports():
                return reports, records
        raise AssertionError("nothing was reported")


@contextmanager
def opened(factory: ReaderFactory) -> Iterator[ShardReader]:
    reader = pickle.loads(pickle.dumps(factory)).open()  # noqa: S301 - our own bytes
    try:
        yield reader
    finally:
        reader.close()
        reader.close()


def through_json(value: Json) -> Json:
    return json.loads(json.dumps(value))


def bodies(records: Sequence[StreamRecord], shard: str | None = None) -> list[bytes | None]:
    return [record.body for record in records if shard in (None, record.shard)]


def numbered(first: int, count: int, prefix: str = "record") -> list[SampleRecord]:
    return [SampleRecord(f"{prefix}-{number}".encode()) for number in range(first, first + count)]
