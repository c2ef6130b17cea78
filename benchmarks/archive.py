"""Kafka to files: a whole node against Spark's own ways, over the same topic, in the same session.

Ours is `Node` with its loop, leases in SQLite, manifests, staging, commit and publish. The peers are Structured
Streaming with `availableNow` and a checkpoint, partitioned by the same date, and for the backup Spark's plain read that
only counts rows: the floor that the connector sets. Peers read with a larger poll than Spark's default, as we do. What
else holdfast sets (no waiting at the end of a log, the connector's second version) they do without; the plain count
with these as well is shown beside, without a bar.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks._archive_cases import cases
from benchmarks._archive_site import TOPIC, Site, site, through_a_node, timed
from benchmarks.harness import Comparison, compare, interleaved
from holdfast.flow.processor import Processor
from holdfast.processors.parse import PLUGIN as PARSE

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

MESSAGES = 3_000_000
REPETITIONS = 3
SCHEMA = "id BIGINT, ts BIGINT, user STRING, action STRING, path STRING, status INT, ms INT, agent STRING, ref STRING"
POLL = {"kafka.max.poll.records": "10000", "kafka.max.partition.fetch.bytes": "4194304"}
NO_WAIT = {"kafka.fetch.max.wait.ms": "10"}
V1_SOURCES = "spark.sql.sources.useV1SourceList"
BY_DAY = {"time": {"json": {"field": "ts", "unit": "millis"}}}


def run(messages: int = MESSAGES, repetitions: int = REPETITIONS, *, whole: bool = True) -> list[Comparison]:
    with site(messages) as where:
        ways: dict[str, Callable[[], float]] = {
            "text": lambda: _ours(where, {"text": {"compression": "gzip"}}, [_parser()]),
            "streamed text": lambda: _streamed(where, _text_by_day),
            "parquet": lambda: _ours(where, {"parquet": {"compression": "zstd"}}, [_parser(columns=True)]),
            "streamed parquet": lambda: _streamed(where, _parquet_by_day),
            "sequencefile": lambda: _ours(where, {"sequencefile": None}),
            "zstd": lambda: _ours(where, {"text": {"compression": "zstd"}}),
            "count": lambda: messages / _plainly(where, lambda: _count(where)),
            "tuned count": lambda: messages / timed(lambda: _count(where, **NO_WAIT)),
        }
        for case in ways.values():  # once off the record: workers start and code is compiled
            case()
        found = dict(zip(ways, interleaved(list(ways.values()), repetitions), strict=True))
        requests = _store_requests(where)
    floor = "Spark only counts"
    return [
        compare("archive", "text gzip by date, Structured Streaming", *_pair(found, "text"), "rows/s", 2.5),
        compare("archive", "Parquet zstd by date, Structured Streaming", *_pair(found, "parquet"), "rows/s", 1.5),
        compare("archive", f"backup as SequenceFile, {floor}", found["sequencefile"], found["count"], "rows/s", 0.6),
        compare("archive", f"backup as text zstd, {floor}", found["zstd"], found["count"], "rows/s", 0.6),
        compare(
            "archive", f"backup as text zstd, {floor}, tuned alike", found["zstd"], found["tuned count"], "rows/s", 0
        ),
        compare("archive", "requests to the store per million messages", requests, 1_000, "requests", "<= 1"),
        *(cases() if whole else ()),
    ]


def _pair(found: Mapping[str, float], name: str) -> tuple[float, float]:
    return found[name], found[f"streamed {name}"]


def _ours(where: Site, file_format: Mapping[str, Any], processors: Sequence[Processor] = ()) -> float:
    output = where.folder / "ours"
    seconds, _ = through_a_node(where, output, file_format, processors)
    shutil.rmtree(output)
    return where.messages / seconds


def _store_requests(where: Site) -> float:
    """Per million messages; a node that only waits for more has two or three a second."""
    _, requests = through_a_node(where, where.folder / "counted", {"text": {"compression": "zstd"}})
    return requests / where.messages * 1_000_000


def _parser(*, columns: bool = False) -> Processor:
    parsed = {"columns": {"json": {"schema": SCHEMA}}} if columns else {}
    processor: Processor = PARSE.build(PARSE.config.model_validate({**BY_DAY, **parsed}))
    return processor


def _streamed(where: Site, write: Callable[[DataFrame, Path], Any]) -> float:
    output = where.folder / "streamed"
    options = {"kafka.bootstrap.servers": where.kafka.bootstrap, "subscribe": TOPIC, "startingOffsets": "earliest"}
    rows = where.spark.readStream.format("kafka").options(**options, **POLL).load()
    seconds = _plainly(where, lambda: write(rows, output).awaitTermination())
    shutil.rmtree(output)
    return where.messages / seconds


def _text_by_day(rows: DataFrame, output: Path) -> Any:
    day = "date_format(timestamp_millis(CAST(get_json_object(value, '$.ts') AS BIGINT)), 'yyyy-MM-dd') AS dt"
    chosen = rows.selectExpr("CAST(value AS STRING) AS value").selectExpr("value", day)
    return _begun(chosen, output, "text", "gzip")


def _parquet_by_day(rows: DataFrame, output: Path) -> Any:
    parsed = rows.selectExpr(f"from_json(CAST(value AS STRING), '{SCHEMA}') AS row").selectExpr("row.*")
    return _begun(
        parsed.selectExpr("*", "date_format(timestamp_millis(ts), 'yyyy-MM-dd') AS dt"), output, "parquet", "zstd"
    )


def _begun(rows: DataFrame, output: Path, form: str, compression: str) -> Any:
    writing = rows.writeStream.format(form).partitionBy("dt").option("compression", compression)
    writing = writing.option("path", str(output / "data")).option("checkpointLocation", str(output / "checkpoint"))
    return writing.trigger(availableNow=True).start()


def _plainly(where: Site, work: Callable[[], Any]) -> float:
    """Seconds that it takes with the connector that Spark chooses by itself."""
    ours = where.spark.conf.get(V1_SOURCES) or ""
    where.spark.conf.set(V1_SOURCES, f"{ours},kafka")
    try:
        return timed(work)
    finally:
        where.spark.conf.set(V1_SOURCES, ours)


def _count(where: Site, **more: str) -> None:
    options = {"kafka.bootstrap.servers": where.kafka.bootstrap, "subscribe": TOPIC, **more}
    rows = where.spark.read.format("kafka").options(**options, **POLL).load()
    if rows.selectExpr("count(value)").collect()[0][0] != where.messages:
        raise RuntimeError("the topic is not complete")
