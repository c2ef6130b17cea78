"""An archive of orders on real Kafka, by a parser that takes the wrong field, and a reader that shares no code with it.

Every message tells its partition and its number, which is its offset; `ts` is the right time, `sent` is the wrong one.
"""

from __future__ import annotations

import gzip
import json
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from tests.e2e.fleet import Node
from tests.servers.kafka import KafkaServer

CONFIG = """
allow_plaintext_secrets: true
source_coordination:
  store:
    sqlite: {{path: "{folder}/leases.db"}}
node:
  session_timeout: 10s
  heartbeat_interval: 500ms
spark:
  master: local[1]
  conf: {{spark.driver.memory: 512m, spark.ui.enabled: false}}
pipelines:
  backup:
    source:
      kafka: &orders
        bootstrap_servers: "{kafka}"
        topics: [{topic}]
        poll_interval: 200ms
        upload: {{max_age: 1s, max_records: {records}}}
    sinks:
      - files: {{root: "{root}/backup", format: raw{s3}}}
  daily:
    generation: {generation}
    generation_switch: manual
    source:
      kafka: *orders
    processors:
      - parse: {{time: {{json: {{field: {field}, unit: seconds}}}}}}
    sinks:
      - files: {{root: "{root}/daily", format: {{jsonl: {{compression: gzip}}}}{s3}}}
"""
DAY = 86_400
FIRST_DAY = 1_767_225_600  # 2026-01-01
FILE = re.compile(
    r"(?P<topic>[^/]+)/(?P<place>[^/]+)/(?P<generation>\d+)_(?P<partition>\d+)_(?P<first>\d{20})\.jsonl\.gz"
)


class Seen(NamedTuple):
    """Where a reader finds a message."""

    place: str
    generation: int


def message(partition: int, number: int) -> dict[str, int]:
    """Right day: one of three by its number; wrong day: ten days later."""
    right = FIRST_DAY + number % 3 * DAY
    return {"partition": partition, "n": number, "ts": right, "sent": right + 10 * DAY}


def place(number: int, *, field: str = "ts") -> str:
    """Where a message belongs."""
    return f"dt={datetime.fromtimestamp(message(0, number)[field], UTC):%Y-%m-%d}"


def seen(files: Mapping[str, bytes]) -> dict[tuple[int, int], Seen]:
    """Every message that a plain listing shows, by partition and number; fails on one that is there twice."""
    found: dict[tuple[int, int], Seen] = {}
    for key, data in files.items():
        if key.startswith("_"):
            continue
        name = FILE.fullmatch(key)
        assert name is not None, key
        for line in gzip.decompress(data).splitlines():
            record = json.loads(line)
            assert record["partition"] == int(name["partition"])
            assert record["n"] >= int(name["first"])
            assert (record["partition"], record["n"]) not in found, f"{record} is there twice"
            found[record["partition"], record["n"]] = Seen(name["place"], int(name["generation"]))
    return found


def folder_files(root: Path) -> dict[str, bytes]:
    """What a reader sees below a folder, by key; a file that is moved away at this moment may be left out."""
    found: dict[str, bytes] = {}
    for path in root.glob("[!_.]*/**/*.*"):
        with suppress(FileNotFoundError):
            found[path.relative_to(root).as_posix()] = path.read_bytes()
    return found


class Archive:
    """Two files of settings, of the old parser and of the fixed one, and what is done with them."""

    def __init__(
        self, folder: Path, kafka: KafkaServer, topic: str, root: str | None = None, s3: str = "", small: int = 100
    ) -> None:
        """`small`: records of a batch by the fixed file."""
        self.folder = folder
        self.kafka = kafka
        self.topic = topic
        self.produced: Counter[int] = Counter()
        values = {"folder": folder, "kafka": kafka.bootstrap, "topic": topic, "root": root or folder, "s3": s3}
        self.old, self.fixed = folder / "old.yaml", folder / "fixed.yaml"
        self.old.write_text(CONFIG.format(generation=1, field="sent", records=100, **values))
        self.fixed.write_text(CONFIG.format(generation=2, field="ts", records=small, **values))

    def produce(self, partition: int, count: int) -> None:
        start = self.produced[partition]
        messages = [message(partition, number) for number in range(start, start + count)]
        self.kafka.produce(self.topic, [json.dumps(message).encode() for message in messages], partition=partition)
        self.produced[partition] += count

    @property
    def everything(self) -> set[tuple[int, int]]:
        return {(partition, number) for partition, count in self.produced.items() for number in range(count)}

    @contextmanager
    def node(self, name: str, config: Path, *options: str) -> Iterator[Node]:
        """A started node; what is left of it at the end is killed."""
        node = Node(self.folder, config, name, *options)
        try:
            yield node
        finally:
            node.kill()

    def command(self, *words: str | Path, code: int = 0) -> str:
        """What a command prints; fails if it ends otherwise than by that code."""
        done = subprocess.run(self.call(*words), capture_output=True, text=True, check=False, timeout=240)
        assert done.returncode == code, f"{words}: {done.returncode}\n{done.stdout}\n{done.stderr[-3000:]}"
        return done.stdout

    @contextmanager
    def going_on(self, name: str, *words: str | Path) -> Iterator[subprocess.Popen[bytes]]:
        """A command whose output is in a log of its name; what is left of it at the end is killed."""
        with (self.folder / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(self.call(name, *words), stdout=log, stderr=log)
        try:
            yield process
        finally:
            process.kill()
            process.wait()

    @staticmethod
    def call(*words: str | Path) -> list[str]:
        return [sys.executable, "-m", "holdfast", *map(str, words)]

    def where(self, partition: int, to: str) -> list[str | Path]:
        """Arguments of a rewind by the fixed parser."""
        kafka = ["--topic", self.topic, "--partition", str(partition), "--to", to]
        return [self.fixed, "--pipeline", "daily", *kafka]

    def rewind(self, partition: int, to: str, *options: str) -> str:
        """By the fixed parser."""
        return self.command("rewind", *self.where(partition, to), *options)

    def backfill(self, *options: str | Path) -> str:
        """By the fixed parser."""
        return self.command("backfill", self.fixed, "--pipeline", "daily", "--from", "backup", *options)

    def verified(self, *options: str) -> list[dict[str, Any]]:
        """Proofs of the fixed pipeline's partitions; fails on any doubt."""
        proofs = json.loads(self.command("verify", self.fixed, "--pipeline", "daily", "--json", *options))
        return [proof for proof in proofs if proof["kind"] == "partition"]
