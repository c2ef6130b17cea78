"""A real archive, Kafka to S3 and to a folder, is proven while it runs and when it has stopped; a loss is found."""

from __future__ import annotations

import json
import signal
from functools import partial
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from holdfast import assemble
from holdfast.cli.root import app as commands
from tests.e2e.fleet import Node, eventually
from tests.servers.kafka import KafkaServer
from tests.servers.s3 import ACCESS_KEY, REGION, SECRET_KEY, S3Server

CONFIG = """
allow_plaintext_secrets: true
source_coordination:
  store:
    sqlite: {{path: "{root}/leases.db"}}
spark:
  master: local[2]
pipelines:
  backup:
    source:
      kafka: &orders {{bootstrap_servers: "{kafka}", topics: [audited], upload: {{max_age: 1s, max_bytes: 100KB}}}}
    sinks:
      - files:
          root: s3://proven-archive/backup
          s3: {{endpoint_url: "{s3}", region: {region}, access_key_id: {key}, secret_access_key: {secret},
               path_style: true}}
          format: raw
  daily:
    source:
      kafka: *orders
    processors:
      - parse: {{time: {{json: {{field: ts, unit: seconds}}}}}}
    sinks:
      - files: {{root: "{root}/daily", format: {{jsonl: {{compression: gzip}}}}}}
"""
TOPIC, BUCKET = "audited", "proven-archive"
DAY = 86_400
MESSAGES = 3000


class Archive:
    """The configuration, and the commands on it."""

    def __init__(self, root: Path, kafka: KafkaServer, s3: S3Server) -> None:
        self.root = root
        self.config = root / "archive.yaml"
        access = {"region": REGION, "key": ACCESS_KEY, "secret": SECRET_KEY}
        self.config.write_text(CONFIG.format(root=root, kafka=kafka.bootstrap, s3=s3.endpoint, **access))
        self.settings = assemble.load_settings(self.config)
        self.store = assemble.open_store(self.settings)

    def command(self, *words: str) -> tuple[int, Any]:
        """Exit code and JSON of a command."""
        name, *options = words
        done = CliRunner().invoke(commands, [name, str(self.config), *options, "--json"])
        return done.exit_code, json.loads(done.stdout) if done.exit_code in {0, 1} else done.stderr

    def proven(self, pipeline: str, *options: str) -> list[dict[str, Any]]:
        """The proofs of the pipeline's partitions, none of them doubtful."""
        code, proofs = self.command("verify", "--pipeline", pipeline, *options)
        assert (code, [proof["doubts"] for proof in proofs]) == (0, [[]] * len(proofs))
        return [proof for proof in proofs if proof["kind"] == "partition"]

    def positions(self, pipeline: str) -> list[Any]:
        """Of the pipeline's partitions, as the store has them."""
        return [
            row.progress.position
            for row in assemble.StoredPipeline(self.settings, self.store, pipeline).operator().rows()
        ]

    def has_begun(self, pipeline: str) -> bool:
        return any(self.positions(pipeline))

    def is_complete(self, pipeline: str) -> bool:
        return self.positions(pipeline) == [{"offset": MESSAGES}] * 2


def test_a_real_archive_is_proven_and_its_messages_are_found(
    tmp_path: Path, kafka_server: KafkaServer, s3_server: S3Server
) -> None:
    s3_server.create_bucket(BUCKET)
    kafka_server.create_topic(TOPIC, partitions=2)
    for partition in range(2):
        # Every hundredth has no time and becomes a dead letter of the daily files.
        messages = [{"id": n, **({"ts": 1_700_000_000 + n % 3 * DAY} if n % 100 else {})} for n in range(MESSAGES)]
        kafka_server.produce(TOPIC, [json.dumps(message).encode() for message in messages], partition=partition)
    archive = Archive(tmp_path, kafka_server, s3_server)
    node = Node(tmp_path, archive.config, "replica1")
    try:
        for reached in (archive.has_begun, archive.is_complete):
            for pipeline in ("backup", "daily"):
                done = partial(reached, pipeline)
                eventually(lambda: node.process.poll() is not None or done(), 240, pipeline)  # noqa: B023 - used at once
                assert node.process.poll() is None, node.said()[-2000:]
                archive.proven(pipeline)
        node.send(signal.SIGTERM)
        assert node.exit_code() == 0
    finally:
        node.kill()
        archive.store.close()

    backup, daily = archive.proven("backup", "--deep"), archive.proven("daily", "--deep")
    assert [(proof["rows"], proof["absent"], proof["exact"]) for proof in backup] == [(MESSAGES, 0, True)] * 2
    assert [(proof["rows"], proof["dead_letters"], proof["absent"]) for proof in daily] == [(MESSAGES - 30, 30, 0)] * 2

    command = ("locate", "--topic", TOPIC, "--partition", "1", "--offset", "1234")
    code, (found,) = archive.command(*command, "--pipeline", "backup")
    assert (code, found["place"]) == (0, "file")
    (raw,) = [key for key in keys_in(s3_server) if key == f"backup/{found['file']}"]
    _, candidates = archive.command(*command, "--pipeline", "daily")
    _, behind = archive.command("locate", "--pipeline", "daily", "--in", "backup", "--files", candidates[0]["file"])
    assert found["file"] in [row["file"] for row in behind]

    s3_server.client().delete_object(Bucket=BUCKET, Key=raw)
    code, proofs = archive.command("verify", "--pipeline", "backup")
    assert code == 1
    assert any(f"{found['file']} is missing" in doubt for proof in proofs for doubt in proof["doubts"])


def keys_in(s3: S3Server) -> list[str]:
    return [entry["Key"] for entry in s3.client().list_objects_v2(Bucket=BUCKET).get("Contents", [])]
