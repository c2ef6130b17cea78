"""Servers for the tests of this folder: each is started when the first test asks for it, once per process."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.servers.dynamodb import DynamodbServer
from tests.servers.kafka import AUTHORIZING, KafkaServer
from tests.servers.opensearch import OpenSearchServer
from tests.servers.processes import MariadbServer, PostgresqlServer, running
from tests.servers.s3 import S3Server

pytest.register_assert_rewrite("holdfast.testing", "tests.servers.behaviour", "tests.servers.outages")


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
