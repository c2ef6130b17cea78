"""A reader who follows one record through the code visits few modules: they are traced, printed and counted."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest
from pyspark import RDD

from holdfast import assemble
from holdfast.config import load_text
from holdfast.flow import acquire
from holdfast.flow.loop import PipelineLoop
from holdfast.leases.lease import Key, Lease, new_lease
from holdfast.leases.world import host_world
from holdfast.registry import Registry
from holdfast.service import open_pipelines
from holdfast.spark.engine import SparkEngine
from tests.servers.kafka import KafkaServer
from tests.servers.opensearch import OpenSearchServer
from tests.servers.s3 import ACCESS_KEY, REGION, SECRET_KEY, S3Server
from tests.spark.tracing import Walk

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

MOST_MODULES = 45
PATIENCE = 300.0
PIPELINE = "walk"


class Node:
    """One pipeline on one node, whose loop the test turns; the second record is followed, as the first one loads."""

    def __init__(self, spark: SparkSession, pipeline: str) -> None:
        store = "source_coordination: {store: {in_memory: {}}}\nallow_plaintext_secrets: true\n"
        store += "node: {session_timeout: 10m}\n"  # nobody sends heartbeats
        self.settings = load_text(f"{store}pipelines:\n  {PIPELINE}:\n{pipeline}", "walk.yaml", Registry.installed())
        self.world = host_world(lambda _event: None)
        self.store = assemble.open_store(self.settings)
        self.built = assemble.build_pipeline(self.settings.pipelines[PIPELINE], Registry.installed())
        open_pipelines(self.settings, self.store, {PIPELINE: self.built}, self.world)
        self.engine = SparkEngine(spark, {PIPELINE: self.built})
        self.session = assemble.new_session(self.settings, self.store, self.world, pipelines=[PIPELINE])
        self.session.join()

    def close(self) -> None:
        self.engine.close()
        self.session.leave()
        self.built.close()
        self.store.close()

    def add_partitions(self) -> list[str]:
        """What discovery would add, without the thread of its own. Returns the keys."""
        partitions = [found for found in self.built.source.discover({}) if found is not None]
        self.store.add([new_lease(PIPELINE, found, uuid.uuid4().hex, now=self.store.now()) for found in partitions])
        return [found.key for found in partitions]

    def row(self, key: str) -> Lease:
        (row,) = self.store.get([Key(PIPELINE, "", key)])
        assert row is not None
        return row

    def carry(self, key: str, sequence: int, walk: Walk | None = None) -> None:
        """Acquire, plan, read, process, stage, commit and publish that commit of the partition; then hand it back."""
        stored = assemble.StoredPipeline(self.settings, self.store, PIPELINE)
        coordinator = assemble.coordinator_of(stored, self.world, self.session)
        loop = PipelineLoop(
            coordinator, self.built, self.engine, settings=assemble.loop_settings_of(self.settings, PIPELINE)
        )
        give_up_at = time.monotonic() + PATIENCE
        with nullcontext() if walk is None else walk.recorded():
            while (commit := self.row(key).commit).sequence < sequence or commit.receipts is not None:
                assert time.monotonic() < give_up_at, "the record was not published"
                loop.turn(self.engine.poll(0.05), lambda _name, _limit: None)
        loop.hand_back()


@pytest.fixture
def walk(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Walk]:
    made = Walk(tmp_path / "walk")
    # How tasks are begun: those that get rows of a frame, and those that read for themselves.
    _trace(made, monkeypatch, type(spark.range(1)), "mapInArrow")
    _trace(made, monkeypatch, RDD, "flatMap")
    # A walk begins when a partition is acquired; who finds partitions does so beside it.
    monkeypatch.setattr(acquire, "_discovery", lambda *_arguments: None)
    with made.on_the_node():
        yield made


def _trace(walk: Walk, monkeypatch: pytest.MonkeyPatch, kind: Any, method: str) -> None:
    original = getattr(kind, method)

    def begun(rows: Any, work: Any, *arguments: Any, **options: Any) -> Any:
        return original(rows, walk.in_the_task(work) if walk.recording else work, *arguments, **options)

    monkeypatch.setattr(kind, method, begun)


def check(walk: Walk, title: str) -> None:
    modules = walk.modules()
    read = [module for module, function in modules.items() if function is not None]
    lines = [
        f"{number:3d} {module} ({function or 'one line'})"
        for number, (module, function) in enumerate(modules.items(), 1)
    ]
    summary = f"{title}: {len(modules)} modules are visited, {len(read)} have more than one line to read"
    print(summary, *lines, sep="\n")  # noqa: T201 - shown by `pytest -s`
    assert len(read) < MOST_MODULES, "\n".join([summary, *lines])


def test_a_record_from_kafka_to_files(
    spark: SparkSession, kafka_server: KafkaServer, tmp_path: Path, walk: Walk
) -> None:
    topic = f"walk-{uuid.uuid4().hex[:8]}"
    kafka_server.create_topic(topic)
    kafka_server.produce(topic, [b"first"])
    node = Node(
        spark,
        f"    source: {{kafka: {{bootstrap_servers: '{kafka_server.bootstrap}', topics: [{topic}], "
        "upload: {max_age: 1ms}, commit_offsets: false}}\n"
        f"    sinks: [{{files: {{root: {tmp_path}/out, format: parquet}}}}]\n",
    )
    try:
        (key,) = node.add_partitions()
        node.carry(key, 1)
        kafka_server.produce(topic, [b"second"])
        node.carry(key, 2, walk)
    finally:
        node.close()
    written = [pq.read_table(file) for file in sorted((tmp_path / "out" / topic).rglob("*.parquet"))]
    assert [value for table in written for value in table["value"].to_pylist()] == [b"first", b"second"]
    check(walk, "from Kafka to files")


def test_a_record_from_a_bucket_to_opensearch(
    spark: SparkSession, s3_server: S3Server, opensearch_server: OpenSearchServer, walk: Walk
) -> None:
    bucket = f"b{uuid.uuid4().hex}"
    s3_server.create_bucket(bucket)
    client = s3_server.client()
    node = Node(
        spark,
        f"    source: {{objects: {{buckets: [{{bucket: {bucket}}}], codec: text, scan: once, s3: {{endpoint_url: "
        f"'{s3_server.endpoint}', region: {REGION}, path_style: true, access_key_id: {ACCESS_KEY}, "
        f"secret_access_key: {SECRET_KEY}}}}}}}\n"
        f"    sinks: [{{opensearch: {{hosts: ['{opensearch_server.endpoint}'], index: {bucket}}}}}]\n",
    )
    try:
        for number in (1, 2):
            client.put_object(Bucket=bucket, Key=f"{number}.txt", Body=b'{"n": %d}\n' % number)
            key = node.add_partitions()[-1]
            node.carry(key, 1, walk if number == 2 else None)
    finally:
        node.close()
    assert sorted(document["n"] for document in opensearch_server.documents(bucket).values()) == [1, 2]
    check(walk, "from a bucket to OpenSearch")
