"""A session on a cluster: rows are read and handled by executors that are processes of their own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.servers.kafka import KafkaServer
from tests.spark.cluster import Cluster, running_cluster

pytestmark = [pytest.mark.spark, pytest.mark.slow]

PATIENCE = 60.0

NODE = """
import json, os, sys, time
from holdfast.spark.jars import connector_jars
from holdfast.spark.session import start_session, stop_session

master, settings, bootstrap = sys.argv[1], json.loads(sys.argv[2]), sys.argv[3]

def who(batches):
    import pyarrow
    rows = sum(batch.num_rows for batch in batches)
    # Python's daemon is the parent of its workers, the executor is the daemon's.
    with open(f"/proc/{os.getppid()}/stat") as stat:
        executor = int(stat.read().rpartition(")")[2].split()[1])
    yield pyarrow.RecordBatch.from_pydict({"executor": [executor], "rows": [rows]})

def say(session):
    reader = session.read.format("kafka").option("kafka.bootstrap.servers", bootstrap)
    reader = reader.option("assign", '{"spread": [0, 1]}').option("startingOffsets", '{"spread": {"0": 1, "1": 2}}')
    frame = reader.option("endingOffsets", '{"spread": {"0": 4, "1": 9}}').load()
    found = frame.select("value").mapInArrow(who, "executor long, rows long").collect()
    print(json.dumps([row.asDict() for row in found]), flush=True)

session = start_session("cluster", settings, master, connector_jars())
while session._jsc.sc().getExecutorMemoryStatus().size() < 3:
    time.sleep(0.1)
say(session)
for line in sys.stdin:
    say(session)
stop_session(session)
"""


@contextmanager
def node(cluster: Cluster, kafka: KafkaServer) -> Iterator[subprocess.Popen[str]]:
    arguments = (cluster.master, json.dumps(cluster.settings), kafka.bootstrap)
    with subprocess.Popen(
        [sys.executable, "-c", NODE, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def answer(process: subprocess.Popen[str]) -> list[dict[str, Any]]:
    assert process.stdout is not None
    return list(json.loads(process.stdout.readline()))


def until_gone(pids: list[int]) -> None:
    give_up_at = time.monotonic() + PATIENCE
    while left := [pid for pid in pids if Path(f"/proc/{pid}").exists()]:
        assert time.monotonic() < give_up_at, f"still there: {left}"
        time.sleep(0.1)


def test_executors_read_kafka_and_one_that_dies_is_replaced(kafka_server: KafkaServer) -> None:
    kafka_server.create_topic("spread", partitions=2)
    for partition in (0, 1):
        kafka_server.produce("spread", [b"%d" % number for number in range(10)], partition)
    with running_cluster(workers=2) as cluster, node(cluster, kafka_server) as process:
        first = answer(process)
        executors = [pid for worker in cluster.workers for pid in worker.executors()]
        assert sorted(row["rows"] for row in first) == [3, 7]
        assert {row["executor"] for row in first} == set(executors)
        assert len(executors) == 2

        os.kill(executors[0], signal.SIGKILL)
        until_gone(executors[:1])
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
        second = answer(process)
        assert sorted(row["rows"] for row in second) == [3, 7]
        assert executors[0] not in {row["executor"] for row in second}

        process.stdin.close()
        assert process.wait(PATIENCE) == 0
    until_gone(executors)
