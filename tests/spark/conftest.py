"""One Spark session for all tests of this folder that need it in their own process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from holdfast.spark.connector import connector_jars
from holdfast.spark.session import start_session, stop_session
from tests.spark.function_setting import Setting
from tests.spark.rig import Site

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    # It lives for minutes: unlike other JVMs of tests, it may compile well what it runs often.
    settings = {"spark.sql.shuffle.partitions": "2", "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=4"}
    session = start_session("tests", settings, "local[2]", connector_jars())
    yield session
    stop_session(session)


@pytest.fixture
def site(spark: SparkSession, tmp_path: Path) -> Iterator[Site]:
    made = Site(spark, tmp_path)
    yield made
    made.engine.close()


@pytest.fixture
def setting(spark: SparkSession, tmp_path: Path) -> Iterator[Setting]:
    made = Setting(spark, tmp_path)
    yield made
    for engine in made.engines:
        engine.close()
