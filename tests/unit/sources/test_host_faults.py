"""Faults of the host while an object is planned or read mean that the source is unavailable; they count no attempt."""

from __future__ import annotations

import errno
import io
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast.errors import BatchError, Unavailable
from holdfast.events import Unreachable
from holdfast.flow.batch import Cut, Limits, Wait
from holdfast.flow.fault import BATCH, UNAVAILABLE, decode_fault
from holdfast.flow.source import FAULT_COLUMN
from holdfast.leases.lease import Lease
from holdfast.sources.objects import PLUGIN
from holdfast.sources.objects.codecs import codec_of
from holdfast.sources.objects.config import CodecName
from holdfast.sources.objects.object_ref import FileRef
from holdfast.sources.objects.splits import Split
from holdfast.sources.objects.task_rows import ObjectRows
from tests.unit.sources.test_compression import packed
from tests.unit.sources.test_corrupt import LINES, SCHEMA, _avro, _csv, _parquet

HOST_FAULTS = [
    errno.EMFILE,
    errno.ENFILE,
    errno.EIO,
    errno.ESTALE,
    errno.ENOSPC,
    errno.ETIMEDOUT,
    errno.ENOMEM,
    errno.EHOSTDOWN,
    errno.ECONNRESET,
]
OBJECTS_FAULTS = [errno.ENOENT, errno.EACCES, errno.EISDIR, errno.ELOOP]


def _raising(code: int) -> Callable[..., Any]:
    def fail(*_args: object, **_settings: object) -> Any:
        raise OSError(code, os.strerror(code))

    return fail


@pytest.fixture
def objects(tmp_path: Path) -> Path:
    (tmp_path / "in").mkdir()
    return tmp_path / "in"


def _ref(folder: Path, name: str, data: bytes) -> FileRef:
    file = folder / name
    file.write_bytes(data)
    facts = file.stat()
    return FileRef(str(file), facts.st_size, facts.st_mtime_ns)


def _kinds(ref: FileRef, codec: CodecName = "jsonl", *, salvage: bool = True) -> list[str]:
    split = Split("b", ref, 0, ref.size, undivided=True, salvage=salvage)
    read = ObjectRows([[split]], codec_of(codec, SCHEMA, 1 << 20), "auto", None)
    faults = [text for rows in read.rows(0) for text in rows.column(FAULT_COLUMN).to_pylist() if text]
    return [decode_fault(text).kind for text in faults]


@pytest.mark.parametrize("code", HOST_FAULTS, ids=errno.errorcode.get)
def test_an_object_that_the_host_cannot_open_is_unavailable(
    objects: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    ref = _ref(objects, "a.jsonl", LINES)
    monkeypatch.setattr(Path, "open", _raising(code))
    assert _kinds(ref) == [UNAVAILABLE]


@pytest.mark.parametrize("code", OBJECTS_FAULTS, ids=errno.errorcode.get)
def test_what_is_wrong_with_the_object_itself_counts_an_attempt(
    objects: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    ref = _ref(objects, "a.jsonl", LINES)
    monkeypatch.setattr(Path, "open", _raising(code))
    assert _kinds(ref) == [BATCH]


class _FailingFile(io.FileIO):
    """A file whose disk fails from its second read on."""

    reads = 0

    def read(self, size: int | None = -1, /) -> bytes:
        _FailingFile.reads += 1
        if _FailingFile.reads > 1:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return super().read(-1 if size is None else min(size, 64) if size > 0 else 64)


FILES: dict[str, tuple[CodecName, Callable[[], bytes]]] = {
    "a.jsonl": ("jsonl", lambda: LINES),
    "a.jsonl.gz": ("jsonl", lambda: packed(LINES, "gzip")),
    "a.jsonl.bz2": ("jsonl", lambda: packed(LINES, "bzip2")),
    "a.jsonl.zst": ("jsonl", lambda: packed(LINES, "zstd")),
    "a.jsonl.snappy": ("jsonl", lambda: packed(LINES, "snappy")),
    "a.csv": ("csv", _csv),
    "a.json": ("json", lambda: b"[" + LINES.replace(b"\n", b",")[:-1] + b"]"),
    "a.parquet": ("parquet", _parquet),
    "a.avro": ("avro", _avro),
}


@pytest.mark.parametrize("name", FILES)
def test_a_disk_that_fails_in_the_middle_of_an_object_is_no_damage_of_it(
    objects: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    codec, data = FILES[name]
    ref = _ref(objects, name, data())
    assert _kinds(ref, codec) == []
    _FailingFile.reads = 0
    monkeypatch.setattr(Path, "open", lambda path, *_args, **_settings: _FailingFile(path))
    assert _kinds(ref, codec)[-1:] == [UNAVAILABLE]


@pytest.mark.parametrize("code", HOST_FAULTS, ids=errno.errorcode.get)
def test_an_object_that_the_host_cannot_look_at_is_planned_later(
    objects: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    (objects / "a.jsonl").write_bytes(LINES)
    source = PLUGIN.build(PLUGIN.config(folder=objects))
    (found,) = [partition for partition in source.discover({}) if partition is not None]
    lease = Lease("p", found.key, spec=found.spec)
    assert isinstance(source.plan([lease], Limits())[0], Cut)
    monkeypatch.setattr(os, "stat", _raising(code))
    monkeypatch.setattr(Path, "stat", _raising(code))
    with pytest.raises(Unavailable):
        source.plan([lease], Limits())


def test_a_bad_block_below_one_file_keeps_no_others_waiting(objects: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (objects / "bad.jsonl").write_bytes(LINES)
    (objects / "good.jsonl").write_bytes(LINES)
    source = PLUGIN.build(PLUGIN.config(folder=objects))
    leases = [Lease("p", found.key, spec=found.spec) for found in source.discover({}) if found is not None]
    look = Path.stat

    def stat(path: Path, **settings: Any) -> os.stat_result:
        return _raising(errno.EIO)() if path.name == "bad.jsonl" else look(path, **settings)

    monkeypatch.setattr(Path, "stat", stat)
    assert [type(plan) for plan in source.plan(leases, Limits())] == [Wait, Cut]
    (notice,) = source.noticed()
    assert isinstance(notice, Unreachable)
    assert "bad.jsonl: Input/output error" in notice.error
    assert source.noticed() == []


def test_a_file_that_is_not_there_any_more_is_an_error_of_the_object(objects: Path) -> None:
    ref = _ref(objects, "a.jsonl", LINES)
    (objects / "a.jsonl").unlink()
    with pytest.raises(BatchError, match="vanished"):
        ref.check()
    assert _kinds(ref) == [BATCH]
