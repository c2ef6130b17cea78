"""Spark and Avro's own library read what our formats write; formats say which columns they want."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import pyarrow as pa
import pytest

from holdfast.errors import Refused
from holdfast.flow.format import Format
from holdfast.formats import _columnar, _compression, avro, orc
from holdfast.formats.avro import Avro
from holdfast.formats.jsonl import Jsonl
from holdfast.formats.orc import Orc
from holdfast.formats.parquet import Parquet
from holdfast.formats.raw import Raw
from holdfast.formats.sequencefile import SequenceFile
from holdfast.formats.text import Text
from holdfast.testing.formats import VALUES, comparable, extremes, kafka_extremes, kafka_rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

KAFKA_FIELDS = (
    "topic STRING, partition INT, offset BIGINT, timestamp TIMESTAMP, timestamp_type INT, key BINARY, value BINARY, "
    "headers ARRAY<STRUCT<key: STRING, value: BINARY>>"
)
LINES = [b'{"number":%d,"text":"some of it repeats, \xc3\xa9"}' % number for number in range(40_000)]


def write(folder: Path, form: Format, rows: pa.RecordBatch) -> str:
    path = folder / f"file.{form.extension}"
    with path.open("wb") as file:
        writer = form.open(file, rows.schema)
        writer.write(rows)
        writer.close()
    return str(path)


@pytest.mark.parametrize("compression", get_args(_compression.Compression))
def test_spark_reads_text(spark: SparkSession, tmp_path: Path, compression: Any) -> None:
    path = write(tmp_path, Text(compression=compression), kafka_rows(LINES))
    assert sorted(row.value.encode() for row in spark.read.text(path).collect()) == sorted(LINES)


def test_spark_reads_json_lines(spark: SparkSession, tmp_path: Path) -> None:
    path = write(tmp_path, Jsonl("gzip"), kafka_rows(LINES))
    assert {row.number for row in spark.read.json(path).collect()} == set(range(len(LINES)))


@pytest.mark.parametrize(
    "form",
    [
        *(Parquet(compression) for compression in get_args(_columnar.Compression)),
        *(Orc(compression) for compression in get_args(orc.Compression)),
        Raw(),
    ],
)
def test_spark_reads_columns(spark: SparkSession, tmp_path: Path, form: Format) -> None:
    rows = kafka_rows(VALUES)
    rows = rows.select([name for name in rows.schema.names if name in form.keeps])
    path = write(tmp_path, form, rows)
    read: Any = getattr(spark.read, form.extension)(path)
    found = [_plain(row) for row in read.orderBy("offset").collect()]
    assert [{**row, "timestamp": None} for row in found] == [{**row, "timestamp": None} for row in rows.to_pylist()]
    micros = read.selectExpr("unix_micros(timestamp) AS t").collect()
    assert sorted(row.t for row in micros) == rows.column("timestamp").cast(pa.int64()).to_pylist()


@pytest.mark.parametrize("form", [Parquet(), Orc(), Jsonl()])
def test_spark_reads_the_extremes_of_every_type(spark: SparkSession, tmp_path: Path, form: Format) -> None:
    every = extremes()
    reasons = form.faults(every)
    rows = every if reasons is None else every.filter(reasons.is_null())
    path = write(tmp_path, form, rows)
    expected = comparable(rows)
    if isinstance(form, Jsonl):
        read: Any = spark.read.schema(_ddl(rows.schema)).json(path)
    else:
        read = getattr(spark.read, form.extension)(path)
    found = read.coalesce(1).selectExpr(*(f"{_in_numbers(field)} AS {field.name}" for field in rows.schema)).collect()
    assert [_as_arrow(row, rows.schema) for row in found] == expected


def _in_numbers(field: Any) -> str:
    """A column without times, as an expression of Spark's."""
    types, name, kind = pa.types, field.name, field.type
    if types.is_timestamp(kind):
        return f"unix_micros(CAST({name} AS TIMESTAMP))"
    if types.is_date(kind):
        return f"unix_date({name})"
    if types.is_list(kind):
        return f"transform({name}, x -> if(x IS NULL, NULL, struct(unix_micros(x.at) AS at, x.data AS data)))"
    return f"transform_values({name}, (k, v) -> unix_micros(v))" if types.is_map(kind) else name


def _ddl(schema: pa.Schema) -> str:
    from pyspark.sql.pandas.types import from_arrow_schema

    fields: Any = from_arrow_schema(schema)
    return str(fields.toDDL())


def _as_arrow(row: Any, schema: pa.Schema) -> dict[str, Any]:
    values = row.asDict(recursive=True)
    return {field.name: _plain_value(comparable(values[field.name]), field.type) for field in schema}


def _plain_value(value: Any, kind: Any) -> Any:
    if isinstance(value, bytearray):
        return bytes(value)
    if isinstance(value, dict):
        members = {name: _plain_value(inner, kind) for name, inner in value.items()}
        return [list(pair) for pair in members.items()] if pa.types.is_map(kind) else members
    if isinstance(value, list):
        return [_plain_value(inner, kind) for inner in value]
    return value


@pytest.mark.parametrize("compression", get_args(avro.Compression))
def test_avros_own_library_reads_every_time_that_kafka_can_carry(
    spark: SparkSession, tmp_path: Path, compression: Any
) -> None:
    form, every = Avro(compression), kafka_extremes()
    reasons = form.faults(every)
    assert reasons is not None
    rows = every.filter(reasons.is_null())
    jvm: Any = spark.sparkContext._jvm
    file = jvm.java.io.File(write(tmp_path, form, rows))
    reader = jvm.org.apache.avro.file.DataFileReader(file, jvm.org.apache.avro.generic.GenericDatumReader())
    found = []
    while reader.hasNext():
        record = reader.next()
        found.append((record.get("offset"), record.get("timestamp")))
    reader.close()
    assert found == [(row["offset"], row["timestamp"]) for row in comparable(rows)]


@pytest.mark.parametrize("compression", get_args(avro.Compression))
def test_avros_own_library_reads_avro(spark: SparkSession, tmp_path: Path, compression: Any) -> None:
    rows = kafka_rows(VALUES)
    jvm: Any = spark.sparkContext._jvm
    file = jvm.java.io.File(write(tmp_path, Avro(compression), rows))
    reader = jvm.org.apache.avro.file.DataFileReader(file, jvm.org.apache.avro.generic.GenericDatumReader())
    found = []
    while reader.hasNext():
        record = reader.next()
        value = record.get("value")
        found.append((record.get("offset"), None if value is None else bytes(value.array())))
    reader.close()
    assert found == list(zip(rows.column("offset").to_pylist(), rows.column("value").to_pylist(), strict=True))


def test_formats_say_which_columns_they_want(spark: SparkSession) -> None:
    kafka = _fields(spark, KAFKA_FIELDS)
    wanted = {name: list(form.columns(kafka)) for name, form in _formats().items()}
    assert wanted == {
        "text": ["value"],
        "jsonl": ["value"],
        "legacy": ["offset", "value"],
        "messagepack": ["key", "offset", "value"],
        "raw": ["offset", "timestamp", "timestamp_type", "key", "value", "headers"],
        "parquet": kafka.names,
        "avro": kafka.names,
        "orc": kafka.names,
    }
    assert all(made is None for form in _formats().values() for made in form.columns(kafka).values())


def test_formats_refuse_rows_that_lack_what_they_write(spark: SparkSession) -> None:
    parsed = _fields(spark, "day STRING, amount INT")
    for name in ("text", "legacy", "messagepack", "raw"):
        with pytest.raises(Refused, match=r"value.* and the rows have day, amount"):
            _formats()[name].columns(parsed)
    with pytest.raises(Refused, match="text or bytes"):
        Text().columns(_fields(spark, "value INT"))


def test_json_lines_are_made_of_columns_unless_value_is_the_record(spark: SparkSession) -> None:
    for fields in ("value STRING", "value BINARY", "offset BIGINT, key BINARY, value BINARY"):
        assert Jsonl().columns(_fields(spark, fields)) == {"value": None}
    for fields in ("day STRING, value STRING", "day STRING", "value INT", "key BINARY, value BINARY"):
        spark_fields = _fields(spark, fields)
        assert Jsonl().columns(spark_fields) == dict.fromkeys(spark_fields.names)


def _formats() -> dict[str, Format]:
    return {
        "text": Text(),
        "jsonl": Jsonl(),
        "legacy": SequenceFile(),
        "messagepack": SequenceFile("messagepack"),
        "raw": Raw(),
        "parquet": Parquet(),
        "avro": Avro(),
        "orc": Orc(),
    }


def _fields(spark: SparkSession, ddl: str) -> Any:
    return spark.createDataFrame([], ddl).schema


def _plain(row: Any) -> dict[str, Any]:
    values = row.asDict(recursive=True)
    headers = values["headers"]
    plain = None if headers is None else [{**header, "value": _bytes(header["value"])} for header in headers]
    return {**values, "key": _bytes(values["key"]), "value": _bytes(values["value"]), "headers": plain}


def _bytes(value: Any) -> bytes | None:
    return None if value is None else bytes(value)
