"""Two nodes on one Spark cluster, whose executors have everything that holdfast needs, but not holdfast."""

from __future__ import annotations

import gzip
import json
import os
import re
import shlex
import signal
import site
import sqlite3
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.e2e.fleet import Node, eventually
from tests.servers.kafka import KafkaServer
from tests.servers.s3 import ACCESS_KEY, REGION, SECRET_KEY, S3Server
from tests.spark.cluster import Cluster, running_cluster

pytestmark = [pytest.mark.spark, pytest.mark.slow]

SPARK_SECRET = "nobody else may send tasks"
ORDERS, CLICKS, BUCKET = "shop-orders", "shop-clicks", "shop"
PARTITIONS = {ORDERS: 4, CLICKS: 2}
WAVE = 300
DAY = 86_400_000

CONFIG = """
source_coordination:
  store:
    sqlite: {{path: "{folder}/leases.db"}}
node:
  session_timeout: 20s
  heartbeat_interval: 1s
spark:
  master: {master}
  conf:
{settings}
    spark.cores.max: 1
    spark.pyspark.python: {python}
    spark.authenticate.secret: ${{env:SPARK_SECRET}}
    spark.io.encryption.enabled: true
  py_files: ["{folder}/shop_parsing.py"]
pipelines:
  shop:
    source:
      kafka:
        bootstrap_servers: {kafka}
        topics: [{orders}, {clicks}]
        upload: {{max_age: 1s}}
    processors:
      - parse:
          time:
            json: {{field: at, unit: millis}}
          topics:
            - match: {clicks}
              python: shop_parsing:by_country
    sinks:
      - files:
          root: s3://{bucket}/shop
          s3:
            endpoint_url: {s3}
            region: {region}
            path_style: true
            access_key_id: ${{env:LAKE_KEY}}
            secret_access_key: ${{env:LAKE_SECRET}}
          format:
            text: {{compression: gzip}}
    # An executor that dies is not a fault of a batch: one attempt that is counted fails the partition, and the test.
    retries: {{max_retries: 0}}
"""

PARSER = """
def by_country(message):
    return ("country=" + message.value[:2].decode(),)
"""


class Shop:
    """The cluster and what its nodes share."""

    def __init__(self, folder: Path, cluster: Cluster, kafka: KafkaServer, s3: S3Server) -> None:
        self.folder = folder
        self.cluster = cluster
        self._kafka = kafka
        self._s3 = s3.client()
        self._nodes: list[Node] = []
        self._read: dict[str, list[str]] = {}
        self.expected: Counter[tuple[str, str]] = Counter()
        for topic, partitions in PARTITIONS.items():
            kafka.create_topic(topic, partitions)
        (folder / "shop_parsing.py").write_text(PARSER)
        settings = "".join(f"    {name}: {value}\n" for name, value in cluster.settings.items()).rstrip()
        python = bare_python(folder)
        addresses = {"master": cluster.master, "kafka": kafka.bootstrap, "s3": s3.endpoint, "region": REGION}
        names = {"orders": ORDERS, "clicks": CLICKS, "bucket": BUCKET}
        text = CONFIG.format(folder=folder, settings=settings, python=python, **addresses, **names)
        (folder / "shop.yaml").write_text(text)

    def start(self, name: str) -> Node:
        self._nodes.append(Node(self.folder, self.folder / "shop.yaml", name))
        return self._nodes[-1]

    def end(self) -> None:
        for node in self._nodes:
            node.kill()
        self._s3.close()

    def produce(self) -> None:
        """One wave of messages to every partition."""
        for topic, partitions in PARTITIONS.items():
            for partition in range(partitions):
                made = [self._message(topic, len(self.expected) + number) for number in range(WAVE)]
                self.expected.update(made)
                self._kafka.produce(topic, [line.encode() for _, line in made], partition)

    def _message(self, topic: str, number: int) -> tuple[str, str]:
        """Place and text of a message."""
        if topic == CLICKS:
            country = ("de", "fr", "pt")[number % 3]
            return f"{CLICKS}/country={country}", f"{country} {number}"
        at = 1_767_225_600_000 + number % 5 * DAY
        day = datetime.fromtimestamp(at / 1000, UTC).date()
        return f"{ORDERS}/dt={day}", json.dumps({"id": number, "at": at})

    def visible(self) -> Counter[tuple[str, str]]:
        """Place and text of every message in the files that a plain listing shows."""
        for page in self._s3.get_paginator("list_objects_v2").paginate(Bucket=BUCKET, Prefix="shop/"):
            for found in page.get("Contents", ()):
                key = found["Key"].removeprefix("shop/")
                if not key.startswith("_") and key not in self._read:
                    data = self._s3.get_object(Bucket=BUCKET, Key=found["Key"])["Body"].read()
                    self._read[key] = gzip.decompress(data).decode().splitlines()
        return Counter((key.rpartition("/")[0], line) for key, lines in self._read.items() for line in lines)

    def all_is_visible(self) -> bool:
        for node in self._nodes:
            assert node.process.poll() is None, node.said()[-3000:]
        assert self._statuses()["FAILED"] == 0, "\n".join(node.said()[-3000:] for node in self._nodes)
        return sum(self.visible().values()) >= sum(self.expected.values())

    def held(self, node: Node) -> int:
        """How many partitions of topics a node has."""
        return self._ask("key LIKE '%|%' AND owner LIKE ?", f"%:{node.process.pid}:%")["ASSIGNED"]

    def _statuses(self) -> Counter[str]:
        return self._ask("key LIKE ?", "%|%")

    def _ask(self, which: str, value: str) -> Counter[str]:
        question = (
            f"SELECT status, count(*) FROM lease WHERE pipeline = 'shop' AND key LIKE '%|%' AND {which} GROUP BY 1"
        )
        with sqlite3.connect(self.folder / "leases.db", timeout=10) as db:
            try:
                return Counter(dict(db.execute(question, (value,)).fetchall()))
            except sqlite3.OperationalError:
                return Counter()  # no node has come so far yet


def bare_python(folder: Path) -> Path:
    """A Python as executors have it: with all packages of this environment, and without holdfast."""
    packages = folder / "packages"
    packages.mkdir()
    for package in Path(site.getsitepackages()[0]).iterdir():
        if "holdfast" not in package.name:
            (packages / package.name).symlink_to(package)
    program = folder / "python"
    # Without `site` nothing leads to the sources, which this environment has by a `.pth` file.
    python = shlex.quote(str(Path(sys.executable).resolve()))
    program.write_text(f'#!/bin/sh\nPYTHONPATH="$PYTHONPATH:{packages}" exec {python} -S "$@"\n')
    program.chmod(0o755)
    tried = subprocess.run([program, "-c", "import pyarrow, holdfast"], capture_output=True, text=True, check=False)
    assert "No module named 'holdfast'" in tried.stderr
    return program


@contextmanager
def running_shop(folder: Path, monkeypatch: pytest.MonkeyPatch, kafka: KafkaServer, s3: S3Server) -> Iterator[Shop]:
    monkeypatch.delenv("PYTHONPATH", raising=False)
    with running_cluster(secret=SPARK_SECRET) as cluster:
        s3.create_bucket(BUCKET)
        shop = Shop(folder, cluster, kafka, s3)
        # Only now, so that the nodes have these and the executors do not: they inherit from the workers.
        given = {"SPARK_SECRET": SPARK_SECRET, "LAKE_KEY": ACCESS_KEY, "LAKE_SECRET": SECRET_KEY}
        for name, value in {**given, "PYTHONPATH": str(folder), "SPARK_LOCAL_IP": "127.0.0.1"}.items():
            monkeypatch.setenv(name, value)
        try:
            yield shop
        finally:
            shop.end()


def test_two_applications_share_topics_and_their_executors_need_no_holdfast(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kafka_server: KafkaServer, s3_server: S3Server
) -> None:
    with running_shop(tmp_path, monkeypatch, kafka_server, s3_server) as shop:
        shop.produce()
        first = shop.start("first")
        eventually(shop.all_is_visible, what="one application has written all")
        second = shop.start("second")
        eventually(lambda: (shop.held(first), shop.held(second)) == (3, 3), what="both have the same share")
        shop.produce()
        eventually(shop.all_is_visible, what="two applications have written all")

        executors = [pid for worker in shop.cluster.workers for pid in worker.executors()]
        assert len(executors) == 2
        os.kill(executors[0], signal.SIGKILL)
        shop.produce()
        eventually(shop.all_is_visible, what="all is written although an executor died")

        for node in (first, second):
            node.send(signal.SIGTERM)
        assert [node.exit_code() for node in (first, second)] == [0, 0]
        assert shop.visible() == shop.expected
        eventually(lambda: not any(worker.executors() for worker in shop.cluster.workers), 30, "executors are gone")
    log = first.said() + second.said()
    assert not re.search(f"{SPARK_SECRET}|{SECRET_KEY}", log)
    assert "can read its tasks" not in log
