"""Records of dead letters as rows again, by the codec that the source has now."""

from __future__ import annotations

from base64 import b64encode
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from holdfast.flow.letter import Letter, LetterId
from holdfast.sources.objects import PLUGIN as OBJECTS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from holdfast.sources.objects.record_reader import RecordRebuilder

pytestmark = pytest.mark.spark

SCHEMA = "id INT, at TIMESTAMP"


@pytest.fixture
def folder(spark: SparkSession, tmp_path: Path) -> Path:
    return tmp_path


def rebuilder(folder: Path, **settings: Any) -> RecordRebuilder:
    made: RecordRebuilder = OBJECTS.build(OBJECTS.config(folder=folder, **settings)).rebuilder()
    return made


def letter(raw: str, **fields: Any) -> Letter:
    return Letter(LetterId("file", 0), "in|a", 7, "bad", raw, **fields)


def rows(records: RecordRebuilder, kept: Letter) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = records.row(kept).to_pylist()
    return found


def test_a_line_is_read_as_the_settings_say_now(folder: Path) -> None:
    assert rows(rebuilder(folder, codec="text"), letter("a line")) == [{"value": "a line"}]
    assert rows(rebuilder(folder, codec="jsonl"), letter('{"a": 1}')) == [{"value": '{"a": 1}'}]
    (row,) = rows(rebuilder(folder, schema=SCHEMA), letter('{"id": 5, "at": "2026-01-01T00:00:00Z", "more": 1}'))
    assert (row["id"], row["at"].isoformat()) == (5, "2026-01-01T00:00:00+00:00")


def test_columns_are_read_from_json_whatever_the_codec_is(folder: Path) -> None:
    of_columns = letter('{"id":5,"at":"2026-01-01T00:00:00.000Z"}', form="columns")
    for codec in ("jsonl", "json", "csv", "parquet", "avro"):
        records = rebuilder(folder, codec=codec, schema=SCHEMA)
        assert records.refusal(of_columns) is None
        assert [row["id"] for row in rows(records, of_columns)] == [5]


def test_a_line_of_csv_is_read_with_its_header(folder: Path) -> None:
    records = rebuilder(folder, codec="csv", schema="id INT, note STRING")
    line = letter('"x\ny",5', source={"path": "a.csv", "item": 9, "header": "note,id"})
    assert records.refusal(line) is None
    assert rows(records, line) == [{"id": 5, "note": "x\ny"}]


def test_a_row_has_the_types_that_it_had(folder: Path) -> None:
    row = pa.RecordBatch.from_pydict({"id": pa.array([b"\xff"], pa.binary()), "n": pa.array([5], pa.int64())})
    data = pa.BufferOutputStream()
    with pa.ipc.new_stream(data, row.schema) as writer:
        writer.write_batch(row)
    kept = letter('{"id":"/w==","n":5}', form="columns", source={"arrow": b64encode(data.getvalue()).decode()})
    assert rows(rebuilder(folder, codec="parquet", schema="n INT, id BINARY"), kept) == [{"n": 5, "id": b"\xff"}]


@pytest.mark.parametrize("codec", ["csv", "parquet", "avro"])
def test_a_text_that_only_its_object_explains_is_refused(folder: Path, codec: str) -> None:
    why = rebuilder(folder, codec=codec, schema=SCHEMA).refusal(letter("5,2026"))
    assert why == f"a record of the codec {codec} cannot be read without the object that it was in"


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        ("nonsense", "not a JSON object"),
        ("", "the record is blank"),
        ('{"id": "x"}', "id"),
        ('{"id": 1}\n{"id": 2}', "the letter holds 2 records"),
    ],
)
def test_what_is_still_no_record_is_told(folder: Path, raw: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        rebuilder(folder, schema=SCHEMA).row(letter(raw))


def test_a_column_that_json_cannot_give_back_is_told(folder: Path) -> None:
    with pytest.raises(ValueError, match="cannot be read from JSON"):
        rebuilder(folder, codec="parquet", schema="id BINARY").row(letter('{"id":"/w=="}', form="columns"))
