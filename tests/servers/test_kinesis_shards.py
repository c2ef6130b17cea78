"""Shards of Kinesis that tasks read, on kinesalite."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from holdfast.flow.batch import Cut
from holdfast.flow.shards import ReaderFactory, ShardEnded, ShardFailed, StreamRecord
from holdfast.leases import transitions
from holdfast.leases.lease import Lease
from holdfast.sources.kinesis.config import KinesisConfig
from holdfast.sources.kinesis.source import KinesisSource
from holdfast.testing.stream_setting import SampleRecord, bodies, opened
from holdfast.testing.streams import StreamBehaviour
from tests.servers.dynamodb import KEYS, REGION
from tests.servers.kinesis import KinesisServer
from tests.servers.processes import free_port, running
from tests.unit.leases.rig import Rig

PATIENCE = 60.0


@pytest.fixture(scope="module")
def kinesis() -> Iterator[KinesisServer]:
    with running(KinesisServer) as server:
        yield server


def source_of(endpoint: str, stream: str, **settings: object) -> KinesisSource:
    os.environ.update(KEYS)
    given = {"stream": stream, "region": REGION, "endpoint_url": endpoint, "read_interval": "200ms", **settings}
    return KinesisSource(KinesisConfig.model_validate(given))


class TestKinesisStream(StreamBehaviour):
    """A stream of two shards."""

    made = 0
    keeps_keys = False  # every record has one
    keeps_headers = False
    keeps_absent_bodies = False
    max_body = 500_000

    @pytest.fixture(autouse=True)
    def _on(self, kinesis: KinesisServer) -> None:
        self.server = kinesis

    def make_stream(self) -> KinesisSource:
        type(self).made += 1
        self.stream = f"suite-{self.made}"
        self.server.create(self.stream, shards=2)
        return source_of(self.server.endpoint, self.stream)

    def append(self, shard: str, records: Sequence[SampleRecord]) -> None:
        self.server.put(self.stream, shard.rpartition("/")[2], [record.body or b"" for record in records])

    def split(self, shard: str) -> bool:
        self.server.split(self.stream, shard.rpartition("/")[2])
        return True

    def make_unreachable_factory(self) -> ReaderFactory:
        here = source_of(self.server.endpoint, self.stream).reader_factory()
        access = type(here.access)(self.stream, REGION, f"http://127.0.0.1:{free_port()}")
        return type(here)(access, here.id)


def read_to_end(source: KinesisSource, lease: Lease) -> list[bytes | None]:
    """The records of a closed shard, until its reader has reported the end."""
    (plan,) = source.begin([lease])
    assert isinstance(plan, Cut)
    records: list[StreamRecord] = []
    with opened(source.reader_factory()) as reader:
        reader.add(lease.key, plan.start)
        deadline = time.monotonic() + PATIENCE
        while not (reports := reader.reports()):
            assert time.monotonic() < deadline, records
            records += reader.fetch(100, 0.5)
    assert reports == [ShardEnded(lease.key)]
    return bodies(records)


def test_shards_that_are_split_and_merged_are_complete_before_their_children_are_taken(kinesis: KinesisServer) -> None:
    names = [f"shardId-{number:012}" for number in range(5)]
    kinesis.create("family", shards=2)
    kinesis.put("family", names[0], [b"parent-1", b"parent-2"])
    kinesis.split("family", names[0])
    for number in (2, 3):
        kinesis.put("family", names[number], [b"child-%d" % number])
    kinesis.merge("family", names[2], names[3])
    kinesis.put("family", names[4], [b"grandchild"])
    source, state, rig = source_of(kinesis.endpoint, "family"), dict[str, Any](), Rig()
    node = rig.node()
    closed, found = {f"family/{name}" for name in (names[0], names[2], names[3])}, []
    for _ in range(3):
        node.leases.create(source.discover(state))
        for lease in node.leases.claim(9):
            found.append(lease.key)
            if lease.key in closed:
                assert read_to_end(source, lease)
                node.leases.write([lease], transitions.complete)
    order = [int(key[-1]) for key in found]
    assert (sorted(order[:2]), sorted(order[2:4]), order[4:]) == ([0, 1], [2, 3], [4])
    assert [lag.milliseconds for lag in source.lags([rig.row(found[-1])])] == [0]


def test_a_stream_that_is_created_again_halts_a_reader(kinesis: KinesisServer) -> None:
    kinesis.create("again", shards=1)
    source = source_of(kinesis.endpoint, "again")
    factory = source.reader_factory()
    # The server tells streams apart by the second.
    while source_of(kinesis.endpoint, "again").reader_factory().id == factory.id:
        kinesis.delete("again")
        kinesis.create("again", shards=1)
    with opened(factory) as reader:
        reader.add("again/shardId-000000000000", {"earliest": True})
        deadline = time.monotonic() + PATIENCE
        while not (reports := reader.reports()):
            assert time.monotonic() < deadline
            assert list(reader.fetch(10, 0.2)) == []
    assert [(type(report), getattr(report, "halt", None)) for report in reports] == [(ShardFailed, True)]
