"""One Spark session and one broker for all tests of this folder that need them in their own process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from holdfast.spark.session import start_session, stop_session
from holdfast.spark.shipping import connector_jars
from tests.servers.kafka import KafkaServer
from tests.servers.opensearch import OpenSearchServer
from tests.servers.processes import running
from tests.servers.s3 import S3Server
from tests.spark.rig import Site

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytest.register_assert_rewrite("holdfast.testing")


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    session = start_session("tests", {"spark.sql.shuffle.partitions": "2"}, "local[2]", connector_jars())
    yield session
    stop_session(session)


@pytest.fixture
def site(spark: SparkSession, tmp_path: Path) -> Iterator[Site]:
    made = Site(spark, tmp_path)
    yield made
    made.engine.close()


@pytest.fixture(scope="session")
def kafka_server() -> Iterator[KafkaServer]:
    with running(KafkaServer) as server:
        yield server


@pytest.fixture(scope="session")
def s3_server() -> Iterator[S3Server]:
    with running(S3Server) as server:
        yield server


@pytest.fixture(scope="session")
def opensearch_server() -> Iterator[OpenSearchServer]:
    with running(OpenSearchServer) as server:
        yield server
