"""Avro files as another program reads them, and back."""

from __future__ import annotations

import datetime as dt
import io
from decimal import Decimal
from typing import Any, get_args

import fastavro
import pyarrow as pa
import pytest
from pydantic import ValidationError

from holdfast.errors import BatchError
from holdfast.flow.format import Format
from holdfast.formats.avro import PLUGIN, Avro, AvroConfig, Compression
from holdfast.formats.avro.writer import number
from holdfast.testing.formats import VALUES, FormatBehaviour, comparable, kafka_rows

EVERY_KIND = pa.RecordBatch.from_pylist(
    [
        {
            "truth": True,
            "small": -1,
            "long": -(1 << 63),
            "real": 1.5,
            "short": 0.5,
            "note": "é",
            "data": b"\x00\xff",
            "day": dt.date(1969, 12, 31),
            "at": dt.datetime(2026, 1, 1, 0, 0, 0, 1, dt.UTC),
            "local": dt.datetime(1900, 1, 1, 0, 0, 0, 1),  # noqa: DTZ001 - without a zone on purpose
            "price": Decimal("-12.34"),
            "tags": ["a", None, ""],
            "deep": {"n": 1, "list": [{"x": 1}, None]},
            "map": [("k", 1), ("l", None)],
        },
        {},
        {"long": (1 << 63) - 1, "price": Decimal("0.01"), "tags": [], "deep": {}, "map": [], "note": "", "small": 64},
    ],
    pa.schema(
        [
            ("truth", pa.bool_()),
            ("small", pa.int16()),
            ("long", pa.int64()),
            ("real", pa.float64()),
            ("short", pa.float32()),
            ("note", pa.string()),
            ("data", pa.large_binary()),
            ("day", pa.date32()),
            ("at", pa.timestamp("us", "Europe/Berlin")),
            ("local", pa.timestamp("us")),
            ("price", pa.decimal128(10, 2)),
            ("tags", pa.list_(pa.string())),
            ("deep", pa.struct([("n", pa.int32()), ("list", pa.list_(pa.struct([("x", pa.int64())])))])),
            ("map", pa.map_(pa.string(), pa.int64())),
        ]
    ),
)


@pytest.mark.parametrize("compression", get_args(Compression))
class TestAvro(FormatBehaviour):
    @pytest.fixture
    def form(self, compression: Any) -> Format:
        return Avro(compression)

    def read_elsewhere(self, form: Format, data: bytes, schema: pa.Schema) -> list[Any]:
        if any(codec in data[: data.index(b"avro.codec") + 30] for codec in (b"zstandard", b"snappy")):
            # fastavro wants packages of their own for these; Avro's library for Java reads them in tests/spark.
            return super().read_elsewhere(form, data, schema)
        maps = [field.name for field in schema if pa.types.is_map(field.type)]
        rows: Any = list(fastavro.reader(io.BytesIO(data)))
        for row in rows:
            row |= {name: list(row[name].items()) for name in maps if row[name] is not None}
        return list(comparable(rows))


class TestSmallBlocks(FormatBehaviour):
    def make_format(self) -> Format:
        return Avro(block_bytes=1000)


def written(form: Avro, rows: pa.RecordBatch) -> bytes:
    raw = io.BytesIO()
    writer = form.open(raw, rows.schema)
    writer.write(rows)
    writer.close()
    return raw.getvalue()


def test_numbers_are_as_in_the_specification() -> None:
    expected = {
        0: "00",
        -1: "01",
        1: "02",
        -64: "7f",
        64: "8001",
        8192: "808001",
        (1 << 63) - 1: "fe" + 8 * "ff" + "01",
    }
    assert {value: number(value).hex() for value in expected} == expected


@pytest.mark.parametrize("compression", ["none", "gzip"])
def test_fastavro_reads_kafkas_rows(compression: Any) -> None:
    rows = kafka_rows(VALUES)
    found = list(fastavro.reader(io.BytesIO(written(Avro(compression), rows))))
    assert found == rows.to_pylist()


def test_every_kind_of_column_is_read_by_fastavro_and_by_us() -> None:
    expected = [{**row, "map": None if row["map"] is None else dict(row["map"])} for row in EVERY_KIND.to_pylist()]
    data = written(Avro("none"), pa.concat_batches([EVERY_KIND] * 2).slice(1, 5))
    repeated = [*expected[1:], *expected]
    assert list(fastavro.reader(io.BytesIO(data))) == repeated
    ours = [row for rows in Avro().read(io.BytesIO(data)) for row in rows.to_pylist()]
    assert [{**row, "map": None if row["map"] is None else dict(row["map"])} for row in ours] == repeated


def test_what_avro_cannot_hold_is_refused_by_name() -> None:
    for rows, reason in (
        (pa.RecordBatch.from_pydict({"a-b": [1]}), "'a-b'"),
        (pa.RecordBatch.from_pydict({"a": pa.array([1], pa.uint64())}), "uint64"),
    ):
        with pytest.raises(BatchError, match=reason):
            written(Avro(), rows)


def test_a_damaged_block_is_refused() -> None:
    data = written(Avro("snappy"), kafka_rows([b"abc" * 100]))
    index = data.index(b"orders")
    with pytest.raises(ValueError, match=r"checksum|decompressed|mark"):
        list(Avro().read(io.BytesIO(data[:index] + b"0rders" + data[index + 6 :])))


def test_a_file_without_a_schema_is_refused_and_one_without_a_codec_is_not_compressed() -> None:
    data = written(Avro("none"), kafka_rows([b"abc"]))
    with pytest.raises(ValueError, match="no schema"):
        list(Avro().read(io.BytesIO(data.replace(b"avro.schema", b"some.schema"))))
    without_codec = data.replace(b"avro.codec", b"some.codec")
    assert [rows.column("value").to_pylist() for rows in Avro().read(io.BytesIO(without_codec))] == [[b"abc"]]


def test_settings() -> None:
    assert PLUGIN.build(AvroConfig()).extension == "avro"
    for wrong in ({"compression": "lz4"}, {"block_bytes": 0}):
        with pytest.raises(ValidationError):
            AvroConfig(**wrong)
