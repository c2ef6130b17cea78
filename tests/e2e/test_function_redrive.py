"""Dead letters of functions are sent again with the command line, over every stream and with other sinks: once each."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from holdfast.sources.stream.frames import NewRecord
from holdfast.sources.stream.stream import Stream, StreamSettings
from tests.e2e.fleet import eventually
from tests.servers.dynamodb import REGION
from tests.servers.kafka import KafkaServer
from tests.servers.kinesis import KinesisServer
from tests.servers.processes import running

pytestmark = [pytest.mark.spark, pytest.mark.slow]

SHARDS, RECORDS, BAD = 2, 6, 3
"""Of each shard, records that are put, and how many of them fail at first."""
PATIENCE = 240.0
HANDLER = """
import json
import os
import signal
from pathlib import Path

import holdfast

FOLDER = Path(__file__).parent


def handler(context, event):
    text = event.body.decode()
    with open(FOLDER / "handled", "a") as file:
        file.write(json.dumps([event.shard_id, text]) + "\\n")
    if text.endswith("bad") and not (FOLDER / "mended").exists():
        raise ValueError("it is bad")
    {result}
"""
RETURNING = 'return holdfast.Records([{"record": text, "half": half} for half in range(2)])'
FILE = """
source_coordination:
  store: {{sqlite: {{path: {folder}/leases.db}}}}
pipelines:
  orders:
    source: {source}
    sinks:
      - function:
          handler: {folder}/orders.py
          commit_interval: 200ms
          output_columns: {{record: string, half: long}}
          on_error: {{max_retries: 0}}
          dead_letters: {{file: {folder}/letters}}
      {others}
"""
FILES = "- files: {{root: {folder}/out, format: jsonl}}"


class Site:
    def __init__(self, folder: Path, source: dict[str, Any], result: str, others: str = "") -> None:
        self.folder = folder
        self.returns = bool(others)
        (folder / "orders.py").write_text(HANDLER.replace("{result}", result))
        text = FILE.format(folder=folder, source=json.dumps(source), others=others.format(folder=folder))
        (folder / "pipeline.yaml").write_text(text)

    def _node(self) -> subprocess.Popen[bytes]:
        """A node that works as processes."""
        command = [sys.executable, "-m", "tests.chaos.sparkless", str(self.folder / "pipeline.yaml"), "alone"]
        with (self.folder / "log").open("ab") as log:
            return subprocess.Popen(command, stdout=log, stderr=log)

    @contextmanager
    def running(self) -> Iterator[None]:
        """A node that leaves nothing in the middle when it is stopped."""
        with self._node() as node:
            try:
                yield
                node.send_signal(signal.SIGTERM)
                assert node.wait() == 0, self._said()
            finally:
                node.kill()

    def run_until_killed(self) -> None:
        """A node that its handler kills."""
        with self._node() as node:
            try:
                assert node.wait(PATIENCE) == -signal.SIGKILL, self._said()
            finally:
                node.kill()

    def _said(self) -> str:
        return (self.folder / "log").read_text()[-3000:]

    def holdfast(self, *words: str) -> str:
        command = [sys.executable, "-m", "holdfast", *words]
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=self.folder)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def redrive(self) -> str:
        return self.holdfast("deadletters", "redrive", "pipeline.yaml")

    def letters(self) -> tuple[int, int]:
        """How many letters wait, and how many were sent again."""
        listed = json.loads(self.holdfast("deadletters", "list", "pipeline.yaml", "--json"))
        return sum(row["waiting"] for row in listed), sum(row["sent_again"] for row in listed)

    def handled(self) -> list[tuple[int, str]]:
        file = self.folder / "handled"
        lines = file.read_text().splitlines() if file.exists() else []
        return [(shard, text) for shard, text in map(json.loads, lines)]

    def rows(self) -> list[tuple[str, int]]:
        """What a reader of the other sink sees."""
        files = [file for file in (self.folder / "out").rglob("*.jsonl") if "_holdfast" not in file.parts]
        rows = [json.loads(line) for file in files for line in file.read_text().splitlines()]
        return sorted((row["record"], row["half"]) for row in rows)


def text_of(shard: int, number: int) -> str:
    return f"{shard}-{number}-{'bad' if number < BAD else 'good'}"


ALL = [(shard, text_of(shard, number)) for shard in range(SHARDS) for number in range(RECORDS)]
GOOD, FAILED = [pair for pair in ALL if pair[1].endswith("good")], [pair for pair in ALL if pair[1].endswith("bad")]


def check(site: Site, put: Callable[[], None]) -> None:
    """Handle all records, fail once more, and send the letters until none is left."""
    put()
    with site.running():
        eventually(lambda: len(site.handled()) == len(ALL), what="all records")
    assert sorted(site.handled()) == sorted(ALL)
    assert site.letters() == (len(FAILED), 0)
    assert site.rows() == rows_of(GOOD if site.returns else [])

    assert f"{len(FAILED)} letters sent again, {len(FAILED)} of them became dead letters again" in site.redrive()
    assert site.letters() == (len(FAILED), len(FAILED))
    assert site.rows() == rows_of(GOOD if site.returns else [])

    (site.folder / "mended").touch()
    assert f"{len(FAILED)} letters sent again, 0 of them became" in site.redrive()
    assert sorted(site.handled()) == sorted([*ALL, *FAILED, *FAILED])
    assert [pair for pair in site.handled()[-len(FAILED) :] if pair[0] == 0] == [pair for pair in FAILED if not pair[0]]
    assert site.letters() == (0, 2 * len(FAILED))
    assert "0 letters of 0 partitions wait" in site.redrive()
    assert site.rows() == rows_of(ALL if site.returns else [])
    if site.returns:
        assert site.holdfast("verify", "pipeline.yaml", "--deep", "--all").splitlines()[-1].startswith("proven: ")


def rows_of(records: list[tuple[int, str]]) -> list[tuple[str, int]]:
    return sorted((text, half) for _, text in records for half in range(2))


def test_letters_of_a_function_over_an_embedded_stream_land_once_in_its_other_sink(tmp_path: Path) -> None:
    stream = Stream.create(tmp_path / "streams", "orders", StreamSettings(SHARDS))
    site = Site(tmp_path, {"stream": {"name": "orders", "folder": f"{tmp_path}/streams"}}, RETURNING, FILES)

    def put() -> None:
        for shard, text in ALL:
            stream.append(shard, [NewRecord(text.encode())])

    check(site, put)


def test_letters_of_a_function_over_kafka_land_once_in_its_other_sink(
    tmp_path: Path, kafka_server: KafkaServer
) -> None:
    topic = "function-redrive"
    kafka_server.create_topic(topic, SHARDS)
    source = {"kafka": {"bootstrap_servers": kafka_server.bootstrap, "topics": [topic], "start": "earliest"}}

    def put() -> None:
        producer = kafka_server.producer()
        for shard, text in ALL:
            producer.produce(topic, partition=shard, value=text.encode())
        producer.flush()

    check(Site(tmp_path, source, RETURNING, FILES), put)


@pytest.fixture
def kinesis() -> Iterator[KinesisServer]:
    with running(KinesisServer) as server:
        yield server


def test_letters_of_a_function_over_kinesis_are_handled_though_their_offsets_have_56_digits(
    tmp_path: Path, kinesis: KinesisServer
) -> None:
    stream = "function-redrive"
    kinesis.create(stream, SHARDS)
    source = {"kinesis": {"stream": stream, "region": REGION, "endpoint_url": kinesis.endpoint}}

    def put() -> None:
        for shard in range(SHARDS):
            bodies = [text.encode() for of_shard, text in ALL if of_shard == shard]
            kinesis.put(stream, f"shardId-{shard:012}", bodies)

    check(Site(tmp_path, source, "return None"), put)


DEADLY = ("1-4-good", "2-3-good")
"""Records of a parent and of a child with which the node dies, once each."""
KILLING = f"""if text in {DEADLY} and not (FOLDER / text).exists():
        (FOLDER / text).touch()
        os.kill(os.getppid(), signal.SIGKILL)
    """


def test_what_a_function_over_kinesis_returns_is_in_files_once_though_nodes_die_and_a_shard_is_split(
    tmp_path: Path, kinesis: KinesisServer
) -> None:
    stream, parents, children = "function-files", (0, 1), (2, 3)
    kinesis.create(stream, len(parents))
    source = {"stream": stream, "region": REGION, "endpoint_url": kinesis.endpoint, "discovery_interval": "1s"}
    site = Site(tmp_path, {"kinesis": source}, KILLING + RETURNING, FILES)
    records = [(shard, text_of(shard, number)) for shard in (*parents, *children) for number in range(RECORDS)]
    good, failed = ([pair for pair in records if pair[1].endswith(end)] for end in ("good", "bad"))

    def put(*shards: int) -> None:
        for shard in shards:
            kinesis.put(stream, f"shardId-{shard:012}", [text.encode() for of, text in records if of == shard])

    def all_is_handled() -> bool:
        return set(site.handled()) == set(records)

    put(*parents)
    site.run_until_killed()
    # What the first node has handled and not committed comes again, before the children of its shard.
    kinesis.split(stream, "shardId-000000000000")
    put(*children)
    site.run_until_killed()
    with site.running():
        eventually(all_is_handled, what="all records")
        eventually(lambda: len(site.rows()) >= 2 * len(good), what="all rows")
    calls = site.handled()
    assert max(calls.index(pair) for pair in records if pair[0] == 0) < min(
        calls.index(pair) for pair in records if pair[0] in children
    )
    assert site.rows() == rows_of(good)
    assert site.letters() == (len(failed), 0)

    (tmp_path / "mended").touch()
    assert f"{len(failed)} letters sent again, 0 of them became" in site.redrive()
    assert sorted(site.handled()[len(calls) :]) == failed
    assert site.letters() == (0, len(failed))
    assert site.rows() == rows_of(records)
    assert site.holdfast("verify", "pipeline.yaml", "--deep", "--all").splitlines()[-1].startswith("proven: ")
