"""Whole nodes as processes of their own, over real Kafka and real S3: for what one process cannot show."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import yaml
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from holdfast.leases.lease import Lease, Status
from holdfast.leases.query import Query
from holdfast.stores.sqlite import SqliteStore
from tests.servers.http_proxy import HttpProxy
from tests.servers.kafka import KafkaServer
from tests.servers.processes import running
from tests.servers.s3 import ACCESS_KEY, REGION, SECRET_KEY, S3Server

TOPIC = "events"
BUCKET = "lake"
PATIENCE = 300.0


@dataclass
class Works:
    """The servers, and where the bucket is reached."""

    kafka: KafkaServer
    s3: S3Server
    proxy: HttpProxy
    folder: Path


@contextmanager
def works(delay: float = 0.0) -> Iterator[Works]:
    """Kafka, and S3 behind a proxy that holds every request back for `delay` seconds."""
    with (
        TemporaryDirectory() as folder,
        running(KafkaServer) as kafka,
        running(S3Server) as s3,
        HttpProxy(s3.port, delay) as proxy,
    ):
        s3.create_bucket(BUCKET)
        yield Works(kafka, s3, proxy, Path(folder))


def settings(where: Works, name: str, source: Mapping[str, Any], master: str, **pipeline: Any) -> Path:
    """A file for `holdfast run` with one pipeline from the topic to `s3://lake/<name>`."""
    s3 = {
        "endpoint_url": f"http://127.0.0.1:{where.proxy.port}",
        "region": REGION,
        "access_key_id": ACCESS_KEY,
        "secret_access_key": SECRET_KEY,
        "path_style": True,
    }
    files = {"root": f"s3://{BUCKET}/{name}", "s3": s3, "format": pipeline.pop("format", "raw")}
    kafka = {"bootstrap_servers": where.kafka.bootstrap, "topics": [TOPIC], **source}
    settings = {
        "allow_plaintext_secrets": True,
        "source_coordination": {"store": {"sqlite": {"path": str(where.folder / f"{name}.db")}}},
        "spark": {"master": master},
        "pipelines": {name: {"source": {"kafka": kafka}, "sinks": [{"files": files}], **pipeline}},
    }
    path = where.folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump(settings))
    return path


@contextmanager
def nodes(config: Path, number: int) -> Iterator[list[subprocess.Popen[bytes]]]:
    """So many nodes on that file, all of which have joined; stopped at the end."""
    with ExitStack() as ending:
        started = []
        for index in range(number):
            log = ending.enter_context((config.parent / f"{config.stem}-{index}.log").open("wb"))
            command = [
                sys.executable,
                "-m",
                "holdfast",
                "run",
                str(config),
                "--node",
                f"n{index}",
                "--log",
                "json",
                "--verbose",
            ]
            node = subprocess.Popen(command, stderr=log, start_new_session=True)
            ending.callback(_stop, node)
            started.append(node)
        for index in range(number):
            until(partial(_has_joined, config.parent / f"{config.stem}-{index}.log"))
        yield started


def _has_joined(log: Path) -> bool:
    return b"NodeJoined" in log.read_bytes()


def _stop(node: subprocess.Popen[bytes]) -> None:
    node.send_signal(signal.SIGTERM)
    try:
        node.wait(30)
    except subprocess.TimeoutExpired:
        os.killpg(node.pid, signal.SIGKILL)
        node.wait()


def committed(where: Works, pipeline: str, partitions: int) -> int:
    """Records that Kafka's consumer offsets say are visible."""
    consumer = Consumer({"bootstrap.servers": where.kafka.bootstrap, "group.id": f"holdfast-{pipeline}"})
    try:
        committed = consumer.committed([TopicPartition(TOPIC, number) for number in range(partitions)], timeout=10)
        return sum(max(partition.offset, 0) for partition in committed)
    except KafkaException as error:
        if error.args[0].code() != KafkaError.NOT_COORDINATOR:  # nobody has committed yet
            raise
        return 0
    finally:
        consumer.close()


def shares(where: Works, pipeline: str) -> list[int]:
    """How many partitions each node holds that holds any."""
    held = _leases(where, Query(pipeline, statuses=(Status.ASSIGNED,)))
    return sorted(Counter(row.ownership.owner for row in held).values())


def published(where: Works, pipeline: str) -> int:
    """Records of partitions whose last commit is visible."""
    rows = _leases(where, Query(pipeline))
    return sum(row.progress.counts.processed for row in rows if row.commit.receipts is None)


def _leases(where: Works, query: Query) -> Sequence[Lease]:
    store = SqliteStore(where.folder / f"{query.pipeline}.db")
    store.open()
    try:
        return store.find(query)
    finally:
        store.close()


def until(true: Callable[[], bool], patience: float = PATIENCE) -> None:
    """Wait until it is so."""
    give_up = time.monotonic() + patience
    while not true():
        if time.monotonic() > give_up:
            raise RuntimeError("what was waited for did not happen")
        time.sleep(0.2)


def memory(roots: Sequence[int]) -> dict[str, int]:
    """Bytes in memory now of Python processes below these, by what they are: the driver, the largest worker."""
    found = {"driver": 0, "worker": 0}
    for process in Path("/proc").iterdir():
        if not process.name.isdigit():
            continue
        try:
            command = (process / "cmdline").read_bytes().split(b"\0")
            group = os.getpgid(int(process.name))
            pages = int((process / "statm").read_text().split()[1])
        except (OSError, ProcessLookupError):
            continue
        size = pages * os.sysconf("SC_PAGE_SIZE")
        if int(process.name) in roots:
            found["driver"] = max(found["driver"], size)
        elif b"holdfast.spark.worker_daemon" in command or b"pyspark.daemon" in command:
            found["worker"] = max(found["worker"], size) if group else found["worker"]
    return found


def line(**record: Any) -> bytes:
    """One JSON message."""
    return json.dumps(record).encode()
