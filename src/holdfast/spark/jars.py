"""The jars of Spark's Kafka connector, which pip does not bring."""

from __future__ import annotations

import sys
from pathlib import Path

from holdfast.errors import UsageError

ARTIFACTS = (
    "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0",
    "org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.0.0",
    "org.apache.kafka:kafka-clients:3.9.2",
    "org.apache.commons:commons-pool2:2.13.1",
)
"""What the connector needs beside Spark's own jars, as Maven's coordinates, without dependencies of their own."""


def connector_jars() -> list[Path]:
    """The connector's jars, to be given to `start_session`. Looks at the disk only.

    They are in `share/holdfast/jars` of the Python environment. Raises `UsageError` when one is missing.
    """
    folder = jar_folder()
    missing = [artifact for artifact in ARTIFACTS if not (folder / _file_name(artifact)).is_file()]
    if missing:
        raise UsageError(
            f"Spark's Kafka connector is not complete in {folder}: run `make setup`, "
            f"or put these jars of a Maven repository there: {', '.join(missing)}"
        )
    return [folder / _file_name(artifact) for artifact in ARTIFACTS]


def jar_folder() -> Path:
    """Where the jars are kept; the folder need not be there."""
    return Path(sys.prefix, "share", "holdfast", "jars")


def _file_name(artifact: str) -> str:
    _, name, version = artifact.split(":")
    return f"{name}-{version}.jar"
