"""The processor `parse` in Spark: inside the staging task and as a step of the frame it gives the same."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import functions as sql

from holdfast.errors import Refused
from holdfast.flow.batch import Name
from holdfast.flow.staging import StagedBatch
from holdfast.processors.parse import PLUGIN
from tests.spark.rig import Site, failed, staged

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

FRAME = (
    "_batch INT, _item BIGINT, _fault STRING, topic STRING, partition INT, offset BIGINT, timestamp TIMESTAMP, "
    "key BINARY, value BINARY"
)
SETTINGS: dict[str, Any] = {
    "time": {"json": {"field": "t", "unit": "seconds"}},
    "granularity": "hour",
    "topics": [{"match": "clicks", "time": "kafka", "zone": "Asia/Tokyo"}, {"match": "raw", "names": {}}],
}
COLUMNS = {"columns": {"json": {"schema": "t BIGINT, note STRING, at TIMESTAMP"}}, "keep": ["offset"]}
GOOD = b'{"t": 1767268800, "note": "a", "at": "2026-01-01T00:00:00Z"}'
LINES = '{"t": 1767268800, "n": 1}\n{"t": 1767355200, "n": 2}\nbroken\n{"t": 1767268801, "n": 3}\n'
BY_TIME = {"time": {"json": {"field": "t", "unit": "seconds"}}}


def kafka_frame(spark: SparkSession) -> Any:
    noon = datetime(2026, 1, 1, 20, tzinfo=UTC)
    messages = [GOOD, b"broken", None, b'{"t": 5}']
    rows = [
        (batch, item, None, topic, 0, item, noon, None, message)
        for batch, topic in enumerate(("orders", "clicks", "raw"))
        for item, message in enumerate(messages)
    ]
    return spark.createDataFrame(rows, FRAME)


@pytest.mark.parametrize("more", [{}, COLUMNS], ids=["as it is", "columns"])
def test_the_frame_and_the_task_give_the_same_rows(spark: SparkSession, more: dict[str, Any]) -> None:
    frame = kafka_frame(spark)
    processor = PLUGIN.build(PLUGIN.config(**SETTINGS, **more))
    of_frame = processor.apply(frame).toArrow().sort_by([("_batch", "ascending"), ("_item", "ascending")])
    in_task: list[dict[str, Any]] = []
    for batch, topic in enumerate(("orders", "clicks", "raw")):
        (rows,) = frame.where(sql.col("_batch") == batch).coalesce(1).orderBy("_item").toArrow().to_batches()
        staged = StagedBatch(str(batch), "p", topic, Name(topic, "0"), 1, 1)
        in_task += processor.in_task().apply(staged, rows).to_pylist()
    expected = [row if "_place" in row else row | {"_place": ""} for row in in_task]
    good = [row["_fault"] is None for row in expected]
    assert good.count(True) >= 3
    assert of_frame.select(["_fault"]).to_pylist() == [{"_fault": row["_fault"]} for row in expected]
    kept = [row for row, is_good in zip(of_frame.to_pylist(), good, strict=True) if is_good]
    assert kept == [row for row, is_good in zip(expected, good, strict=True) if is_good]
    assert kept[0]["_place"] == "dt=2026-01-01/hr=12"


def test_files_are_the_same_whether_a_frame_follows_or_not(site: Site) -> None:
    site.put("day", LINES)
    outputs = []
    for name, following in (("task", []), ("frame", [lambda frame: frame.where("1 = 1")])):
        parse = PLUGIN.build(PLUGIN.config(**BY_TIME))
        site.reading(parse, *following, sinks={name: "parquet"}, codec="text")
        report = staged(site.run()["day"])
        assert (report.counts.succeeded, report.counts.dead) == (3, 1)
        files = site.publish([report], name)
        outputs.append(sorted((file["key"], file["rows"], file["sha256"]) for file in files))
        assert [letter["raw"] for letter in site.dead_letters(name)] == ["broken"]
    assert outputs[0] == outputs[1]
    assert [key.split("/")[1] for key, _, _ in outputs[0][1:]] == ["dt=2026-01-01", "dt=2026-01-02"]


def test_columns_that_spark_does_not_understand_fail_the_batch_and_say_why(site: Site) -> None:
    site.put("day", LINES)
    parse = PLUGIN.build(PLUGIN.config(columns={"json": {"schema": "t NONSENSE"}}))
    site.reading(parse, codec="text")
    assert "NONSENSE" in failed(site.run()["day"]).error


def test_different_columns_need_the_task(spark: SparkSession) -> None:
    rules = [{"match": "clicks", "columns": {"json": {"schema": "t BIGINT"}}}]
    with pytest.raises(Refused, match="different columns for different topics"):
        PLUGIN.build(PLUGIN.config(time="kafka", topics=rules)).apply(kafka_frame(spark))
    with pytest.raises(Refused, match="no column topic"):
        PLUGIN.build(PLUGIN.config(**SETTINGS)).apply(kafka_frame(spark).drop("topic"))
    with pytest.raises((Refused, PySparkException), match="reserved for holdfast"):
        PLUGIN.build(PLUGIN.config(columns={"json": {"schema": "_place STRING"}})).in_task()
