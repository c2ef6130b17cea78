"""SequenceFiles go both ways between us and Hadoop, and between us and Spark."""

from __future__ import annotations

import io
import itertools
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import pyarrow as pa
import pytest

from holdfast.formats.sequencefile import SequenceFile
from holdfast.formats.sequencefile.layout import (
    BYTES_CLASS,
    LONG_CLASS,
    Codec,
    Compression,
    KeyKind,
)
from holdfast.sources.objects.codecs.codec import Range
from holdfast.sources.objects.codecs.sequencefile import SequenceFile as ObjectCodec

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

FIRST = 1 << 40
VALUES = [b"", b"x" * 127, b"y" * 128, "é\n".encode(), bytes(range(256)), b"z" * 70_000, b"w" * 400_000]
MANY = [*VALUES, *(b'{"number":%d,"text":"some of it repeats"}' % number for number in range(20_000))]
KEYS = [None, b"", b"k" * 255, b"k" * 256, b"k" * 70_000, b"\xff", b"\x00"]
HADOOP_NAMES = ("Default", "Deflate", "Gzip", "Snappy", "Lz4", "BZip2")
KINDS: list[tuple[Compression, Codec]] = [
    ("none", "zlib"),
    *itertools.product(("record", "block"), get_args(Codec)),  # type: ignore[list-item]
]
HADOOP_CODECS = [f"org.apache.hadoop.io.compress.{name}Codec" for name in HADOOP_NAMES]
HADOOP_COMPRESSION = {"none": "NONE", "record": "RECORD", "block": "BLOCK"}


def rows(values: list[bytes]) -> pa.RecordBatch:
    keys = list(itertools.islice(itertools.cycle(KEYS), len(values)))
    offsets = pa.array(range(FIRST, FIRST + len(values)), pa.int64())
    return pa.record_batch(
        [offsets, pa.array(keys, pa.binary()), pa.array(values, pa.binary())], names=["offset", "key", "value"]
    )


def write(path: Path, form: SequenceFile, batch: pa.RecordBatch) -> str:
    with path.open("wb") as file:
        writer = form.open(file, batch.schema)
        writer.write(batch)
        writer.close()
    return str(path)


def read(path: Path) -> list[dict[str, Any]]:
    with path.open("rb") as file:
        return [row for batch in SequenceFile().read(file) for row in batch.to_pylist()]


@pytest.mark.parametrize(("compression", "codec"), KINDS)
def test_spark_reads_what_we_write(spark: SparkSession, tmp_path: Path, compression: Compression, codec: Codec) -> None:
    values = MANY if compression != "record" else MANY[:2000]
    path = write(tmp_path / "ours.seq", SequenceFile("legacy", compression, codec), rows(values))
    # Small splits, so that readers begin in the middle and look for a mark.
    found: Any = spark.sparkContext.sequenceFile(path, LONG_CLASS, BYTES_CLASS, minSplits=5)
    assert sorted((key, bytes(value)) for key, value in found.collect()) == list(enumerate(values, FIRST))


@pytest.mark.parametrize(("compression", "codec"), KINDS)
@pytest.mark.parametrize("key", get_args(KeyKind))
def test_hadoops_reader_reads_what_we_write(
    spark: SparkSession, tmp_path: Path, key: KeyKind, compression: Compression, codec: Codec
) -> None:
    batch = rows(VALUES)
    path = write(tmp_path / "ours.seq", SequenceFile(key, compression, codec), batch)
    keys, values = zip(*_read_by_hadoop(spark, path, key), strict=True)
    assert list(values) == VALUES
    if key == "legacy":
        assert list(keys) == batch.column("offset").to_pylist()
    else:
        assert keys[0] == b"\x81\x01\xd3" + FIRST.to_bytes(8, "big")
        assert keys[1] == b"\x82\x01\xd3" + (FIRST + 1).to_bytes(8, "big") + b"\x02\xc4\x00"


@pytest.mark.parametrize("codec", HADOOP_CODECS)
@pytest.mark.parametrize("compression", get_args(Compression))
def test_we_read_what_hadoop_writes(spark: SparkSession, tmp_path: Path, compression: Compression, codec: str) -> None:
    path = tmp_path / "theirs.seq"
    _write_by_hadoop(spark, path, VALUES, compression, codec)
    assert read(path) == [{"offset": offset, "value": value} for offset, value in enumerate(VALUES, FIRST)]
    assert _read_as_object(path) == [(b"%d" % offset, value) for offset, value in enumerate(VALUES, FIRST)]


@pytest.mark.parametrize("codec", [None, *HADOOP_CODECS])
def test_we_read_what_spark_writes(spark: SparkSession, tmp_path: Path, codec: str | None) -> None:
    records = spark.sparkContext.parallelize([(n, bytearray(value)) for n, value in enumerate(MANY, FIRST)], 1)
    records.saveAsSequenceFile(str(tmp_path / "out"), codec)
    found = read(tmp_path / "out" / "part-00000")
    assert found == [{"offset": offset, "value": value} for offset, value in enumerate(MANY, FIRST)]


@pytest.mark.parametrize("codec", HADOOP_CODECS)
def test_the_objects_source_reads_blocks_whose_keys_are_empty(spark: SparkSession, tmp_path: Path, codec: str) -> None:
    records = spark.sparkContext.parallelize([(None, "é"), (None, "")], 1)
    records.saveAsSequenceFile(str(tmp_path / "out"), codec)
    assert _read_as_object(tmp_path / "out" / "part-00000") == [(None, "é".encode()), (None, b"")]


def _read_as_object(path: Path) -> list[tuple[Any, Any]]:
    """By the codec of the source `objects`."""
    data = path.read_bytes()
    portions = ObjectCodec().read(io.BytesIO(data), Range(0, len(data), len(data)))
    columns = ([column.to_pylist() for column in portion.columns] for portion in portions)
    return [pair for keys, values in columns for pair in zip(keys, values, strict=True)]


def _read_by_hadoop(spark: SparkSession, path: str, key: KeyKind) -> list[tuple[Any, bytes]]:
    jvm = _jvm(spark)
    options = _options(spark, "Reader", [jvm.org.apache.hadoop.io.SequenceFile.Reader.file(_path(spark, path))])
    reader = jvm.org.apache.hadoop.io.SequenceFile.Reader(_conf(spark), options)
    name = jvm.org.apache.hadoop.io.LongWritable() if key == "legacy" else jvm.org.apache.hadoop.io.BytesWritable()
    value, found = jvm.org.apache.hadoop.io.BytesWritable(), []
    while reader.next(name, value):
        found.append((name.get() if key == "legacy" else bytes(name.copyBytes()), bytes(value.copyBytes())))
    reader.close()
    return found


def _write_by_hadoop(
    spark: SparkSession, path: Path, values: list[bytes], compression: Compression, codec: str
) -> None:
    jvm = _jvm(spark)
    hadoop, files = jvm.org.apache.hadoop.io, jvm.org.apache.hadoop.io.SequenceFile
    kind = getattr(files.CompressionType, HADOOP_COMPRESSION[compression])
    packer = jvm.org.apache.hadoop.util.ReflectionUtils.newInstance(jvm.java.lang.Class.forName(codec), _conf(spark))
    options = [
        files.Writer.file(_path(spark, str(path))),
        files.Writer.keyClass(jvm.java.lang.Class.forName(LONG_CLASS)),
        files.Writer.valueClass(jvm.java.lang.Class.forName(BYTES_CLASS)),
        files.Writer.compression(kind, packer),
    ]
    writer = files.createWriter(_conf(spark), _options(spark, "Writer", options))
    for offset, value in enumerate(values, FIRST):
        writer.append(hadoop.LongWritable(offset), hadoop.BytesWritable(bytearray(value)))
    writer.close()


def _options(spark: SparkSession, side: str, options: list[Any]) -> Any:
    """Java's variable arguments."""
    kind = getattr(_jvm(spark).org.apache.hadoop.io.SequenceFile, side).Option
    gateway = spark.sparkContext._gateway
    assert gateway is not None
    array = gateway.new_array(kind, len(options))
    for index, option in enumerate(options):
        array[index] = option
    return array


def _jvm(spark: SparkSession) -> Any:
    return spark.sparkContext._jvm


def _conf(spark: SparkSession) -> Any:
    jsc: Any = spark.sparkContext._jsc
    return jsc.hadoopConfiguration()


def _path(spark: SparkSession, path: str) -> Any:
    return _jvm(spark).org.apache.hadoop.fs.Path(path)
