"""Objects on a real S3 server, a Spark session, and a whole node that scans them until all are done."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks._node import completed_in, log_line
from holdfast.flow.pipeline import Pipeline
from holdfast.flow.sink import Sink
from holdfast.leases.session import SessionTiming
from holdfast.sources.objects import PLUGIN as OBJECTS
from holdfast.spark.session import start_session, stop_session
from tests.servers.processes import running
from tests.servers.s3 import ACCESS_KEY, REGION, SECRET_KEY, S3Server

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BUCKET = "lake"
PIPELINE = "scan"


@dataclass(frozen=True)
class Site:
    """What the cases of the benchmark share."""

    spark: SparkSession
    s3: S3Server
    folder: Path

    def keys(self, prefix: str) -> list[str]:
        pages = self.s3.client().get_paginator("list_objects_v2").paginate(Bucket=BUCKET, Prefix=f"{prefix}/")
        return [entry["Key"] for page in pages for entry in page["Contents"]]

    def files(self, prefix: str) -> str:
        """The objects as the server keeps them: the peer reads them without the server in between."""
        return str(self.s3.folder / "objects" / BUCKET / prefix)


@contextmanager
def site() -> Iterator[Site]:
    """A server with an empty bucket, and a session."""
    with tempfile.TemporaryDirectory() as folder, running(S3Server) as s3:
        s3.create_bucket(BUCKET)
        spark = start_session("bench", {"spark.driver.memory": "2g"}, "local[2]")
        try:
            yield Site(spark, s3, Path(folder))
        finally:
            stop_session(spark)
            s3.crash()


def put(where: Site, prefix: str, bodies: Iterator[bytes]) -> None:
    """Objects with these bodies, eight at a time."""
    client = where.s3.client(max_pool_connections=8)
    with ThreadPoolExecutor(8) as pool:
        waiting = []
        for number, body in enumerate(bodies):
            waiting.append(pool.submit(client.put_object, Bucket=BUCKET, Key=f"{prefix}/{number:06d}.jsonl", Body=body))
            if len(waiting) >= 16:
                waiting.pop(0).result()
        for process in waiting:
            process.result()


def lines(first: int, count: int) -> bytes:
    """That many JSON objects of about 170 bytes."""
    dice = random.Random(first)
    return b"".join(log_line(first + number, dice) for number in range(count))


def through_a_node(where: Site, prefix: str, objects: int, sink: Sink, schema: str | None = None) -> float:
    """Seconds of one node from its start, with an empty store, until the last object is COMPLETED."""
    reach = {"endpoint_url": where.s3.endpoint, "region": REGION, "path_style": True}
    keys = {"access_key_id": ACCESS_KEY, "secret_access_key": SECRET_KEY}
    settings = {"buckets": [{"bucket": BUCKET, "include_prefix": [f"{prefix}/"]}], "s3": {**reach, **keys}}
    source = OBJECTS.build(OBJECTS.config.model_validate({**settings, **({"schema": schema} if schema else {})}))
    pipeline = Pipeline(source, (), {sink.name: sink})
    return completed_in(where.spark, PIPELINE, pipeline, objects, SessionTiming().heartbeat)
