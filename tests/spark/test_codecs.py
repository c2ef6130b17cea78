"""Objects of every codec through Spark, and damaged ones whose good records are kept."""

from __future__ import annotations

import bz2
import gzip
import io
import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from holdfast.errors import BeyondRepair
from holdfast.flow.batch import Batch, Limits
from holdfast.flow.source import FAULT_COLUMN
from holdfast.leases.lease import History
from holdfast.spark.task import frame_of
from tests.spark.rig import Site, failed, lines, staged

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark
SCHEMA = "id BIGINT, note STRING"
ROWS = [{"id": number, "note": f"n{number}"} for number in range(5000)]


@pytest.mark.parametrize(
    ("codec", "compression"),
    [
        ("jsonl", "gzip"),
        ("jsonl", "snappy"),
        ("jsonl", "bzip2"),
        ("csv", "snappy"),
        ("parquet", "snappy"),
        ("parquet", "zstd"),
    ],
)
def test_what_spark_writes_is_read(site: Site, spark: SparkSession, codec: str, compression: str) -> None:
    frame = spark.createDataFrame([(row["id"], row["note"]) for row in ROWS], SCHEMA).coalesce(1)
    out = str(site.root / "written")
    writer = frame.write.option("compression", compression)
    if codec == "csv":
        writer.option("header", "true").csv(out)
    else:
        writer.json(out) if codec == "jsonl" else writer.parquet(out)
    for path in Path(out).glob("part-*"):
        site.put(path.name, path.read_bytes())
    site.reading(codec=codec, schema=SCHEMA)
    site.publish(site.run())
    assert sorted(site.rows(), key=lambda row: row["id"]) == ROWS


def test_a_sequencefile_that_spark_writes_is_read(site: Site, spark: SparkSession) -> None:
    pairs = spark.sparkContext.parallelize([(number, f"é{number}" * 50) for number in range(2000)], 1)
    pairs.saveAsSequenceFile(str(site.root / "plain"))
    pairs.saveAsSequenceFile(str(site.root / "packed"), "org.apache.hadoop.io.compress.GzipCodec")
    for kind in ("plain", "packed"):
        (path,) = (site.root / kind).glob("part-*")
        site.put(f"{kind}.seq", path.read_bytes())
    site.reading(codec="sequencefile", schema="key BIGINT, value STRING", split_bytes=5000)
    site.publish(site.run())
    wanted = [{"key": number, "value": f"é{number}" * 50} for number in range(2000) for _ in range(2)]
    assert sorted(site.rows(), key=lambda row: row["key"]) == wanted


def test_keys_and_values_of_bytes_are_both_written_to_json_lines(site: Site, spark: SparkSession) -> None:
    given: dict[str, list[Any]] = {"pairs": [(1, "\u00e9"), (2, "")], "keys": [("k", None)]}
    for name, pairs in given.items():
        spark.sparkContext.parallelize(pairs, 1).saveAsSequenceFile(str(site.root / name))
        (path,) = (site.root / name).glob("part-*")
        site.put(f"{name}.seq", path.read_bytes())
    site.reading(codec="sequencefile", sinks={"out": "jsonl"})
    site.publish(site.run())
    headers = [{"key": "aw=="}, {"key": "MQ==", "value": "w6k="}, {"key": "Mg==", "value": ""}]
    assert sorted(site.rows(), key=str) == sorted(headers, key=str)


def test_lines_that_are_not_json_are_letters_of_json_lines(site: Site) -> None:
    site.put("a.log", b'{"a":1}\nplain text\n')
    site.reading(codec="text", sinks={"out": "jsonl"})
    site.publish(site.run())
    assert site.rows() == [{"a": 1}]
    (letter,) = site.dead_letters()
    assert (letter["raw"], letter["reason"]) == ("plain text", "the message is not JSON")


def test_a_large_parquet_file_is_read_in_batches_and_pieces_and_every_row_is_there_once(site: Site) -> None:
    raw = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(ROWS), raw, row_group_size=100)
    site.put("a.parquet", raw.getvalue())
    site.reading(codec="parquet", schema=SCHEMA, split_bytes=3000)
    batches = site.batches(Limits(max_bytes=len(raw.getvalue()) // 4))
    assert len(batches) > 3
    site.publish(site.carried(batches))
    assert sorted(site.rows(), key=lambda row: row["id"]) == ROWS


def tried_before(batches: list[Batch]) -> list[Batch]:
    return [replace(batch, lease=replace(batch.lease, history=History(attempts=1))) for batch in batches]


def untouched(frame: DataFrame) -> DataFrame:
    return frame


@pytest.mark.parametrize("functions", [[], [untouched]], ids=["direct", "through the JVM"])
def test_good_records_of_damaged_objects_are_kept_and_the_objects_are_failed(site: Site, functions: list[Any]) -> None:
    text = lines(100_000).encode()
    damaged = {
        "a.jsonl.gz": gzip.compress(text)[:-200_000],
        "b.jsonl.bz2": bz2.compress(text)[:-100_000],
        "nothing.jsonl.gz": b"\x1f\x8b\x08 no gzip",
    }
    for name, data in damaged.items():
        site.put(name, data)
    site.put("whole.jsonl", lines(3, first=200_000))
    site.reading(*functions, schema=SCHEMA, on_corrupt="keep")
    batches = site.batches()
    for name, report in site.run(batches).items():
        assert name == "whole.jsonl" or "not a valid" in failed(report).error

    reports = site.run(tried_before(batches))
    kept = {name: staged(report).counts.succeeded for name, report in reports.items()}
    assert kept["whole.jsonl"] == 3
    assert kept["nothing.jsonl.gz"] == 0
    assert min(kept["a.jsonl.gz"], kept["b.jsonl.bz2"]) > 10_000
    for batch in batches:
        report = staged(reports[str(batch.lease.spec["path"])])
        lease = replace(batch.lease, progress=replace(batch.lease.progress, position=report.end))
        (plan,) = site.source.plan([lease], Limits())
        hurt = batch.lease.spec["path"] in damaged
        assert isinstance(plan, BeyondRepair) == hurt
        assert report.last != hurt
    site.publish(reports)
    assert len(site.rows()) == sum(kept.values())
    letters = site.dead_letters()
    assert len(letters) == 3
    assert all("not a valid" in letter["reason"] for letter in letters)


def test_a_lost_commit_of_a_damaged_object_is_made_again_the_same(site: Site) -> None:
    site.put("a.jsonl.gz", gzip.compress(lines(100_000).encode())[:-100_000])
    site.reading(schema=SCHEMA, on_corrupt="keep")
    (batch,) = tried_before(site.batches())
    first = staged(site.run([batch])["a.jsonl.gz"])
    # Whoever makes it restaged knows the range of the receipt and nothing of attempts.
    lease = replace(batch.lease, history=History())
    restaged = replace(batch, id="again", lease=lease, cut=replace(batch.cut, end=first.end, last=False), restages="c")
    second = staged(site.run([restaged])["a.jsonl.gz"])
    assert second.end == first.end
    assert [file["sha256"] for file in second.receipts["out"]["files"]] == [
        file["sha256"] for file in first.receipts["out"]["files"]
    ]


def test_rows_of_a_frame_have_the_types_of_the_schema(site: Site, spark: SparkSession) -> None:
    site.put("a.json", json.dumps({"rows": [{"id": 1, "note": "a"}, {"id": "x"}]}))
    site.reading(codec="json", schema=SCHEMA)
    frame = frame_of(spark, site.source.read(spark, site.batches()))
    rows = frame.orderBy("_item").collect()
    assert [(row["id"], row["note"]) for row in rows] == [(1, "a"), (None, None)]
    assert rows[0][FAULT_COLUMN] is None
    assert "record" in rows[1][FAULT_COLUMN]
