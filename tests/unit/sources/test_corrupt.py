"""A damaged object fails as a whole, or its good records are kept; and how such a partition ends."""

from __future__ import annotations

import bz2
import gzip
import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pydantic import ValidationError

from holdfast.errors import BeyondRepair
from holdfast.flow.batch import Batch, Cut, Done, Limits
from holdfast.flow.fault import BATCH, DAMAGE, decode_fault
from holdfast.formats.avro import Avro as AvroFormat
from holdfast.leases.lease import History, Lease, Progress
from holdfast.sources.objects import PLUGIN
from holdfast.sources.objects.codecs import codec_of
from holdfast.sources.objects.config import CodecName
from holdfast.sources.objects.object_ref import FileRef
from holdfast.sources.objects.source import ObjectsSource
from holdfast.sources.objects.splits import Split
from holdfast.sources.objects.task_rows import ObjectRows
from tests.unit.sources.test_compression import packed

SCHEMA = pa.schema([("id", pa.int64()), ("note", pa.string())])
ROWS = [{"id": number, "note": f"n{number * 7919 % 10_007}"} for number in range(30_000)]
LINES = "".join(json.dumps(row) + "\n" for row in ROWS).encode()


def _parquet() -> bytes:
    raw = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(ROWS, SCHEMA), raw, row_group_size=5000)
    return raw.getvalue()


def _avro() -> bytes:
    raw = io.BytesIO()
    writer = AvroFormat("zstd", 10_000).open(raw, SCHEMA)
    writer.write(pa.RecordBatch.from_pylist(ROWS, SCHEMA))
    writer.close()
    return raw.getvalue()


def _csv() -> bytes:
    return ("id,note\n" + "".join(f'{row["id"]},"{row["note"]}"\n' for row in ROWS)).encode()


def _half(data: bytes) -> bytes:
    return data[: len(data) // 2]


def _altered(data: bytes) -> bytes:
    middle = len(data) // 2
    return data[:middle] + bytes(byte ^ 0x55 for byte in data[middle : middle + 40]) + data[middle + 40 :]


DAMAGES: dict[str, tuple[str, CodecName, bytes]] = {
    "truncated gzip": ("a.gz", "jsonl", _half(gzip.compress(LINES))),
    "truncated zstd": ("a.zst", "jsonl", _half(packed(LINES, "zstd"))),
    "truncated bzip2": ("a.bz2", "jsonl", _half(bz2.compress(LINES, 1))),
    "truncated snappy": ("a.snappy", "jsonl", _half(packed(LINES, "snappy"))),
    "truncated framed snappy": ("a.sz", "jsonl", _half(packed(LINES, "framed snappy"))),
    "altered bzip2": ("a.bz2", "jsonl", _altered(bz2.compress(LINES, 1))),
    "altered framed snappy": ("a.sz", "jsonl", _altered(packed(LINES, "framed snappy"))),
    "half a JSON list": ("a.json", "json", _half(json.dumps(ROWS).encode())),
    "half a JSON list in gzip": ("a.json.gz", "json", _half(gzip.compress(json.dumps({"rows": ROWS}).encode()))),
    "CSV that ends within quotes": ("a.csv", "csv", _csv()[:-3]),
    "Parquet with an altered row group": ("a.parquet", "parquet", _altered(_parquet())),
    "an altered Avro block": ("a.avro", "avro", _altered(_avro())),
    "a truncated Avro file": ("a.avro", "avro", _half(_avro())),
}
NOTHING_GOOD: dict[str, tuple[str, CodecName, bytes]] = {
    "Parquet without its footer": ("a.parquet", "parquet", _half(_parquet())),
    "no gzip": ("a.gz", "jsonl", b"\x1f\x8b\x08\x00 this is no gzip"),
    "no Avro": ("a.avro", "avro", b"this is no Avro"),
    "no SequenceFile": ("a.seq", "sequencefile", b"this is no SequenceFile"),
    "no JSON": ("a.json", "json", b"<html>"),
}


def read(folder: Path, name: str, codec: CodecName, data: bytes, *, salvage: bool) -> tuple[list[Any], list[Any]]:
    """The rows without a fault, and the faults."""
    path = folder / name
    path.write_bytes(data)
    facts = path.stat()
    ref = FileRef(str(path), facts.st_size, facts.st_mtime_ns)
    split = Split("b", ref, 0, facts.st_size, salvage=salvage)
    schema = None if codec == "sequencefile" else SCHEMA
    found = ObjectRows([[split]], codec_of(codec, schema, 1 << 20), "auto", None)
    rows = [row for batch in found.rows(0) for row in batch.to_pylist()]
    good = [{"id": row["id"], "note": row["note"]} for row in rows if row["_fault"] is None]
    return good, [decode_fault(row["_fault"]) for row in rows if row["_fault"] is not None]


@pytest.mark.parametrize("what", DAMAGES)
def test_good_records_before_the_damage_are_kept_if_they_are_to_be(tmp_path: Path, what: str) -> None:
    good, faults = read(tmp_path, *DAMAGES[what], salvage=True)
    assert 0 < len(good) < len(ROWS)
    assert good == ROWS[: len(good)]
    assert faults[-1].kind == DAMAGE
    assert "a." in faults[-1].reason
    assert [fault.kind for fault in faults].count(DAMAGE) == 1


@pytest.mark.parametrize("what", [*DAMAGES, *NOTHING_GOOD])
def test_else_the_batch_fails(tmp_path: Path, what: str) -> None:
    _, faults = read(tmp_path, *(DAMAGES | NOTHING_GOOD)[what], salvage=False)
    assert faults[-1].kind == BATCH


@pytest.mark.parametrize("what", NOTHING_GOOD)
def test_an_object_with_nothing_good_in_it_is_damage_alone(tmp_path: Path, what: str) -> None:
    good, faults = read(tmp_path, *NOTHING_GOOD[what], salvage=True)
    assert good == []
    assert [fault.kind for fault in faults] == [DAMAGE]


def test_an_object_that_changed_is_an_error_also_where_damaged_ones_are_salvaged(tmp_path: Path) -> None:
    path = tmp_path / "a.gz"
    path.write_bytes(gzip.compress(LINES))
    split = Split("b", FileRef(str(path), path.stat().st_size, 1), 0, path.stat().st_size, salvage=True)
    (rows,) = ObjectRows([[split]], codec_of("jsonl", None, 1000), "auto", None).rows(0)
    assert decode_fault(rows.to_pylist()[0]["_fault"]).kind == BATCH


def test_every_codec_reads_what_is_whole(tmp_path: Path) -> None:
    whole: list[tuple[str, CodecName, bytes]] = [
        ("a.jsonl", "jsonl", LINES),
        ("b", "jsonl", bz2.compress(LINES)),
        ("c.json", "json", json.dumps(ROWS).encode()),
        ("d.json.zst", "json", packed(json.dumps(ROWS).encode(), "zstd")),
        ("e.csv", "csv", _csv()),
        ("f.csv.snappy", "csv", packed(_csv(), "snappy")),
        ("g.snappy.parquet", "parquet", _parquet()),
        ("h.avro", "avro", _avro()),
    ]
    for name, codec, data in whole:
        assert read(tmp_path, name, codec, data, salvage=False) == (ROWS, []), name


# --- on the node -----------------------------------------------------------------------------------------------------


def source_of(folder: Path, **settings: Any) -> ObjectsSource:
    built = PLUGIN.build(PLUGIN.config(folder=folder, **settings))
    assert isinstance(built, ObjectsSource)
    return built


def lease_of(source: ObjectsSource) -> Lease:
    (found,) = source.discover({})
    assert found is not None
    return Lease("orders", found.key, spec=found.spec)


def planned(source: ObjectsSource, lease: Lease, position: Any, limits: Limits = Limits()) -> Any:
    (plan,) = source.plan([replace(lease, progress=Progress(position=position))], limits)
    return plan


@pytest.mark.parametrize(
    ("codec", "name", "batches"),
    [
        ("newline", "a", 4),
        ("jsonl", "a", 4),
        ("parquet", "a", 4),
        ("avro", "a", 4),
        ("sequencefile", "a", 4),
        ("json", "a", 1),
        ("csv", "a", 1),
        ("jsonl", "a.bz2", 1),
        ("avro", "a.gz", 4),
    ],
)
def test_only_what_can_be_read_in_parts_is_cut(tmp_path: Path, codec: str, name: str, batches: int) -> None:
    (tmp_path / name).write_bytes(b"x" * 1000)
    schema = {"schema": "id BIGINT"} if codec in {"parquet", "avro", "csv"} else {}
    source = source_of(tmp_path, codec=codec, split_bytes=100, **schema)
    lease, position, found = lease_of(source), None, 0
    while isinstance(plan := planned(source, lease, position, Limits(max_bytes=250)), Cut):
        position, found = plan.end, found + 1
        splits = source.splits(Batch("b", lease, source.name(lease), plan))
        assert len(splits) == (1 if batches == 1 else 3)
    assert plan == Done()
    assert found == batches


def test_the_first_try_keeps_nothing_of_a_damaged_object_and_the_next_one_does(tmp_path: Path) -> None:
    (tmp_path / "a.gz").write_bytes(b"x" * 100)
    for setting, attempts, salvage in (("keep", 0, False), ("keep", 1, True), ("drop", 1, False)):
        source = source_of(tmp_path, on_corrupt=setting)
        lease = replace(lease_of(source), history=History(attempts=attempts))
        batch = Batch("b", lease, source.name(lease), planned(source, lease, None))
        assert [split.salvage for split in source.splits(batch)] == [salvage]


def test_damage_goes_with_the_object_to_its_end_which_is_a_failure(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"x" * 1000)
    source = source_of(tmp_path, codec="parquet", schema="id BIGINT", on_corrupt="keep")
    lease, limits = lease_of(source), Limits(max_bytes=250)
    position = source.damaged(planned(source, lease, None, limits).end, "a: page 3 is wrong")
    cuts = 0
    while isinstance(plan := planned(source, lease, position, limits), Cut):
        assert not plan.last
        # Whoever reads or rebuilds what follows keeps what is good of it.
        assert all(split.salvage for split in source.splits(Batch("b", lease, source.name(lease), plan)))
        assert source.damaged(plan.end, "another") == plan.end
        position, cuts = plan.end, cuts + 1
    assert cuts == 3
    assert isinstance(plan, BeyondRepair)
    assert "page 3 is wrong" in str(plan)


def test_a_batch_that_was_cut_cannot_be_of_a_packed_object(tmp_path: Path) -> None:
    path = tmp_path / "a.gz"
    path.write_bytes(gzip.compress(LINES))
    facts = path.stat()
    split = Split("b", FileRef(str(path), facts.st_size, facts.st_mtime_ns), 10, facts.st_size, salvage=True)
    (rows,) = ObjectRows([[split]], codec_of("jsonl", None, 1000), "auto", None).rows(0)
    fault = decode_fault(rows.to_pylist()[0]["_fault"])
    assert fault.kind == BATCH
    assert "from its beginning" in fault.reason


@pytest.mark.parametrize(
    "wrong",
    [
        {"codec": "csv"},
        {"codec": "parquet"},
        {"codec": "avro"},
        {"codec": "newline", "schema": "a INT"},
        {"codec": "parquet", "schema": "a INT", "compression": "gzip"},
        {"codec": "xml"},
        {"compression": "rar"},
        {"on_corrupt": "ignore"},
    ],
)
def test_settings_that_make_no_sense_are_refused(tmp_path: Path, wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        PLUGIN.config(folder=tmp_path, **wrong)


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ({"codec": "avro", "schema": "a INT"}, "prefix does not support the codec avro"),
        ({"codec": "sequencefile"}, "prefix does not support the codec sequencefile"),
    ],
)
def test_what_a_prefix_as_partition_cannot_have_is_refused(wrong: dict[str, Any], reason: str) -> None:
    prefix = {"buckets": [{"bucket": "logs"}], "partition_by": "prefix", "after_success": "delete"}
    PLUGIN.config(**prefix)
    with pytest.raises(ValidationError, match=reason):
        PLUGIN.config(**prefix, **wrong)
