"""Shards of Kinesis that tasks read, on kinesalite."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

import pytest

from holdfast.flow.shards import ReaderFactory
from holdfast.sources.kinesis.config import KinesisConfig
from holdfast.sources.kinesis.source import KinesisSource
from holdfast.testing.stream_setting import SampleRecord
from holdfast.testing.streams import StreamBehaviour
from tests.servers.dynamodb import KEYS, REGION
from tests.servers.kinesis import KinesisServer
from tests.servers.processes import free_port, running


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
