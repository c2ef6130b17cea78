"""Staging files in a task: each file of one batch, named by its first item, the same for the same rows."""

from __future__ import annotations

import base64
import errno
import gzip
import json
import os
import pickle
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.buckets.bucket import StagedFile
from holdfast.buckets.local import LocalBucket
from holdfast.errors import BatchError, Unavailable
from holdfast.flow.batch import Name
from holdfast.flow.fault import record_fault
from holdfast.flow.manifest import decode_manifest, manifest_of
from holdfast.flow.staging import StagedBatch
from holdfast.formats.avro import Avro
from holdfast.formats.jsonl import Jsonl
from holdfast.formats.orc import Orc
from holdfast.formats.parquet import Parquet
from holdfast.formats.text import PLUGIN as TEXT
from holdfast.formats.text import TextConfig
from holdfast.leases.lease import Lease
from holdfast.registry import Registry
from holdfast.sinks.files import PLUGIN
from holdfast.sinks.files.output_files import BLOCK_ROWS, Blocks, _text_bytes
from holdfast.sinks.files.sink import FilesSink
from holdfast.sinks.files.staging import FilesStager, FilesStaging
from holdfast.testing.flows import MemoryBucket

BATCH = StagedBatch("b1", "orders", "in|a.jsonl", Name("in", "a"), token=3, generation=2)
OTHER = replace(BATCH, id="b2", key="in|b.jsonl", name=Name("in", "b"))


class Desk:
    """One attempt of a task over a bucket in memory."""

    def __init__(self, form: Any = None, **bounds: Any) -> None:
        self.bucket = MemoryBucket()
        self.staging: FilesStaging = FilesStager(self.bucket, form or Jsonl(), **bounds).begin()

    def write(self, batch: StagedBatch, *items: int) -> None:
        values = pa.RecordBatch.from_pydict({"value": [f'{{"item":{item}}}' for item in items]})
        self.staging.write(batch, pa.array(items, pa.int64()), values)

    def finish(self, batch: StagedBatch = BATCH) -> dict[str, list[int]]:
        """The items of each file, by the number in its name; checks what the receipt says of it."""
        found = {}
        for file in self.staging.finish(batch)["files"]:
            data = self.bucket.staged[file["staged"]]
            items = [json.loads(line)["item"] for line in data.splitlines()]
            assert file["key"] == f"in/2_{batch.name.label}_{min(items):020d}.jsonl"
            figures = (file["rows"], file["size"], file["first"], file["last"])
            assert figures == (len(items), len(data), min(items), max(items))
            assert str(file["staged"]).startswith(f"_holdfast/staging/in/{batch.name.label}/{3:020d}/{batch.id}/")
            found[str(file["first"])] = items
        return found


def test_rows_of_several_batches_go_to_files_of_their_own() -> None:
    desk = Desk()
    for start in range(0, 30, 10):
        desk.write(BATCH, start, start + 5)
        desk.write(OTHER, start + 100)
    assert desk.finish(BATCH) == {"0": [0, 5, 10, 15, 20, 25]}
    assert desk.finish(OTHER) == {"100": [100, 110, 120]}


def test_a_batch_without_rows_has_no_files() -> None:
    assert Desk().finish() == {}


def test_a_file_that_would_begin_with_a_later_item_is_closed() -> None:
    desk = Desk()
    desk.write(BATCH, *range(100, 100 + BLOCK_ROWS))
    desk.write(BATCH, *range(50, 60))
    assert {name: len(items) for name, items in desk.finish().items()} == {"100": BLOCK_ROWS, "50": 10}


def test_beyond_the_bound_of_open_files_the_one_used_longest_ago_is_closed() -> None:
    desk = Desk(max_open_files=1)
    for start in range(0, 4 * BLOCK_ROWS, BLOCK_ROWS):
        desk.write(BATCH, *range(start, start + BLOCK_ROWS))
        desk.write(OTHER, *range(start, start + BLOCK_ROWS))
        assert sum(files.is_open for files in desk.staging._open.values()) <= 1
    files = desk.finish()
    assert sorted(map(int, files)) == [0, BLOCK_ROWS, 2 * BLOCK_ROWS, 3 * BLOCK_ROWS]
    assert list(chain(*files.values())) == list(range(4 * BLOCK_ROWS))


def test_a_file_that_is_large_enough_is_followed_by_another() -> None:
    desk = Desk(max_file_bytes=150_000)
    desk.write(BATCH, *range(5 * BLOCK_ROWS))
    files = desk.finish()
    assert sorted(map(int, files)) == [0, 2 * BLOCK_ROWS, 4 * BLOCK_ROWS]
    assert list(chain(*files.values())) == list(range(5 * BLOCK_ROWS))


def test_what_waits_in_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.sinks.files.staging.MAX_BUFFERED_BYTES", 300_000)
    desk = Desk(Parquet())
    batches = [replace(BATCH, id=f"b{number}") for number in range(20)]
    for batch in batches:
        desk.write(batch, *range(BLOCK_ROWS))
        assert sum(files.buffered for files in desk.staging._open.values()) < 600_000
    assert all(len(desk.staging.finish(batch)["files"]) == 1 for batch in batches)


def test_dead_letters_are_staged_beside_the_data_with_reason_and_origin() -> None:
    desk = Desk()
    desk.write(BATCH, 0, 20)
    desk.staging.bury(BATCH, [(10, record_fault("it is no JSON", b"oops")), (15, record_fault("nor this", b"\xff"))])
    desk.staging.bury(BATCH, [(5, record_fault("earlier", b""))])
    (letters,) = [file for file in desk.staging.finish(BATCH)["files"] if "deadletters" in file["key"]]
    assert letters["key"] == f"_holdfast/deadletters/in/2_a_{5:020d}.jsonl"
    assert (letters["rows"], letters["first"], letters["last"]) == (3, 5, 15)
    _, first, second = map(json.loads, desk.bucket.staged[letters["staged"]].splitlines())
    origin = {"pipeline": "orders", "key": "in|a.jsonl"}
    assert first == {"reason": "it is no JSON", "raw": "oops", "origin": {**origin, "item": 10}}
    assert second == {"reason": "nor this", "raw": "/w==", "encoding": "base64", "origin": {**origin, "item": 15}}


def test_dead_letters_are_one_file_in_the_order_of_their_records_whatever_place_they_come_from() -> None:
    desk = Desk()
    for item in (7, 3, 5, 1, 6):
        desk.staging.bury(BATCH, [(item, record_fault("bad", b""))])
    (letters,) = desk.staging.finish(BATCH)["files"]
    lines = desk.bucket.staged[letters["staged"]].splitlines()
    assert [json.loads(line)["origin"]["item"] for line in lines] == [1, 3, 5, 6, 7]


def test_rows_that_the_format_cannot_hold_are_letters_of_their_value_or_of_all_columns() -> None:
    late = pa.array([(1 << 63) - 1], pa.timestamp("us", "UTC"))
    item, value = pa.array([7], pa.int64()), pa.array([b"the message"])
    no_text = pa.array([b"\xff"]).view(pa.string())
    in_base64 = base64.b64encode(b'{"key":"dGhlIG1lc3NhZ2U=","text":"\xff"}').decode()
    cases: list[tuple[Any, dict[str, Any], Any, Any]] = [
        (Jsonl(), {"value": value}, "the message", None),
        (Avro(), {"offset": item, "timestamp": late, "value": value}, "the message", None),
        (Orc(), {"id": item, "at": late}, f'{{"id":7,"at":{(1 << 63) - 1}}}', "columns"),
        (Jsonl(), {"key": value, "text": no_text}, in_base64, "columns"),
    ]
    for form, columns, raw, kind in cases:
        desk = Desk(form)
        assert desk.staging.write(BATCH, item, pa.record_batch(columns)) == 1
        (file,) = desk.staging.finish(BATCH)["files"]
        (letter,) = map(json.loads, desk.bucket.staged[file["staged"]].splitlines())
        assert (letter["raw"], letter.get("form")) == (raw, kind)


def test_dead_letters_wait_for_the_end_of_their_portion_and_not_of_their_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.sinks.files.staging.MAX_WAITING_LETTERS", 500)
    desk = Desk()
    for start in range(0, 100, 10):
        desk.staging.expect(BATCH, ())
        for item in (start + 7, start + 3, start):
            desk.staging.bury(BATCH, [(item, record_fault("bad", b"x" * 200))])
        assert sum(letters.waiting_bytes for letters in desk.staging._letters._batches.values()) < 2000
    (letters,) = desk.staging.finish(BATCH)["files"]
    assert (letters["rows"], letters["first"], letters["last"]) == (30, 0, 97)


def test_an_abandoned_batch_leaves_nothing_and_the_others_stay() -> None:
    desk = Desk(max_open_files=1)
    desk.write(BATCH, *range(BLOCK_ROWS))
    desk.staging.bury(BATCH, [(7, record_fault("bad", b""))])
    desk.write(OTHER, *range(BLOCK_ROWS))
    desk.write(BATCH, *range(BLOCK_ROWS, 2 * BLOCK_ROWS))
    desk.staging.abandon(BATCH)
    desk.staging.abandon(BATCH)
    assert desk.finish(OTHER)["0"] == list(range(BLOCK_ROWS))
    assert all("/b2/" in key for key in desk.bucket.staged)


def test_two_attempts_of_one_task_never_share_a_place() -> None:
    bucket = MemoryBucket()
    stager = pickle.loads(pickle.dumps(FilesStager(bucket, Jsonl())))  # noqa: S301 - our own bytes
    assert isinstance(stager, FilesStager)
    handles = set()
    for _ in range(2):
        desk = Desk()
        desk.write(BATCH, 1)
        (file,) = desk.staging.finish(BATCH)["files"]
        handles.add(file["staged"])
    assert len(handles) == 2


def test_trouble_while_making_room_is_told_to_the_batch_whose_file_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk = Desk(max_open_files=1)
    desk.staging = FilesStager(LocalBucket(tmp_path), Jsonl(), max_open_files=1).begin()
    desk.write(BATCH, *range(BLOCK_ROWS))
    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", _disk_is_full)
        desk.write(OTHER, *range(BLOCK_ROWS))
    with pytest.raises(Unavailable, match="the disk is full"):
        desk.write(BATCH, BLOCK_ROWS)
    with pytest.raises(Unavailable, match="the disk is full"):
        desk.staging.finish(BATCH)
    desk.staging.abandon(BATCH)
    assert [file["rows"] for file in desk.staging.finish(OTHER)["files"]] == [BLOCK_ROWS]


def _disk_is_full(_number: int) -> None:
    raise OSError(errno.ENOSPC, "no space")


# --- the same rows, the same bytes ---------------------------------------------------------------------------------


@settings(deadline=None, max_examples=25)
@given(
    portions=st.lists(st.integers(1, 9000), min_size=1, max_size=8),
    company=st.booleans(),
    form=st.sampled_from([Parquet(row_group_bytes=200_000), Jsonl("gzip")]),
)
def test_files_do_not_depend_on_the_portions_or_the_company_in_which_rows_come(
    portions: list[int], *, company: bool, form: Any
) -> None:
    total = sum(portions)

    def digests(sizes: list[int], *, company: bool) -> list[tuple[str, str]]:
        desk, start = Desk(form, max_file_bytes=300_000), 0
        for size in sizes:
            desk.write(BATCH, *range(start, start + size))
            start += size
            if company:
                desk.write(OTHER, start)
        return [(file["key"], file["sha256"]) for file in desk.staging.finish(BATCH)["files"]]

    assert digests(portions, company=company) == digests([total], company=False)


texts = st.lists(st.lists(st.integers(0, 400), max_size=12), max_size=6)


@settings(deadline=None)
@given(portions=texts, rows=st.integers(1, 10), size=st.integers(1, 900))
def test_blocks_end_by_rows_or_bytes_and_follow_from_the_rows_alone(
    portions: list[list[int]], rows: int, size: int
) -> None:
    lengths = [length for portion in portions for length in portion]
    expected, block = [], [0, 0]
    for length in lengths:
        block = [block[0] + 1, block[1] + length]
        if block[0] == rows or block[1] >= size:
            expected.append(block[0])
            block = [0, 0]
    blocks, found = Blocks(rows, size), []
    for portion in portions:
        found += list(
            blocks.add(pa.RecordBatch.from_pydict({"text": pa.array(["x" * n for n in portion], pa.string())}))
        )
    assert [block.num_rows for block in found] == expected
    found += list(blocks.rest())
    assert [len(text) for block in found for text in block.column("text").to_pylist()] == lengths


def test_text_is_weighed_however_deep_it_is() -> None:
    kind = pa.struct([("tags", pa.list_(pa.string())), ("more", pa.map_(pa.string(), pa.binary()))])
    column = pa.array(
        [
            {"tags": ["aa", None], "more": [("k", b"vvv")]},
            None,
            {"tags": None, "more": []},
            {"tags": ["b"], "more": None},
        ],
        kind,
    )
    assert _text_bytes(column).tolist() == [6, 0, 0, 1]
    assert _text_bytes(column.slice(2)).tolist() == [0, 1]
    assert _text_bytes(pa.array([1, 2])).tolist() == [0, 0]


def test_a_few_long_texts_are_not_kept_until_there_are_many() -> None:
    blocks = Blocks()
    rows = pa.RecordBatch.from_pydict({"text": ["x" * (1 << 20)] * 10})
    assert [block.num_rows for _ in range(7) for block in blocks.add(rows)] == [32, 32]


# --- on the node ---------------------------------------------------------------------------------------------------


def test_parts_of_several_tasks_become_one_receipt_in_order_of_names() -> None:
    sink = FilesSink("files", MemoryBucket())
    parts = [{"files": [{"key": "b"}, {"key": "c"}]}, {"files": []}, {"files": [{"key": "a"}]}]
    assert sink.receipt(parts) == {"files": [{"key": "a"}, {"key": "b"}, {"key": "c"}]}
    assert sink.receipt([]) == {"files": []}


def test_two_files_with_one_name_cannot_be_one_commit() -> None:
    with pytest.raises(BatchError, match="keep the rows of a record together"):
        FilesSink("files", MemoryBucket()).receipt([{"files": [{"key": "a"}]}, {"files": [{"key": "a"}]}])


def test_the_plugin_builds_a_sink_with_its_format(tmp_path: Path) -> None:
    config = PLUGIN.config(root=tmp_path, format={"jsonl": {"compression": "gzip"}}, max_file_bytes="1MB")
    sink = PLUGIN.build("archive", config, Registry.installed())
    assert sink.name == "archive"
    staging = sink.stager().begin()
    staging.write(BATCH, pa.array([0]), pa.RecordBatch.from_pydict({"value": ["{}"]}))
    (file,) = sink.receipt([staging.finish(BATCH)])["files"]
    bucket = LocalBucket(tmp_path)
    bucket.publish([StagedFile(file["staged"], file["key"], file["sha256"])])
    assert gzip.decompress((tmp_path / file["key"]).read_bytes()) == b"{}\n"


def test_a_format_may_be_just_a_name(tmp_path: Path) -> None:
    assert PLUGIN.config(root=tmp_path).format.name == "parquet"
    assert PLUGIN.config(root=tmp_path, format="jsonl").format.name == "jsonl"


def test_a_record_that_names_a_folder_beyond_the_bound_is_a_letter_and_needs_no_file() -> None:
    desk = Desk(max_files=1)
    rows = pa.RecordBatch.from_pydict({"value": ['{"item":7}']})
    desk.write(BATCH, 1)
    assert desk.staging.room(BATCH).is_open("x" * 5000)
    assert desk.staging.write(BATCH, pa.array([7], pa.int64()), rows, "user=" + "x" * 5000) == 1
    data, letters = desk.staging.finish(BATCH)["files"]
    (letter,) = map(json.loads, desk.bucket.staged[letters["staged"]].splitlines())
    assert letter["reason"] == "its partition names have 5005 bytes, and a folder may have 4096"
    assert letter["raw"] == '{"item":7}'
    assert data["rows"] == 1


def test_a_value_that_is_shortened_in_the_name_of_a_folder_is_whole_in_the_receipt() -> None:
    desk = Desk()
    rows = pa.RecordBatch.from_pydict({"value": ['{"item":7}']})
    desk.staging.write(BATCH, pa.array([7], pa.int64()), rows, "user=" + "x" * 4000)
    (file,) = desk.staging.finish(BATCH)["files"]
    assert file["place"] == "user=" + "x" * 4000
    assert len(file["key"]) < 255


def test_what_a_setting_leaves_out_is_in_no_file_and_counted_in_receipt_and_manifest() -> None:
    form = TEXT.build(TextConfig(containing="skip", tombstones="skip"))
    desk = Desk(form)
    rows = pa.RecordBatch.from_pydict({"value": pa.array([b"a", None, b"b\nc", b"d"])})
    assert desk.staging.write(BATCH, pa.array([1, 2, 3, 4], pa.int64()), rows) == 0
    part = desk.staging.finish(BATCH)
    (file,) = part["files"]
    assert (part["skipped"], file["rows"], desk.bucket.staged[file["staged"]]) == (2, 2, b"a\nd\n")
    receipt = FilesSink("files", desk.bucket).receipt([part, {"files": []}, {"files": [], "skipped": 3}])
    assert receipt["skipped"] == 5
    manifest = manifest_of(Lease("p", "k"), Name("in", "a"), {**receipt, "token": 1, "from": None, "to": None})
    assert decode_manifest(manifest.encode()).skipped == 5
    assert "skipped" not in json.loads(replace(manifest, skipped=0).encode())


def test_an_abandoned_batch_has_skipped_nothing() -> None:
    desk = Desk(TEXT.build(TextConfig(tombstones="skip")))
    rows = pa.RecordBatch.from_pydict({"value": pa.array([None], pa.binary())})
    desk.staging.write(BATCH, pa.array([1], pa.int64()), rows)
    desk.staging.abandon(BATCH)
    assert desk.staging.finish(BATCH) == {"files": []}
