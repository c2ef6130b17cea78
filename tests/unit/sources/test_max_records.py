"""A batch of an object has no more records than it may have: the next reads the rest; none is lost or doubled."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from holdfast.errors import BeyondRepair
from holdfast.flow.batch import Batch, Cut, Done, Limits
from holdfast.flow.fault import CUT, RECORD, decode_fault
from holdfast.flow.source import FAULT_COLUMN, ITEM_COLUMN
from holdfast.flow.staging import staged_batch
from holdfast.formats.text import Text
from holdfast.leases.lease import Counts, Lease, Progress
from holdfast.sinks.files.staging import FilesStager
from holdfast.sources.objects import PLUGIN
from holdfast.sources.objects.codecs import codec_of
from holdfast.sources.objects.config import CodecName
from holdfast.sources.objects.source import ObjectsSource
from holdfast.sources.objects.task_rows import ObjectRows
from holdfast.spark.report import TaskReport
from holdfast.spark.task import SinkTask, StageTask
from holdfast.testing.flows import MemoryBucket
from tests.unit.sources.shelf import Shelf
from tests.unit.sources.test_compression import packed
from tests.unit.sources.test_corrupt import LINES, ROWS, SCHEMA, _avro, _csv, _parquet

MOST = 7_000
BROKEN = (
    LINES.replace(b'{"id": 100,', b'oops {"id": 100,').replace(b'{"id": 6999,', b"oops").replace(b'{"id": 7001,', b"?")
)
FILES: dict[str, tuple[CodecName, Callable[[], bytes]]] = {
    "a.jsonl": ("jsonl", lambda: LINES),
    "faults.jsonl": ("jsonl", lambda: BROKEN),
    "faults.jsonl.gz": ("jsonl", lambda: packed(BROKEN, "gzip")),
    "a.jsonl.zst": ("jsonl", lambda: packed(LINES, "zstd")),
    "a.csv": ("csv", _csv),
    "a.json": ("json", lambda: b"[" + LINES.replace(b"\n", b",")[:-1] + b"]"),
    "a.parquet": ("parquet", _parquet),
    "a.avro": ("avro", _avro),
}
DDL = "id BIGINT, note STRING"


def _source(folder: Path, codec: CodecName, **settings: Any) -> tuple[ObjectsSource, Lease]:
    source = PLUGIN.build(PLUGIN.config(folder=folder, codec=codec, schema=DDL, **settings))
    assert isinstance(source, ObjectsSource)
    (found,) = [partition for partition in source.discover({}) if partition is not None]
    return source, Lease("orders", found.key, spec=found.spec)


def _items(source: ObjectsSource, codec: CodecName, batch: Batch) -> tuple[list[int], int | None]:
    """Items of the batch's records, good and faulty, and where it was cut short."""
    read = ObjectRows([source.splits(batch)], codec_of(codec, SCHEMA, 1 << 20), "auto", None)
    items, cut = [], None
    for rows in read.rows(0):
        pairs = zip(rows.column(ITEM_COLUMN).to_pylist(), rows.column(FAULT_COLUMN).to_pylist(), strict=True)
        for item, text in pairs:
            kind = RECORD if text is None else decode_fault(text).kind
            if kind == CUT:
                cut = item
            else:
                assert kind == RECORD, text
                items.append(item)
    return items, cut


def _batch(source: ObjectsSource, lease: Lease, cut: Cut) -> Batch:
    return Batch("b", lease, source.name(lease), cut)


def _all_batches(source: ObjectsSource, codec: CodecName, lease: Lease, limits: Limits) -> list[list[int]]:
    batches: list[list[int]] = []
    while True:
        (plan,) = source.plan([lease], limits)
        if isinstance(plan, Done):
            return batches
        assert isinstance(plan, Cut), plan
        batch = _batch(source, lease, plan)
        items, cut = _items(source, codec, batch)
        end = plan.end if cut is None else source.cut_short(batch, cut)
        assert cut is not None or not plan.last or plan.end["offset"] == lease.spec["size"]
        # Made again after its staged files were lost, from where it began to where it ended: the same records.
        assert _items(source, codec, _batch(source, lease, Cut(plan.start, end))) == (items, None)
        batches.append(items)
        lease = replace(lease, progress=Progress(position=end))


@pytest.mark.parametrize("name", FILES)
def test_every_record_is_in_one_batch_and_no_batch_has_too_many(tmp_path: Path, name: str) -> None:
    codec, data = FILES[name]
    (tmp_path / name).write_bytes(data())
    source, lease = _source(tmp_path, codec)
    (whole,) = _all_batches(source, codec, lease, Limits())
    batches = _all_batches(source, codec, lease, Limits(max_records=MOST))
    assert sorted(item for items in batches for item in items) == sorted(whole)
    assert [len(items) for items in batches] == [MOST] * 4 + [len(ROWS) - 4 * MOST]


def test_both_bounds_are_kept(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(LINES)
    source, lease = _source(tmp_path, "jsonl", split_bytes="1KiB")
    by_records = _all_batches(source, "jsonl", lease, Limits(max_bytes=len(LINES) // 3, max_records=MOST))
    by_bytes = _all_batches(source, "jsonl", lease, Limits(max_bytes=len(LINES) // 20, max_records=MOST))
    assert len(by_records) == 5
    assert len(by_bytes) >= 20
    assert sum(map(len, by_records)) == sum(map(len, by_bytes)) == len(ROWS)


def test_an_object_that_is_just_as_large_is_not_cut(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(LINES)
    source, lease = _source(tmp_path, "jsonl")
    assert [len(items) for items in _all_batches(source, "jsonl", lease, Limits(max_records=len(ROWS)))] == [len(ROWS)]


def test_damage_that_was_met_stays_in_the_position_behind_a_cut(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(LINES)
    source, lease = _source(tmp_path, "jsonl")
    lease = replace(lease, progress=Progress(position=source.damaged({"offset": 0}, "half of it is gone")))
    (plan,) = source.plan([lease], Limits(max_records=MOST))
    assert isinstance(plan, Cut)
    end = source.cut_short(_batch(source, lease, plan), 99)
    lease = replace(lease, progress=Progress(position=end))
    (plan,) = source.plan([lease], Limits(max_records=MOST))
    assert isinstance(plan, Cut)
    (last,) = source.plan([replace(lease, progress=Progress(position=plan.end))], Limits())
    assert isinstance(last, BeyondRepair)


def test_what_the_source_left_is_no_dead_letter_and_ends_the_batch(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(BROKEN)
    source, lease = _source(tmp_path, "jsonl")
    (plan,) = source.plan([lease], Limits(max_records=MOST))
    assert isinstance(plan, Cut)
    batch = _batch(source, lease, plan)
    read = ObjectRows([source.splits(batch)], codec_of("jsonl", SCHEMA, 1 << 20), "auto", None)
    columns = {"value": "note"}
    task = StageTask([staged_batch(batch)], {"files": SinkTask(FilesStager(MemoryBucket(), Text()), columns)})
    ((_, encoded),) = task(read.rows(0))
    report = TaskReport.decode(encoded)
    assert report.error is None
    assert (report.rows, report.dead, report.end) == (MOST - 2, 2, None)
    assert report.source_end is not None
    assert BROKEN[: report.source_end].count(b"\n") == MOST


# --- prefixes ------------------------------------------------------------------------------------------------------


def test_a_batch_of_a_prefix_ends_where_the_next_object_would_begin() -> None:
    shelf = Shelf()
    shelf.put(*(f"a/{number}" for number in range(5)), data=b"{}\n" * 10)
    source = shelf.source(partition_by="prefix", after_success="delete", codec="newline")
    (found,) = [p for p in source.discover({}) if p is not None and p.key == "landing|a/"]
    lease = Lease("orders", found.key, spec=found.spec)
    seen: list[list[int]] = []
    while True:
        (plan,) = source.plan([lease], Limits(max_records=15))
        if isinstance(plan, Done):
            break
        assert isinstance(plan, Cut)
        batch = _batch(source, lease, plan)
        items, cut = _items(source, "newline", batch)
        end = plan.end if cut is None else source.cut_short(batch, cut)
        assert _items(source, "newline", _batch(source, lease, Cut(plan.start, end))) == (items, None)
        seen.append(items)
        lease = replace(lease, progress=Progress(position=end, counts=Counts()))
    assert [len(items) for items in seen] == [20, 20, 10]
    assert len({item for items in seen for item in items}) == 50
    assert shelf.items == {}
