"""Rows become bytes: the right ones, and the same ones for the same rows."""

from __future__ import annotations

import datetime as dt
import gzip
import io
import json
import math
import pickle
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pydantic import ValidationError

from holdfast.flow.format import Format
from holdfast.formats import jsonl, parquet
from holdfast.formats.jsonl import Jsonl
from holdfast.formats.parquet import Parquet
from holdfast.registry import Registry

LINES = pa.RecordBatch.from_pydict({"value": ['{"a":1}', "[]", '{"b":"é"}']})
ROWS = pa.RecordBatch.from_pydict(
    {
        "id": pa.array([1, None, 3], pa.int64()),
        "note": pa.array(["x", "é", None]),
        "at": pa.array([dt.datetime(2024, 1, 1, tzinfo=dt.UTC), None, None], pa.timestamp("us", "UTC")),
        "tags": pa.array([["a"], [], None], pa.list_(pa.string())),
        "deep": pa.array([{"n": 1}, None, {"n": None}], pa.struct([("n", pa.int32())])),
        "map": pa.array([[("k", 1)], None, []], pa.map_(pa.string(), pa.int64())),
    }
)


SAID = {"zstd": "ZSTD", "snappy": "SNAPPY", "gzip": "GZIP", "lz4": "LZ4", "none": "UNCOMPRESSED"}


def written(form: Format, *batches: pa.RecordBatch) -> bytes:
    raw = io.BytesIO()
    unpickled = pickle.loads(pickle.dumps(form))  # noqa: S301 - our own bytes
    writer = unpickled.open(raw, batches[0].schema)
    for rows in batches:
        writer.write(rows)
    writer.close()
    return raw.getvalue()


def unpacked(form: Format, data: bytes) -> bytes:
    if form.extension.endswith(".gz"):
        return gzip.decompress(data)
    if form.extension.endswith(".zst"):
        return bytes(pa.CompressedInputStream(pa.BufferReader(data), "zstd").read())
    return data


@pytest.mark.parametrize(
    ("form", "extension"), [(Jsonl(), "jsonl"), (Jsonl("gzip"), "jsonl.gz"), (Jsonl("zstd", 3), "jsonl.zst")]
)
def test_lines_are_written_one_under_the_other(form: Jsonl, extension: str) -> None:
    assert form.extension == extension
    data = written(form, LINES, LINES.slice(1, 1), LINES.slice(0, 0), LINES.slice(2))
    assert unpacked(form, data).decode() == '{"a":1}\n[]\n{"b":"é"}\n[]\n{"b":"é"}\n'


def test_compressed_files_beyond_one_frame_are_read_back_whole() -> None:
    rows = pa.RecordBatch.from_pydict({"value": [json.dumps({"number": number}) for number in range(100_000)]})
    plain = written(Jsonl(), rows)
    for form in (Jsonl("gzip"), Jsonl("zstd")):
        packed = written(form, rows)
        assert len(packed) < len(plain) / 2
        assert unpacked(form, packed) == plain


def test_parquet_is_read_back_as_it_was() -> None:
    table = pq.read_table(io.BytesIO(written(Parquet(), ROWS, ROWS.slice(1))))
    assert table.to_pylist() == [*ROWS.to_pylist(), *ROWS.slice(1).to_pylist()]
    assert table.schema.field("at").type == pa.timestamp("us", "UTC")


@pytest.mark.parametrize(
    ("compression", "said"),
    list(SAID.items()),
)
def test_parquet_is_compressed_as_set(compression: Any, said: str) -> None:
    file = pq.ParquetFile(io.BytesIO(written(Parquet(compression), ROWS)))
    assert file.metadata.row_group(0).column(0).compression == said


def test_row_groups_end_when_they_are_large_enough() -> None:
    rows = pa.RecordBatch.from_pydict({"text": ["x" * 1000] * 100})
    file = pq.ParquetFile(io.BytesIO(written(Parquet(row_group_bytes=250_000), *[rows] * 5)))
    assert [file.metadata.row_group(number).num_rows for number in range(file.num_row_groups)] == [300, 200]


def test_buffered_bytes_are_counted_and_written_by_a_flush() -> None:
    writer = Parquet().open(io.BytesIO(), ROWS.schema)
    writer.write(ROWS)
    assert writer.buffered > 50
    writer.flush()
    assert writer.buffered == 0
    writer.close()


def test_row_groups_end_at_the_same_row_however_rows_lie_in_memory() -> None:
    bitmap = pa.RecordBatch.from_pydict({"id": pa.array([None, *range(1000)]), "note": ["x"] * 1001}).slice(1)
    no_bitmap = pa.RecordBatch.from_pydict({"id": pa.array(range(1000)), "note": ["x"] * 1000})
    waiting = []
    for rows in (bitmap, no_bitmap):
        writer = Parquet().open(io.BytesIO(), rows.schema)
        writer.write(rows)
        waiting.append(writer.buffered)
        writer.close()
    assert waiting[0] == waiting[1]


def test_bytes_follow_from_the_rows_and_not_from_how_they_lie_in_memory() -> None:
    padded = pa.concat_batches([ROWS, ROWS, ROWS]).slice(3, 3)
    no_bitmap = pa.RecordBatch.from_pydict({"id": pa.array([1, 2])})
    bitmap = pa.RecordBatch.from_pydict({"id": pa.array([None, 1, 2])}).slice(1)
    for form in (Parquet(), Parquet("snappy")):
        assert written(form, ROWS) == written(form, padded)
        assert written(form, no_bitmap) == written(form, bitmap)
        assert written(form, LINES) == written(form, LINES.cast(pa.schema([("value", pa.large_string())])))
    for lines in (Jsonl(), Jsonl("gzip"), Jsonl("zstd")):
        assert written(lines, LINES) == written(lines, pa.concat_batches([LINES, LINES]).slice(3))


def test_settings() -> None:
    assert jsonl.PLUGIN.build(jsonl.PLUGIN.config(compression="gzip")).extension == "jsonl.gz"
    assert parquet.PLUGIN.build(parquet.PLUGIN.config(row_group_bytes="1MB")).extension == "parquet"
    with pytest.raises(ValidationError):
        jsonl.PLUGIN.config(compression="brotli")


def test_all_are_installed() -> None:
    names = {"avro", "jsonl", "orc", "parquet", "raw", "sequencefile", "text"}
    assert names <= set(Registry.installed().names("formats"))


def test_columns_become_an_object_without_what_is_null() -> None:
    rows = ROWS.append_column("odd", pa.array(['"\n\\', "\x01", ""])).append_column(
        "real", pa.array([1.5, None, math.nan])
    )
    rows = rows.append_column("exact", pa.array([Decimal("1.10"), None, None]))
    lines = written(Jsonl(), rows).splitlines()
    assert [json.loads(line) for line in lines] == [
        {
            "id": 1,
            "note": "x",
            "at": "2024-01-01T00:00:00.000000Z",
            "tags": ["a"],
            "deep": {"n": 1},
            "map": {"k": 1},
            "odd": '"\n\\',
            "real": 1.5,
            "exact": 1.1,
        },
        {"note": "é", "tags": [], "odd": "\x01"},
        {"id": 3, "deep": {}, "map": {}, "odd": "", "real": "NaN"},
    ]
    assert b'"exact":1.10' in lines[0]
