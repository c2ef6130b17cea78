"""An archive of raw records on real Kafka, S3 and PostgreSQL, and a reader that shares no code with the product."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pyarrow.parquet as pq

from tests.e2e.fleet import Node, eventually
from tests.servers.http_proxy import HttpProxy
from tests.servers.kafka import KafkaServer
from tests.servers.processes import PASSWORD, PostgresqlServer, free_port, running
from tests.servers.s3 import ACCESS_KEY, REGION, SECRET_KEY, S3Server

WITHIN = 240.0
HALTING, TOLERANT = "halting", "tolerant"
CONFIG = """
allow_plaintext_secrets: true
source_coordination:
  store:
    postgresql: {{host: 127.0.0.1, port: {store}, database: postgres, user: postgres, password: {password}}}
node:
  session_timeout: 6s
  heartbeat_interval: 1s
  metrics_port: {metrics}
alerts: {{lag_records: 1000}}
spark:
  master: local[1]
  conf: {{spark.driver.memory: 700m, spark.ui.enabled: false}}
pipelines:
"""
PIPELINE = """
  {pipeline}:
    source:
      kafka:
        bootstrap_servers: "{kafka}"
        topics_pattern: "{topics}"
        on_loss: {on_loss}
        poll_interval: 500ms
        discovery_interval: 1s
        upload: {{max_age: 1s, max_records: 500}}
        uploads: [{{match: "patient-.*", max_age: 1h, max_records: 10}}]
    sinks:
      - files:
          root: s3://lake/{pipeline}
          s3: {{endpoint_url: "http://127.0.0.1:{s3}", region: {region}, access_key_id: {key},
               secret_access_key: {secret}, path_style: true}}
          format: raw
"""


class Archive:
    """Servers, nodes by name, and what a reader of the bucket finds."""

    def __init__(self, root: Path, stack: ExitStack) -> None:
        self.root = root
        self.postgresql = stack.enter_context(running(PostgresqlServer))
        # Compaction is looked for all the time, not every 15 seconds.
        self.kafka = stack.enter_context(running(KafkaServer, **{"log.cleaner.backoff.ms": "200"}))
        self.s3 = stack.enter_context(running(S3Server))
        self.s3.create_bucket("lake")
        self.nodes: dict[str, Node] = {}
        self.lines: dict[str, HttpProxy] = {}
        self._metrics: dict[str, int] = {}
        self._began: dict[str, int] = {}
        self._stack = stack
        self._rows: dict[str, list[dict[str, Any]]] = {}
        stack.callback(self._end)

    # --- nodes -------------------------------------------------------------------------------------------------

    def ensure(self, *names: str) -> None:
        """These nodes have joined; they are started if they do not run."""
        for name in names:
            if name not in self.nodes or self.nodes[name].process.poll() is not None:
                self.start(name)
        for name in names:
            self.hears(name, "NodeJoined")

    def start(self, name: str) -> None:
        if name not in self.lines:
            self.lines[name] = self._stack.enter_context(HttpProxy(self.s3.port))
            self._metrics[name] = free_port()
        config = self.root / f"{name}.yaml"
        config.write_text(self._config(name))
        log = self.root / f"{name}.log"
        self._began[name] = log.stat().st_size if log.exists() else 0
        self.nodes[name] = Node(self.root, config, name, "--verbose")

    def _config(self, name: str) -> str:
        values = {"kafka": self.kafka.bootstrap, "s3": self.lines[name].port}
        values |= {"region": REGION, "key": ACCESS_KEY, "secret": SECRET_KEY}
        head = {"store": self.postgresql.port, "password": json.dumps(PASSWORD), "metrics": self._metrics[name]}
        halting = PIPELINE.format(pipeline=HALTING, topics=f"plain-.*|patient-{HALTING}", on_loss="halt", **values)
        tolerant = PIPELINE.format(pipeline=TOLERANT, topics=f"patient-{TOLERANT}", on_loss="record", **values)
        return CONFIG.format(**head) + halting + tolerant

    def said(self, name: str, event: str, **fields: Any) -> list[dict[str, Any]]:
        """Events of that kind and with these fields in the node's log since it was started."""
        with self.nodes[name].log.open("rb") as log:
            log.seek(self._began[name])
            lines = [line for line in log.read().split(b"\n")[:-1] if f'"event": "{event}"'.encode() in line]
        events = [json.loads(line) for line in lines]
        return [event for event in events if all(event[key] == value for key, value in fields.items())]

    def hears(self, name: str, event: str, but: int = 0, **fields: Any) -> None:
        """Wait until the node has said that more than `but` times. Fails if it ends instead."""

        def true() -> bool:
            assert self.nodes[name].process.poll() is None, self.nodes[name].said()[-3000:]
            return len(self.said(name, event, **fields)) > but

        eventually(true, WITHIN, f"{name} says {event} {fields}")

    def metric(self, name: str, metric: str) -> float:
        """The sum over all labels of a metric of that node."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self._metrics[name]}/metrics", timeout=10) as answer:
            lines = answer.read().decode().splitlines()
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(f"{metric}{{"))

    def held_by(self, name: str, topic: str) -> int:
        """How many partitions of the topic are in the hands of that process, as the store says."""
        question = "SELECT count(*) FROM holdfast_lease WHERE key LIKE %s AND status = 'ASSIGNED' AND owner LIKE %s"
        with psycopg.connect(
            host="127.0.0.1", port=self.postgresql.port, dbname="postgres", user="postgres", password=PASSWORD
        ) as db:
            row = db.execute(question, (f"{topic}|%", f"%:{self.nodes[name].process.pid}:%")).fetchone()
        return int(row[0]) if row else 0

    def verify(self, pipeline: str) -> tuple[int, list[dict[str, Any]]]:
        """Exit code and proofs of `holdfast verify --deep`."""
        config = str(next(iter(sorted(self.root.glob("*.yaml")))))
        words = [sys.executable, "-m", "holdfast", "verify", config, "--pipeline", pipeline, "--deep", "--json"]
        done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=120)
        assert done.stdout, done.stderr[-2000:]
        return done.returncode, json.loads(done.stdout)

    # --- the bucket --------------------------------------------------------------------------------------------

    def rows(self, topic: str) -> list[dict[str, Any]]:
        """Every record of the topic that a plain listing shows, by partition and offset; a double one twice."""
        client = self.s3.client()
        pages = client.get_paginator("list_objects_v2").paginate(Bucket="lake")
        keys = [entry["Key"] for page in pages for entry in page.get("Contents", [])]
        for key in keys:
            if "/_" not in key and key not in self._rows:
                body = client.get_object(Bucket="lake", Key=key)["Body"].read()
                partition = int(key.rsplit("/", 1)[1].split("_")[1])
                table = pq.read_table(io.BytesIO(body)).to_pylist()
                self._rows[key] = [{"partition": partition, **row} for row in table]
        client.close()
        found = [row for key, rows in self._rows.items() if key.split("/")[1] == topic for row in rows]
        return sorted(found, key=lambda row: (row["partition"], row["offset"]))

    def offsets(self, topic: str) -> list[tuple[int, int]]:
        """Partition and offset of every visible record."""
        return [(row["partition"], row["offset"]) for row in self.rows(topic)]

    def has(self, topic: str, *counts: int) -> None:
        """Wait until the topic's partitions have so many records in the bucket, and see that each is there once."""
        wanted = [(partition, offset) for partition, count in enumerate(counts) for offset in range(count)]
        eventually(lambda: len(self.offsets(topic)) >= len(wanted), WITHIN, f"{topic} in the bucket")
        assert self.offsets(topic) == wanted

    def _end(self) -> None:
        for node in self.nodes.values():
            node.kill()


@contextmanager
def archive(root: Path, prepare: Callable[[KafkaServer], None]) -> Iterator[Archive]:
    """Running servers; whatever is left of the nodes ends with them. `prepare` is called before there is a node."""
    with ExitStack() as stack:
        made = Archive(root, stack)
        prepare(made.kafka)
        yield made
