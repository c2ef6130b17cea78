"""Sinks on real servers show the behaviour that the loop relies on."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from holdfast.buckets.s3 import S3Bucket
from holdfast.flow.sink import Sink
from holdfast.registry import Registry
from holdfast.sinks.files.sink import FilesSink
from holdfast.sinks.files.staging import FilesStager
from holdfast.sinks.kafka import PLUGIN as KAFKA
from holdfast.sinks.kafka.sink import KafkaSink
from holdfast.sinks.opensearch import PLUGIN as OPENSEARCH
from holdfast.testing.sinks import SinkBehaviour
from tests.servers.kafka import KafkaServer
from tests.servers.opensearch import OpenSearchServer
from tests.servers.processes import free_port
from tests.servers.s3 import S3Server
from tests.servers.s3_roots import BUCKET, PART, S3Root, access

_numbers = itertools.count(1)


class TestFilesOnS3(SinkBehaviour):
    @pytest.fixture(autouse=True)
    def root(self, s3_server: S3Server) -> None:
        if BUCKET not in [bucket["Name"] for bucket in s3_server.client().list_buckets()["Buckets"]]:
            s3_server.create_bucket(BUCKET)
        self.s3_root = S3Root(s3_server)

    def make_sink(self) -> Sink:
        return self._sink(self.s3_root.bucket())

    def make_unreachable_sink(self) -> Sink:
        return self._sink(S3Bucket(replace(access(free_port()), patience=1.0), self.s3_root.prefix, "copy", PART))

    def _sink(self, bucket: S3Bucket) -> Sink:
        text = Registry.installed().get("formats", "text")
        return FilesSink("files", bucket, FilesStager(bucket, text.build(text.config())))

    def visible(self) -> list[str]:
        bucket = self.s3_root.bucket()
        files = [bucket.read(key) or b"" for key in bucket.keys("") if not key.startswith("_holdfast/")]
        return [line.decode() for data in files for line in data.splitlines()]


class TestKafka(SinkBehaviour):
    """Messages of a topic of the test's own, as a consumer that reads committed ones sees them."""

    @pytest.fixture(autouse=True)
    def topic(self, kafka_server: KafkaServer, tmp_path: Path) -> None:
        self.kafka, self.root, self.name = kafka_server, tmp_path / "root", f"suite{next(_numbers)}"
        kafka_server.create_topic(self.name, 2)

    def make_sink(self) -> Sink:
        return self._sink(self.kafka.bootstrap, self.root)

    def make_unreachable_sink(self) -> Sink:
        sink = self._sink(f"127.0.0.1:{free_port()}", self.root.with_name("unreachable"))
        sink._producer.patience = 1.0
        return sink

    def _sink(self, bootstrap: str, root: Path) -> KafkaSink:
        given = {"bootstrap_servers": bootstrap, "topic": self.name, "root": str(root)}
        sink: KafkaSink = KAFKA.build("topic", KAFKA.config(**given), Registry.installed())
        return sink

    def visible(self) -> list[str]:
        return [message.value().decode() for message in self.kafka.committed_messages(self.name)]


class TestOpenSearch(SinkBehaviour):
    """Documents in an index of the test's own, and dead letters in another."""

    @pytest.fixture(autouse=True)
    def index(self, opensearch_server: OpenSearchServer, tmp_path: Path) -> None:
        self.server, self.root = opensearch_server, tmp_path / "letters"
        self.name = f"suite{next(_numbers)}"

    def settings(self) -> dict[str, Any]:
        return {}

    def make_sink(self) -> Sink:
        return self._sink(self.server.endpoint)

    def _sink(self, endpoint: str) -> Sink:
        given = {"hosts": [endpoint], "index": self.name, **self.settings()}
        sink: Sink = OPENSEARCH.build("search", OPENSEARCH.config(**given), Registry.installed())
        return sink

    def visible(self) -> list[str]:
        return [json.dumps(document) for document in self.server.documents(self.name).values()]


class TestOpenSearchWithLettersInFiles(TestOpenSearch):
    def settings(self) -> dict[str, Any]:
        return {"dead_letters": {"file": str(self.root)}}
