"""Records of objects are read a second time by their items, for dead letters, as the object has them."""

from __future__ import annotations

import io
import pickle
from base64 import b64decode
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from holdfast.flow.batch import Name
from holdfast.flow.fault import Fault, damage_fault, record_fault
from holdfast.flow.letter import SourceRecord
from holdfast.flow.source import FAULT_COLUMN, ITEM_COLUMN
from holdfast.flow.staging import StagedBatch
from holdfast.sources.objects.codecs import codec_of
from holdfast.sources.objects.config import CodecName
from holdfast.sources.objects.object_ref import FileRef
from holdfast.sources.objects.record_reader import _row_of
from holdfast.sources.objects.splits import Split, divide
from holdfast.sources.objects.task_rows import ObjectRows
from tests.unit.sources.test_compression import packed

SCHEMA = pa.schema([("id", pa.int64()), ("note", pa.string())])
BATCH = StagedBatch("b", "p", "in|a", Name("in", "a"), 1, 1)
LINES = [b'{"id": %d, "note": "n%d", "more": [1, 2]}' % (number, number * 7919) for number in range(2_000)]
BAD = b'{"id": oops}'
JSONL = b"\xef\xbb\xbf" + b"\r\n".join([*LINES[:700], b"", BAD, *LINES[700:]])
TEXTS: dict[str, tuple[CodecName, Callable[[], bytes]]] = {
    "a.jsonl": ("jsonl", lambda: JSONL),
    "a.jsonl.gz": ("jsonl", lambda: packed(JSONL, "gzip")),
    "a.json": ("json", lambda: b"[" + b",\n".join([*LINES[:700], BAD, *LINES[700:]]) + b"]"),
}


def rows_of(folder: Path, name: str, codec: CodecName, data: bytes, split_bytes: int = 20_000) -> ObjectRows:
    (folder / name).write_bytes(data)
    stat = (folder / name).stat()
    ref = FileRef(str(folder / name), stat.st_size, stat.st_mtime_ns)
    made = codec_of(codec, SCHEMA, 1000)
    whole = Split("b", ref, 0, ref.size, undivided=not made.splits or name.endswith(".gz"))
    return ObjectRows([[split] for split in divide(whole, split_bytes)], made, "auto", None)


def items_of(rows: ObjectRows) -> tuple[dict[int, dict[str, Any]], list[int]]:
    """Good rows by item, and the items of the others."""
    good, bad = dict[int, dict[str, Any]](), list[int]()
    for task in range(rows.tasks):
        for portion in rows.rows(task):
            for row in portion.to_pylist():
                bad += [row[ITEM_COLUMN]] if row[FAULT_COLUMN] else []
                if row[FAULT_COLUMN] is None:
                    good[row[ITEM_COLUMN]] = {name: row[name] for name in SCHEMA.names}
    return good, bad


def read(reader: ObjectRows, *items: int, fault: Fault | None = None) -> list[SourceRecord]:
    return list(reader.records(BATCH, [(item, fault or record_fault("bad", b"")) for item in items]))


@pytest.mark.parametrize("name", TEXTS)
def test_a_record_that_is_text_is_read_byte_by_byte(tmp_path: Path, name: str) -> None:
    codec, data = TEXTS[name]
    rows = rows_of(tmp_path, name, codec, data())
    good, (bad,) = items_of(rows)
    assert len(good) == len(LINES)
    reader = pickle.loads(pickle.dumps(rows))  # noqa: S301 (our own bytes)
    chosen = sorted([*list(good)[::97], bad])
    values = [record.value for record in read(reader, *chosen)]
    assert values == [BAD if item == bad else LINES[good[item]["id"]] for item in chosen]
    first, repeated = read(reader, chosen[0])[0], read(reader, chosen[0], chosen[0])[1]
    assert first == repeated, "an item may be wanted a second time, after higher ones"
    assert first.source == {
        "path": str(tmp_path / name),
        "size": (tmp_path / name).stat().st_size,
        "mtime_ns": (tmp_path / name).stat().st_mtime_ns,
        "item": chosen[0],
    }
    (none,) = read(reader, chosen[0] + 1)
    assert (none.value, none.missing) == (None, "the object has no record there")


def test_a_line_of_csv_has_its_header(tmp_path: Path) -> None:
    data = b"note,id\r\n" + b"".join(b'"n\n%d",%d\r\n' % (number, number) for number in range(100)) + b"x,nonsense\n"
    rows = rows_of(tmp_path, "a.csv", "csv", data)
    good, (bad,) = items_of(rows)
    first, last = read(rows, min(good), bad)
    assert (first.value, first.source["header"]) == (b'"n\n0",0', "note,id")
    assert last.value == b"x,nonsense"


@pytest.mark.parametrize("codec", ["parquet", "avro"])
def test_a_row_keeps_its_types(tmp_path: Path, codec: CodecName) -> None:
    from holdfast.formats.avro import Avro
    from holdfast.formats.parquet import Parquet

    table, raw = (
        pa.RecordBatch.from_pylist([{"id": n, "note": f"n{n * 7919}"} for n in range(5_000)], SCHEMA),
        io.BytesIO(),
    )
    writer = (Parquet(row_group_bytes=8_000) if codec == "parquet" else Avro("zstd", 5_000)).open(raw, SCHEMA)
    for at in range(0, 5_000, 500):
        writer.write(table.slice(at, 500))
    writer.close()
    rows = rows_of(tmp_path, "a", codec, raw.getvalue(), split_bytes=len(raw.getvalue()) // 4)
    assert rows.tasks > 3
    good, _ = items_of(rows)
    assert len(good) == 5_000
    chosen = [*sorted(good)[::611], sorted(good)[3]]
    found = read(rows, *chosen)
    assert [_row_of(b64decode(record.source["arrow"]), SCHEMA).to_pylist() for record in found] == [
        [good[item]] for item in chosen
    ]
    assert found[0].value == b'{"id":0,"note":"n0"}'
    assert found[0].form == "columns"


def test_a_record_that_is_too_long_says_where_it_is(tmp_path: Path) -> None:
    rows = rows_of(tmp_path, "a.jsonl", "jsonl", LINES[0] + b"\n" + b"x" * 5_000 + b"\n" + LINES[1])
    _, (bad,) = items_of(rows)
    (record,) = read(rows, bad)
    assert (record.value, record.source["item"]) == (None, len(LINES[0]) + 1)
    assert record.missing == "the record is longer than max_line_bytes; the object has it there"


def test_an_object_that_has_changed_is_missing_and_damage_names_its_object(tmp_path: Path) -> None:
    rows = rows_of(tmp_path, "a.jsonl", "jsonl", JSONL)
    (damage,) = read(rows, 0, fault=damage_fault("broken"))
    assert (damage.source["path"], damage.missing) == (str(tmp_path / "a.jsonl"), None)
    (tmp_path / "a.jsonl").write_bytes(b"other")
    (record,) = read(rows, 0)
    assert "has changed since it was found" in str(record.missing)


def test_the_objects_of_a_prefix_are_told_apart(tmp_path: Path) -> None:
    one, two = (rows_of(tmp_path, name, "jsonl", line, 1 << 20) for name, line in (("1", LINES[1]), ("2", LINES[2])))
    based = [
        [replace(split, base=number << 40) for split in packed]
        for number, rows in ((3, one), (4, two))
        for packed in rows.packed
    ]
    reader = replace(one, packed=based)
    assert [record.value for record in read(reader, 3 << 40, 4 << 40)] == LINES[1:3]
