"""Makes the archives of class data that JVMs in tests start from, where they are missing or older than their jars.

    python -m tests.servers.class_data

Each program is started once and does a little of everything; Java writes what it has loaded when it ends. That takes
about a minute in all. A Java that cannot (one without an archive of its own classes) is left without.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.servers.java import QUICK, archive_of, spark_jars
from tests.servers.kafka import KafkaServer, kafka_jars
from tests.servers.opensearch import OpenSearchServer, opensearch_jars
from tests.servers.processes import S, running

Start = Callable[[Sequence[str]], None]
"""Starts a program with these options of Java, and returns when it has ended in order."""

_SPARK = """
from holdfast.spark.session import start_session
session = start_session("class data", {}, "local[1]")
session.range(9).selectExpr("CAST(id AS STRING) AS value").write.parquet("rows")
session.read.parquet("rows").mapInArrow(lambda batches: batches, "value STRING").groupBy("value").count().collect()
gateway = session.sparkContext._gateway
session.stop()
gateway.shutdown()
gateway.proc.stdin.close()
gateway.proc.wait()  # `stop_session` would end it in the middle of writing
"""


def start_spark(options: Sequence[str]) -> None:
    environment = {**os.environ, "SPARK_SUBMIT_OPTS": " ".join(options)}
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([sys.executable, "-c", _SPARK], cwd=folder, env=environment, check=True)


def start_kafka(options: Sequence[str]) -> None:
    with running(with_options(KafkaServer, options)) as kafka:
        kafka.create_topic("rows")
        kafka.produce("rows", [b"row"])


def start_opensearch(options: Sequence[str]) -> None:
    with running(with_options(OpenSearchServer, options)) as opensearch:
        client = opensearch.client()
        client.bulk(index="rows", body=[{"index": {}}, {"value": 1}])
        client.close()
        assert opensearch.count("rows") == 1


def with_options(kind: type[S], options: Sequence[str]) -> type[S]:
    """Servers of that kind with these options of Java."""

    class WithOptions(kind):  # type: ignore[valid-type,misc]
        def command(self) -> Sequence[str]:
            program, *rest = super().command()
            return (program, *options, *rest)

    return WithOptions


def make_archive(jars: Path, start: Start) -> None:
    archive = archive_of(jars)
    made_from = (jars, Path(shutil.which("java") or jars).resolve())
    if archive.exists() and archive.stat().st_mtime > max(path.stat().st_ctime for path in made_from):
        return
    archive.parent.mkdir(parents=True, exist_ok=True)
    draft = archive.with_suffix(f".{os.getpid()}")
    start((*QUICK, f"-XX:ArchiveClassesAtExit={draft}", "-Xlog:cds*=off"))
    if draft.exists():
        draft.replace(archive)  # whoever has opened the old one keeps it


if __name__ == "__main__":
    make_archive(spark_jars(), start_spark)
    make_archive(kafka_jars(), start_kafka)
    make_archive(opensearch_jars(), start_opensearch)
