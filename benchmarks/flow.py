"""JSON lines to Parquet: a whole node against plain Spark, over the same files, in the same session.

Ours is `Node` with its loop, leases in SQLite, the Spark engine and the files sink: discover, claim, plan, stage,
commit, publish, until every file is COMPLETED. The peer is `spark.read.json(…).write.parquet(…)`, once without a
schema, as most people write it (Spark then reads everything twice), and once with it. Both write snappy. The third case
has a processor, so that our rows take the way through the JVM and back that they are spared without one.

Ours does more for its time: it checks that text is UTF-8, keeps bad lines apart, takes the SHA-256 of what it writes,
and fsyncs every file, folder and commit. Spark leaves what it wrote to the page cache. Its rows come from the JVM's
parser, ours from Arrow's.
"""

from __future__ import annotations

import random
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.parquet as pq

from benchmarks._node import SCHEMA, completed_in, log_line
from benchmarks.harness import Comparison, compare, interleaved
from holdfast.flow.pipeline import Pipeline
from holdfast.flow.processor import Processor
from holdfast.processors.filter import Filter
from holdfast.registry import Registry
from holdfast.sinks.files import PLUGIN as FILES
from holdfast.sources.objects import PLUGIN as OBJECTS
from holdfast.spark.session import start_session, stop_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FILE_COUNT = 8
LINES_PER_FILE = 650_000
LINES = FILE_COUNT * LINES_PER_FILE
REPETITIONS = 3
EVERYTHING = "bytes >= 0 AND level IS NOT NULL"
"""A condition that holds for every line, so that all cases write the same rows."""
PIPELINE = "scan"


def run() -> list[Comparison]:
    with tempfile.TemporaryDirectory() as folder, _session() as spark:
        source = Path(folder, "in")
        _make_files(source)
        output = Path(folder, "out")
        _warm_up(spark, source, output)
        ours, filtered, inferred, given, peer_filtered = interleaved(
            [
                lambda: _rate(output, _through_a_node(spark, source, output)),
                lambda: _rate(output, _through_a_node(spark, source, output, Filter(EVERYTHING))),
                lambda: _rate(output, _timed(lambda: spark.read.json(str(source)).write.parquet(str(output)))),
                lambda: _rate(output, _timed(lambda: _with_schema(spark, source, output))),
                lambda: _rate(output, _timed(lambda: _with_schema(spark, source, output, EVERYTHING))),
            ],
            REPETITIONS,
        )
    return [
        compare("flow", "to Parquet, peer infers the schema", ours, inferred, "rows/s", 0.8),
        compare("flow", "to Parquet, peer has the schema", ours, given, "rows/s", 0.8),
        compare("flow", "the same through a filter in Spark", filtered, peer_filtered, "rows/s", 0.6),
    ]


@contextmanager
def _session() -> Iterator[SparkSession]:
    spark = start_session("bench", {}, "local[2]")
    try:
        yield spark
    finally:
        stop_session(spark)


def _make_files(folder: Path) -> None:
    folder.mkdir()
    dice = random.Random(1)
    for number in range(FILE_COUNT):
        with (folder / f"part-{number}.jsonl").open("wb") as file:
            file.writelines(log_line(number * LINES_PER_FILE + row, dice) for row in range(LINES_PER_FILE))


def _warm_up(spark: SparkSession, source: Path, output: Path) -> None:
    """Both ways once, so that no case pays for starting workers and compiling."""
    _through_a_node(spark, source, output)
    shutil.rmtree(output)
    _with_schema(spark, source, output)
    shutil.rmtree(output)


def _timed(work: Callable[[], None]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def _rate(output: Path, seconds: float) -> float:
    """Rows per second. Checks that every row is there, and removes them, off the clock."""
    rows = sum(pq.ParquetFile(path).metadata.num_rows for path in output.rglob("*.parquet"))
    if rows != LINES:
        raise RuntimeError(f"{rows} of {LINES} rows are there")
    shutil.rmtree(output)
    return LINES / seconds


def _with_schema(spark: SparkSession, source: Path, output: Path, where: str = "true") -> None:
    spark.read.schema(SCHEMA).json(str(source)).where(where).write.parquet(str(output))


def _through_a_node(spark: SparkSession, folder: Path, output: Path, *processors: Processor) -> float:
    source = OBJECTS.build(OBJECTS.config(folder=folder, schema=SCHEMA))
    config = FILES.config(root=output, format={"parquet": {"compression": "snappy"}})
    sink = FILES.build("files", config, Registry.installed())
    return completed_in(spark, PIPELINE, Pipeline(source, processors, {sink.name: sink}), FILE_COUNT)
