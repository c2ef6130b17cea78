"""For all tests: neither the speed of the machine nor the examples that are drawn decide; a small disk; and servers.

A server is started when the first test asks for it, once per process.
"""

from __future__ import annotations

import multiprocessing
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.servers.dynamodb import DynamodbServer
from tests.servers.java import use_short_lived_java
from tests.servers.kafka import AUTHORIZING, KafkaServer
from tests.servers.opensearch import OpenSearchServer
from tests.servers.processes import MariadbServer, PostgresqlServer, running
from tests.servers.s3 import S3Server

pytest.register_assert_rewrite("holdfast.testing", "tests.servers.behaviour", "tests.servers.outages")

settings.register_profile("fuzz", deadline=None, suppress_health_check=list(HealthCheck), print_blob=True)
# A change must not fail on an input that has nothing to do with it: `make fuzz` draws other inputs.
settings.register_profile("any machine", settings.get_profile("fuzz"), derandomize=True)
settings.load_profile("any machine")
use_short_lived_java()
# Processes are forked from one that has imported what most of them need: that takes longer than what they do.
multiprocessing.set_forkserver_preload(["holdfast.testing", "tests.conftest", "tests.simulation.mutating"])


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """An empty file system of 1 MiB. Only root may mount one."""
    if os.geteuid() != 0:
        pytest.skip("only root may mount a small disk")
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", disk], check=True)
    try:
        yield disk
    finally:
        subprocess.run(["umount", "--lazy", disk], check=True)


@pytest.fixture(scope="session")
def postgresql_server() -> Iterator[PostgresqlServer]:
    with running(PostgresqlServer) as server:
        yield server


@pytest.fixture(scope="session")
def mariadb_server() -> Iterator[MariadbServer]:
    with running(MariadbServer) as server:
        yield server


@pytest.fixture(scope="session")
def kafka_server() -> Iterator[KafkaServer]:
    with running(KafkaServer, **AUTHORIZING) as server:
        yield server


@pytest.fixture(scope="session")
def s3_server() -> Iterator[S3Server]:
    with running(S3Server) as server:
        yield server


@pytest.fixture(scope="session")
def dynamodb_server() -> Iterator[DynamodbServer]:
    with running(DynamodbServer) as server:
        yield server


@pytest.fixture(scope="session")
def opensearch_server() -> Iterator[OpenSearchServer]:
    with running(OpenSearchServer) as server:
        yield server
