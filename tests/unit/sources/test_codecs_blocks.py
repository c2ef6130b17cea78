"""Parquet, Avro and SequenceFile: any ranges give every row once, and damage is raised after all good rows."""

from __future__ import annotations

import datetime as dt
import io
import itertools
import struct
from base64 import b64decode
from collections.abc import Callable
from contextlib import suppress
from decimal import Decimal
from typing import Any
from uuid import UUID

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from holdfast.errors import BatchError, Unavailable
from holdfast.flow.fault import COLUMNS, Fault
from holdfast.formats.avro import Avro as AvroFormat
from holdfast.formats.avro.writer import number as avro_number
from holdfast.formats.sequencefile import SequenceFile as SequenceFormat
from holdfast.formats.sequencefile.layout import vint
from holdfast.sources.objects.codecs.avro import Avro
from holdfast.sources.objects.codecs.codec import BlockCodec, Range
from holdfast.sources.objects.codecs.parquet import Parquet
from holdfast.sources.objects.codecs.sequencefile import SequenceFile
from holdfast.sources.objects.object_ref import Damaged

SCHEMA = pa.schema([("id", pa.int64()), ("note", pa.string())])


def read(codec: BlockCodec, data: bytes, start: int = 0, end: int | None = None) -> tuple[list[Any], list[Any], Any]:
    """Rows with their items, faults with theirs, and what is said of damage."""
    rows: list[Any] = []
    faults: list[tuple[int, Fault]] = []
    try:
        for portion in codec.read(io.BytesIO(data), Range(start, len(data) if end is None else end, len(data))):
            columns = pa.RecordBatch.from_arrays(list(portion.columns), schema=codec.schema)
            columns.validate(full=True)
            rows += zip([int(item) for item in portion.items], columns.to_pylist(), strict=True)
            faults += portion.faults
    except Damaged as damage:
        return rows, faults, str(damage)
    return rows, faults, None


def parquet(rows: list[dict[str, Any]], group: int = 5, **options: Any) -> bytes:
    raw = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows, SCHEMA), raw, row_group_size=max(group, 1), **options)
    return raw.getvalue()


def avro(rows: list[dict[str, Any]], block: int = 60, compression: Any = "zstd") -> bytes:
    raw = io.BytesIO()
    writer = AvroFormat(compression, block).open(raw, SCHEMA)
    writer.write(pa.RecordBatch.from_pylist(rows, SCHEMA))
    writer.close()
    return raw.getvalue()


def sequencefile(rows: list[dict[str, Any]], block: int = 60, compression: Any = "block") -> bytes:
    raw = io.BytesIO()
    schema = pa.schema([("offset", pa.int64()), ("value", pa.binary())])
    writer = SequenceFormat("legacy", compression, "zlib", block_bytes=block, tombstones="empty").open(raw, schema)
    table = [{"offset": row["id"], "value": (row["note"] or "").encode()} for row in rows]
    writer.write(pa.RecordBatch.from_pylist(table, schema))
    writer.close()
    return raw.getvalue()


def marked_records(values: list[bytes], every: int) -> bytes:
    """A SequenceFile of Text and Text without compression, with a mark after each so many records."""
    name, mark = b"org.apache.hadoop.io.Text", bytes(range(100, 116))
    text = vint(len(name)) + name
    parts = [b"SEQ\x06", text, text, b"\0\0", struct.pack(">i", 0), mark]
    for number, value in enumerate(values):
        if number and number % every == 0:
            parts += [b"\xff\xff\xff\xff", mark]
        key, body = vint(1) + b"k", vint(len(value)) + value
        parts += [struct.pack(">ii", len(key) + len(body), len(key)), key, body]
    return b"".join(parts)


records = st.lists(
    st.fixed_dictionaries({"id": st.integers(-(2**63), 2**63 - 1), "note": st.none() | st.text(max_size=20)}),
    max_size=40,
)
cuts = st.lists(st.floats(0, 1), max_size=6)
makers: dict[str, tuple[Callable[..., bytes], BlockCodec]] = {
    "parquet": (parquet, Parquet(SCHEMA)),
    "avro": (avro, Avro(SCHEMA)),
    "sequencefile in blocks": (sequencefile, SequenceFile()),
}


def borders(size: int, fractions: list[float]) -> list[tuple[int, int]]:
    offsets = sorted({0, size, *(round(fraction * size) for fraction in fractions)})
    return list(itertools.pairwise(offsets))


def in_pieces(codec: BlockCodec, data: bytes, fractions: list[float]) -> list[Any]:
    found: list[Any] = []
    for start, end in borders(len(data), fractions):
        rows, faults, damage = read(codec, data, start, end)
        assert (faults, damage) == ([], None)
        found += rows
    return found


@pytest.mark.parametrize("kind", makers)
@settings(deadline=None, max_examples=60)
@given(rows=records, fractions=cuts, size=st.integers(1, 100))
def test_any_cuts_give_every_row_once(kind: str, rows: list[dict[str, Any]], fractions: list[float], size: int) -> None:
    make, codec = makers[kind]
    data = make(rows, size)
    whole, faults, damage = read(codec, data)
    assert (faults, damage) == ([], None)
    if kind.startswith("sequencefile"):
        expected = [{"key": str(row["id"]).encode(), "value": (row["note"] or "").encode()} for row in rows]
    else:
        expected = rows
    assert [row for _, row in whole] == expected
    items = [item for item, _ in whole]
    assert items == sorted(set(items))
    # Row groups, and only they, may lie in the file in another order than their numbers.
    assert sorted(in_pieces(codec, data, fractions), key=lambda pair: pair[0]) == whole


@settings(deadline=None, max_examples=100)
@given(
    values=st.lists(st.binary(max_size=30) | st.just(b"x" * 200), max_size=20), every=st.integers(1, 5), fractions=cuts
)
def test_any_cuts_give_every_record_of_a_sequencefile_with_marks(
    values: list[bytes], every: int, fractions: list[float]
) -> None:
    data = marked_records(values, every)
    whole, faults, damage = read(SequenceFile(), data)
    assert (faults, damage) == ([], None)
    assert [row for _, row in whole] == [{"key": b"k", "value": value} for value in values]
    assert in_pieces(SequenceFile(), data, fractions) == whole


def page_borders(data: bytes) -> set[int]:
    """Where a border may be; of a Parquet file only those beside a row group's first byte, to save time."""
    if not data.startswith(b"PAR1"):
        return set(range(len(data) + 1))
    metadata = pq.ParquetFile(io.BytesIO(data)).metadata
    columns = [metadata.row_group(number).column(0) for number in range(metadata.num_row_groups)]
    begins = [column.dictionary_page_offset or column.data_page_offset for column in columns]
    return {offset + step for offset in begins for step in (-1, 0, 1)}


@pytest.mark.parametrize("kind", [*makers, "sequencefile with marks"])
def test_every_single_border_is_right(kind: str) -> None:
    rows = [{"id": number, "note": "n" * number} for number in range(9)]
    if kind in makers:
        make, codec = makers[kind]
        data = make(rows, 20 if kind == "avro" else 3)
    else:
        codec, data = SequenceFile(), marked_records([b"v" * number for number in range(9)], 2)
    whole = read(codec, data)[0]
    assert len(whole) == 9
    for border in page_borders(data):
        middle = max(border - 40, 0)
        parts = [read(codec, data, *part)[0] for part in ((0, middle), (middle, border), (border, len(data)))]
        assert list(itertools.chain(*parts)) == whole, border


@pytest.mark.parametrize("compression", ["none", "gzip", "zstd", "snappy"])
def test_avro_is_read_however_its_blocks_are_compressed(compression: str) -> None:
    rows = [{"id": number, "note": "n" * 50} for number in range(100)]
    assert [row for _, row in read(Avro(SCHEMA), avro(rows, 500, compression))[0]] == rows


@pytest.mark.parametrize("compression", ["none", "record", "block"])
def test_sequencefiles_are_read_however_they_are_compressed(compression: str) -> None:
    rows = [{"id": number, "note": "n" * 50} for number in range(100)]
    codec = SequenceFile(pa.schema([("key", pa.int64()), ("value", pa.string())]))
    found = read(codec, sequencefile(rows, 500, compression))[0]
    assert [row for _, row in found] == [{"key": row["id"], "value": row["note"]} for row in rows]


def test_avro_of_another_program_with_types_of_its_own() -> None:
    schema = {
        "type": "record",
        "name": "r",
        "fields": [
            {"name": "id", "type": "int"},
            {"name": "when", "type": {"type": "long", "logicalType": "timestamp-millis"}},
            {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
            {"name": "kind", "type": {"type": "enum", "name": "k", "symbols": ["A", "B"]}},
            {"name": "tags", "type": {"type": "array", "items": "string"}},
            {"name": "unknown", "type": ["null", "double"]},
        ],
    }
    when = dt.datetime(2024, 2, 29, 1, 2, 3, 4000, tzinfo=dt.UTC)
    raw = io.BytesIO()
    row = {"id": 7, "when": when, "price": Decimal("1.25"), "kind": "B", "tags": ["x"], "unknown": 1.5}
    fastavro.writer(raw, fastavro.parse_schema(schema), [row], codec="deflate")
    columns = pa.schema(
        [
            ("tags", pa.list_(pa.string())),
            ("id", pa.int64()),
            ("when", pa.timestamp("us", "UTC")),
            ("price", pa.decimal128(10, 2)),
            ("kind", pa.string()),
            ("missing", pa.string()),
        ]
    )
    ((_, found),) = read(Avro(columns), raw.getvalue())[0]
    assert found == {"tags": ["x"], "id": 7, "when": when, "price": Decimal("1.25"), "kind": "B", "missing": None}


def test_whatever_avro_has_can_be_read_as_text() -> None:
    kinds: dict[str, Any] = {
        "uuid": {"type": "string", "logicalType": "uuid"},
        "price": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2},
        "day": {"type": "int", "logicalType": "date"},
        "number": "long",
        "truth": "boolean",
        "list": {"type": "array", "items": "int"},
        "raw": "bytes",
    }
    schema = {"type": "record", "name": "r", "fields": [{"name": name, "type": kinds[name]} for name in kinds]}
    row = {"uuid": UUID(int=7), "price": Decimal("1.50"), "day": dt.date(2024, 2, 29), "number": 5, "truth": True}
    raw = io.BytesIO()
    fastavro.writer(raw, fastavro.parse_schema(schema), [row | {"list": [1], "raw": b"x"}])
    columns = pa.schema([(name, pa.string()) for name in kinds])
    ((_, found),), faults, _ = read(Avro(columns), raw.getvalue())
    assert faults == []
    assert found == {
        "uuid": str(UUID(int=7)),
        "price": "1.50",
        "day": "2024-02-29",
        "number": "5",
        "truth": "true",
        "list": "[1]",
        "raw": "x",
    }


def test_rows_of_avro_that_are_no_records_are_values() -> None:
    raw = io.BytesIO()
    fastavro.writer(raw, "string", ["a", "b"])
    codec = Avro(pa.schema([("value", pa.string())]))
    assert [row for _, row in read(codec, raw.getvalue())[0]] == [{"value": "a"}, {"value": "b"}]


def test_parquet_columns_are_cast_by_name_and_missing_ones_are_null() -> None:
    raw = io.BytesIO()
    table = pa.table(
        {
            "extra": ["x", "y"],
            "id": pa.array([1, 2], pa.int32()),
            "when": pa.array([1_700_000_000_123_456_789, None], pa.timestamp("ns")),
            "kind": pa.array(["a", "b"]).dictionary_encode(),
        }
    )
    pq.write_table(table, raw)
    columns = [("kind", pa.string()), ("id", pa.int64()), ("when", pa.timestamp("us", "UTC")), ("no", pa.float64())]
    rows = read(Parquet(pa.schema(columns)), raw.getvalue())[0]
    when = dt.datetime(2023, 11, 14, 22, 13, 20, 123_456, tzinfo=dt.UTC)
    assert rows == [
        (0, {"kind": "a", "id": 1, "when": when, "no": None}),
        (1, {"kind": "b", "id": 2, "when": None, "no": None}),
    ]


def test_a_parquet_file_without_any_of_the_columns_still_has_its_rows() -> None:
    data = parquet([{"id": 1, "note": "a"}] * 12)
    rows = read(Parquet(pa.schema([("other", pa.int32())])), data)[0]
    assert rows == [(number, {"other": None}) for number in range(12)]


def test_a_value_that_does_not_fit_is_a_dead_letter_and_leaves_the_others_alone() -> None:
    small = pa.schema([("id", pa.int8())])
    rows = [{"id": number, "note": "n"} for number in (1, 300, 3)]
    for codec, data in ((Parquet(small), parquet(rows)), (Avro(small), avro(rows))):
        found, faults, damage = read(codec, data)
        assert [row["id"] for _, row in found] == [1, 3]
        ((item, fault),) = faults
        assert item not in {other for other, _ in found}
        assert "300" in str(fault.raw)
        assert fault.form == COLUMNS
        assert damage is None


def test_a_column_that_can_never_have_the_wanted_type_is_an_error_of_the_object_and_no_damage() -> None:
    with pytest.raises(BatchError, match="column note is string") as caught:
        read(Parquet(pa.schema([("note", pa.list_(pa.int64()))])), parquet([{"id": 1, "note": "a"}]))
    assert not isinstance(caught.value, Damaged)


def test_a_sequencefile_of_unknown_classes_is_an_error_that_names_them() -> None:
    data = marked_records([b"a"], 1).replace(b"hadoop.io.Text", b"hadoop.my.Text")
    with pytest.raises(BatchError, match=r"org\.apache\.hadoop\.my\.Text"):
        read(SequenceFile(), data)


ROWS = [{"id": number, "note": "n" * 40} for number in range(60)]


@pytest.mark.parametrize("kind", ["avro", "sequencefile in blocks"])
def test_of_a_file_that_is_cut_off_the_blocks_before_are_good(kind: str) -> None:
    make, codec = makers[kind]
    data = make(ROWS, 500)
    whole = read(codec, data)[0]
    rows, _, damage = read(codec, data[: len(data) * 2 // 3])
    assert damage is not None
    assert "not a valid" in damage
    assert 0 < len(rows) < len(whole)
    assert rows == whole[: len(rows)]


def test_of_plain_records_that_are_cut_off_those_before_are_good() -> None:
    data = marked_records([b"%d" % number for number in range(50)], 10)
    whole = read(SequenceFile(), data)[0]
    rows, _, damage = read(SequenceFile(), data[:-5])
    assert "too early" in str(damage)
    assert rows == whole[:49]


def test_a_length_that_is_wrong_is_damage_and_the_records_before_it_are_good() -> None:
    data = bytearray(marked_records([b"12345678"] * 50, 10))
    whole = read(SequenceFile(), bytes(data))[0]
    at = whole[30][0]
    data[at : at + 4] = struct.pack(">i", -7)
    rows, _, damage = read(SequenceFile(), bytes(data))
    assert "disagree" in str(damage)
    assert rows == whole[:30]
    data[at : at + 4] = struct.pack(">i", 2_000_000_000)
    assert read(SequenceFile(), bytes(data))[0] == whole[:30]


def test_an_avro_block_that_is_damaged_is_reported_and_those_before_it_are_good() -> None:
    data = bytearray(avro(ROWS, 500))
    whole = read(Avro(SCHEMA), bytes(data))[0]
    data[len(data) // 2] ^= 0xFF
    rows, _, damage = read(Avro(SCHEMA), bytes(data))
    assert "not a valid Avro file" in str(damage)
    assert 0 < len(rows) < len(whole)
    assert rows == whole[: len(rows)]


@pytest.mark.parametrize("count", [-1, 1 << 20, 1 << 40])
def test_an_avro_block_with_an_impossible_number_of_rows_is_damaged(count: int) -> None:
    data = avro(ROWS, 500)
    mark = data[-16:]
    last = data.rindex(mark, 0, len(data) - 16) + 16
    block = avro_number(count) + data[last + 1 :]  # the number of rows that it has takes one byte
    rows, _, damage = read(Avro(SCHEMA), data[:last] + block)
    assert f"declares {count} rows" in str(damage)
    assert 0 < len(rows) < len(ROWS)


@pytest.mark.parametrize("spoil", [lambda data: data[:-1], lambda data: data[:-20] + bytes(20), lambda data: b"no"])
def test_a_parquet_file_without_its_footer_is_damaged(spoil: Any) -> None:
    rows, _, damage = read(Parquet(SCHEMA), spoil(parquet(ROWS)))
    assert rows == []
    assert "not a valid Parquet file" in str(damage)


def test_a_row_group_that_is_damaged_is_reported_and_those_before_it_are_good() -> None:
    data = bytearray(parquet(ROWS, 20, write_page_checksum=True, compression="none", use_dictionary=False))
    column = pq.ParquetFile(io.BytesIO(bytes(data))).metadata.row_group(1).column(1)
    data[column.data_page_offset + column.total_compressed_size // 2] ^= 0xFF
    rows, _, damage = read(Parquet(SCHEMA), bytes(data))
    assert [item for item, _ in rows] == list(range(20))
    assert "not a valid Parquet file" in str(damage)


@pytest.mark.parametrize("kind", makers)
@settings(deadline=None, max_examples=150)
@given(where=st.integers(0, 100_000), new=st.integers(0, 255), length=st.integers(1, 8))
@example(where=39274, new=47, length=6)  # Arrow does not implement the integers of this Parquet footer
@example(where=556, new=127, length=1)  # Arrow's accessor of this column's metadata ends the process
@example(where=824, new=255, length=7)  # a varint that is too long
@example(where=414, new=255, length=1)  # text that is not UTF-8
def test_whatever_bytes_are_altered_only_damage_is_reported(kind: str, where: int, new: int, length: int) -> None:
    make, codec = makers[kind]
    data = bytearray(make(ROWS, 500))
    offset = where % len(data)
    data[offset : offset + length] = bytes([new]) * length
    middle = len(data) // 2
    for start, end in ((0, len(data)), (0, middle), (middle, len(data))):
        with suppress(BatchError):
            read(codec, bytes(data), start, end)


def test_a_row_whose_text_is_not_utf_8_is_a_dead_letter_with_its_bytes() -> None:
    plain: dict[str, Any] = {"compression": "none", "use_dictionary": False, "write_statistics": False}
    data = parquet([{"id": 1, "note": "good"}, {"id": 2, "note": "b@d"}], **plain)
    rows, faults, damage = read(Parquet(SCHEMA), data.replace(b"b@d", b"b\xffd"))
    assert ([row for _, row in rows], damage) == ([{"id": 1, "note": "good"}], None)
    ((item, fault),) = faults
    assert (item, fault.form) == (1, COLUMNS)
    assert b"b\xffd" in b64decode(fault.raw or "")


class Unreachable(io.BytesIO):
    """An object on a server that stops answering."""

    reads = 0

    def read(self, size: int | None = -1, /) -> bytes:
        self.reads += 1
        if self.reads > 1:
            raise Unavailable("the server does not answer")
        return super().read(min(size or 0, 30))


@pytest.mark.parametrize("kind", makers)
def test_a_server_that_does_not_answer_is_no_damage(kind: str) -> None:
    make, codec = makers[kind]
    data = make(ROWS, 500)
    with pytest.raises(Unavailable):
        list(codec.read(Unreachable(data), Range(0, len(data), len(data))))
