"""Staging on a disk that is really full: nothing is seen of the batch, and it is staged when there is room.

The simulator has no file system. That such a batch counts no attempt is what its fault `batch_unavailable` is about.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from holdfast.buckets.bucket import Published, StagedFile
from holdfast.buckets.local import LocalBucket
from holdfast.errors import Unavailable
from holdfast.flow.batch import Name
from holdfast.flow.format import Format
from holdfast.flow.staging import StagedBatch
from holdfast.formats.avro import Avro
from holdfast.formats.jsonl import Jsonl
from holdfast.formats.orc import Orc
from holdfast.formats.parquet import Parquet
from holdfast.sinks.files.staging import FilesStager
from holdfast.spark.report import TaskReport
from holdfast.spark.task import SinkTask, StageTask

LARGE = StagedBatch("large", "orders", "in|a", Name("in", "a"), token=1, generation=1)
SMALL = StagedBatch("small", "orders", "in|b", Name("in", "b"), token=1, generation=1)
FORMATS: dict[str, Callable[[], Format]] = {"jsonl": Jsonl, "parquet": Parquet, "orc": Orc, "avro": Avro}
CHUNK = 1 << 12


def _rows(batch: StagedBatch, count: int) -> Any:
    # Random text, so that no format makes it small.
    values = [f'{{"v":"{os.urandom(1000).hex()}"}}' for _ in range(count)]
    return pa.RecordBatch.from_pydict(
        {
            "_batch": pa.array([batch.id] * count, pa.string()),
            "_item": pa.array(range(count), pa.int64()),
            "_fault": pa.nulls(count, pa.string()),
            "value": values,
        }
    )


def _stage(bucket: LocalBucket, form: Format, *rows: Any) -> dict[str, TaskReport]:
    task = StageTask([SMALL, LARGE], {"files": SinkTask(FilesStager(bucket, form), {"value": "value"})})
    return {batch_id: TaskReport.decode(report) for batch_id, report in task(iter(rows))}


def _fill(disk: Path) -> Path:
    """A file that leaves no room for anything."""
    filling = disk / "filling"
    with filling.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(b"x" * CHUNK)
        except OSError:
            return filling


@pytest.mark.parametrize("name", FORMATS)
def test_a_batch_for_which_there_is_no_room_counts_no_attempt_and_leaves_nothing(small_disk: Path, name: str) -> None:
    bucket = LocalBucket(small_disk / "root")
    reports = _stage(bucket, FORMATS[name](), _rows(SMALL, 2), _rows(LARGE, 2000))
    report = reports["large"]
    assert report.unavailable
    assert report.error is not None
    assert "the disk is full" in report.error
    assert list(bucket.keys("")) == []
    assert {key.split("/")[3] for key, _ in bucket.staged_under("_holdfast/staging/")} <= {"b"}


def test_what_failed_for_want_of_room_is_staged_and_published_when_there_is_some(small_disk: Path) -> None:
    bucket = LocalBucket(small_disk / "root")
    filling = _fill(small_disk)
    assert _stage(bucket, Jsonl(), _rows(LARGE, 20))["large"].unavailable
    filling.unlink()
    report = _stage(bucket, Jsonl(), _rows(LARGE, 20))["large"]
    assert report.error is None
    (file,) = report.parts["files"]["files"]
    staged = StagedFile(file["staged"], file["key"], file["sha256"], file["size"])
    _fill(small_disk)
    # A link needs no room for the file's bytes, and a folder of its own is all that may be missing.
    try:
        assert bucket.publish([staged]) == [Published.DONE]
    except Unavailable:
        filling.unlink()
        assert bucket.publish([staged]) == [Published.DONE]
    assert list(bucket.keys("")) == [file["key"]]


def test_an_object_is_created_whole_or_not_at_all(small_disk: Path) -> None:
    bucket = LocalBucket(small_disk / "root")
    filling = _fill(small_disk)
    with pytest.raises(Unavailable, match="the disk is full"):
        bucket.create("_holdfast/commits/in/a/1.json", b"x" * CHUNK)
    filling.unlink()
    assert bucket.read("_holdfast/commits/in/a/1.json") is None
    assert bucket.create("_holdfast/commits/in/a/1.json", b"x" * CHUNK)
