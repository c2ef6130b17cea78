"""The source `objects` on the node: what it finds, where it cuts, how splits share tasks."""

from __future__ import annotations

import hashlib
import itertools
import os
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from holdfast.errors import BatchError, Refused, Unavailable
from holdfast.flow.batch import Cut, Done, Limits
from holdfast.leases.lease import Lease, Partition, Progress
from holdfast.sources.objects import PLUGIN
from holdfast.sources.objects.object_ref import FileRef
from holdfast.sources.objects.scan_config import Selection
from holdfast.sources.objects.source import ObjectsSource
from holdfast.sources.objects.splits import Split, divide, pack


def source_of(folder: Path, **settings: Any) -> ObjectsSource:
    built = PLUGIN.build(PLUGIN.config(folder=folder, **settings))
    assert isinstance(built, ObjectsSource)
    return built


def put(folder: Path, *paths: str, data: bytes = b"x\n") -> None:
    for path in paths:
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(data)


def found_by(source: ObjectsSource) -> list[Partition]:
    return [found for found in source.discover({}) if found is not None]


def leases(source: ObjectsSource) -> list[Lease]:
    return [Lease("orders", found.key, spec=found.spec) for found in found_by(source)]


# --- finding -------------------------------------------------------------------------------------------------------


def test_files_are_found_in_order_of_their_paths_without_hidden_and_unfinished_ones(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    put(folder, "b", "a/2", "a/1", "a-b", "a/c/3", "_staging/x", ".git/x", "a/_tmp", "a/.part", "z/_x/y")
    (folder / "link").symlink_to(folder / "b")
    (folder / "loop").symlink_to(folder)
    os.mkfifo(folder / "pipe")
    assert [found.key for found in found_by(source_of(folder))] == ["in|a-b", "in|a/1", "in|a/2", "in|a/c/3", "in|b"]


def test_the_spec_carries_what_is_needed_to_read_the_object(tmp_path: Path) -> None:
    put(tmp_path / "in", "2024/a|b.jsonl", data=b"12345")
    (found,) = found_by(source_of(tmp_path / "in"))
    facts = (tmp_path / "in" / "2024" / "a|b.jsonl").stat()
    assert found.spec == {
        "folder": str(tmp_path / "in"),
        "path": "2024/a|b.jsonl",
        "size": 5,
        "mtime_ns": facts.st_mtime_ns,
    }


def test_a_name_that_is_no_text_has_a_key_of_its_own_and_can_be_read(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    odd = os.fsdecode(b"a\xff\xfe")
    put(folder, odd, data=b"12")
    source = source_of(folder)
    (lease,) = leases(source)
    assert lease.key == "in|/61fffe"
    lease.key.encode()
    assert source.name(lease).label == hashlib.sha256(b"a\xff\xfe").hexdigest()[:32]
    assert source.plan([lease], Limits()) == [Cut({"offset": 0}, {"offset": 2}, last=True, size=2)]


def test_a_partition_is_called_by_its_folder_and_the_digest_of_its_path(tmp_path: Path) -> None:
    put(tmp_path / "in", "a/b")
    source = source_of(tmp_path / "in")
    (lease,) = leases(source)
    name = source.name(lease)
    assert (name.stream, name.label) == ("in", hashlib.sha256(b"a/b").hexdigest()[:32])


@pytest.mark.parametrize(
    ("include", "exclude", "chosen"),
    [
        (["**/*"], [], ["a.jsonl", "b.txt", "x/a.jsonl", "x/y/c.jsonl"]),
        (["*.jsonl"], [], ["a.jsonl"]),
        (["**/*.jsonl"], ["x/y/**"], ["a.jsonl", "x/a.jsonl"]),
        (["x/**/*.jsonl"], [], ["x/a.jsonl", "x/y/c.jsonl"]),
        (["*/a.jsonl"], [], ["x/a.jsonl"]),
        (["?.[jt]*"], [], ["a.jsonl", "b.txt"]),
        (["[!a].*"], [], ["b.txt"]),
        (["**"], ["**/*.jsonl"], ["b.txt"]),
        (["x"], [], []),
    ],
)
def test_patterns(include: list[str], exclude: list[str], chosen: list[str]) -> None:
    selection = Selection(include, exclude)
    assert [path for path in ["a.jsonl", "b.txt", "x/a.jsonl", "x/y/c.jsonl"] if path in selection] == chosen


@given(text=st.text(alphabet="ab.*?[]()+|^$\\-!/{}", max_size=12), path=st.text(alphabet="ab.[]()/+", max_size=8))
def test_any_text_is_a_pattern_or_refused_as_none(text: str, path: str) -> None:
    with suppress(ValueError):
        assert (path in Selection([text])) in {True, False}


def test_a_folder_that_is_not_there_or_cannot_be_listed_is_an_error_and_not_empty(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    missing = source_of(tmp_path / "missing")
    with pytest.raises(Refused, match=f"the folder {tmp_path}/missing does not exist"):
        missing.open()
    with pytest.raises(Unavailable, match="does not exist"):
        list(missing.discover({}))
    put(tmp_path, "file")
    with pytest.raises(Refused, match="not a folder"):
        source_of(tmp_path / "file").open()
    source_of(tmp_path).open()

    def no_permission(path: Any) -> Any:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(os, "scandir", no_permission)
    with pytest.raises(Refused, match=f"no permission to list the folder {tmp_path}"):
        source_of(tmp_path).open()
    with pytest.raises(Unavailable, match="Permission denied"):
        list(source_of(tmp_path).discover({}))


def test_only_a_source_that_follows_scans_a_second_time(tmp_path: Path) -> None:
    assert source_of(tmp_path).rediscover_after is None
    assert source_of(tmp_path, scan="follow", interval="5s").rediscover_after == 5


# --- planning ------------------------------------------------------------------------------------------------------


def planned(source: ObjectsSource, lease: Lease, position: Any, limits: Limits) -> Any:
    (plan,) = source.plan([replace(lease, progress=Progress(position=position))], limits)
    return plan


def test_a_large_file_is_cut_into_equal_batches_that_cover_it(tmp_path: Path) -> None:
    put(tmp_path, "a", data=b"x" * 1001)
    source = source_of(tmp_path)
    (lease,) = leases(source)
    position, sizes = None, []
    while isinstance(plan := planned(source, lease, position, Limits(max_bytes=250)), Cut):
        assert plan.start == (position or {"offset": 0})
        position = plan.end
        sizes.append(plan.size)
        assert plan.last == (plan.end == {"offset": 1001})
    assert plan == Done()
    assert sizes == [201, 200, 200, 200, 200]


@pytest.mark.parametrize(
    ("name", "data", "compression", "cuts"),
    [
        ("a.gz", b"x" * 100, "auto", 1),
        ("a.GZ", b"x" * 100, "auto", 1),
        ("a", b"\x1f\x8b" + b"x" * 98, "auto", 1),
        ("a", b"x" * 100, "auto", 2),
        ("a", b"x" * 100, "gzip", 1),
        ("a.gz", b"x" * 100, "none", 2),
    ],
)
def test_a_gzipped_file_is_one_batch(tmp_path: Path, name: str, data: bytes, compression: str, cuts: int) -> None:
    put(tmp_path, name, data=data)
    source = source_of(tmp_path, compression=compression)
    (lease,) = leases(source)
    plan = planned(source, lease, None, Limits(max_bytes=50))
    assert (plan.last, plan.size) == ((True, 100) if cuts == 1 else (False, 50))


def test_an_empty_file_is_done(tmp_path: Path) -> None:
    put(tmp_path, "a", "b.gz", data=b"")
    source = source_of(tmp_path)
    assert source.plan(leases(source), Limits()) == [Done(), Done()]


def test_a_file_that_vanished_or_changed_is_an_error_that_says_so(tmp_path: Path) -> None:
    put(tmp_path, "gone", "grown", "touched", "fine")
    source = source_of(tmp_path)
    found = {lease.spec["path"]: lease for lease in leases(source)}
    (tmp_path / "gone").unlink()
    put(tmp_path, "grown", data=b"x\ny\n")
    os.utime(tmp_path / "touched", ns=(1, 1))
    gone, grown, touched, fine = source.plan([found[name] for name in ("gone", "grown", "touched", "fine")], Limits())
    assert isinstance(gone, BatchError)
    assert "vanished" in str(gone)
    assert isinstance(grown, BatchError)
    assert "had 2 bytes and has 4" in str(grown)
    assert isinstance(touched, BatchError)
    assert isinstance(fine, Cut)


@pytest.mark.parametrize("position", [{"offset": "3"}, {"offset": -1}, {}, 3, "x"])
def test_a_position_that_cannot_be_read_is_no_fresh_start(tmp_path: Path, position: Any) -> None:
    put(tmp_path, "a")
    source = source_of(tmp_path)
    (lease,) = leases(source)
    plan = planned(source, lease, position, Limits())
    assert isinstance(plan, BatchError)
    assert "not a byte offset" in str(plan)


# --- splits --------------------------------------------------------------------------------------------------------


def whole(batch: str, start: int, end: int, *, gzipped: bool = False) -> Split:
    return Split(batch, FileRef("/in/a", end, 0), start, end, gzipped)


@given(start=st.integers(0, 1000), length=st.integers(1, 1000), most=st.integers(1, 300))
def test_splits_cover_their_batch_without_gap_and_none_is_too_large(start: int, length: int, most: int) -> None:
    splits = divide(whole("b", start, start + length), most)
    assert splits[0].start == start
    assert splits[-1].end == start + length
    assert all(split.end == other.start for split, other in itertools.pairwise(splits))
    assert max(split.end - split.start for split in splits) <= most


def test_a_gzipped_object_is_never_cut() -> None:
    assert len(divide(whole("b", 0, 1000, gzipped=True), 10)) == 1


batches = st.lists(st.tuples(st.integers(1, 5000), st.booleans()), max_size=30)


@given(sizes=batches, cores=st.integers(1, 8))
def test_tasks_hold_every_split_once_and_no_two_of_one_batch(sizes: list[tuple[int, bool]], cores: int) -> None:
    splits = [
        divide(whole(f"b{number}", 0, size << 20, gzipped=gzipped), 64 << 20)
        for number, (size, gzipped) in enumerate(sizes)
    ]
    packed = pack(splits, cores)
    assert sorted(split for task in packed for split in map(repr, task)) == sorted(
        split for batch in splits for split in map(repr, batch)
    )
    assert all(task for task in packed)
    for task in packed:
        assert len({split.batch for split in task}) == len(task)


def test_equal_files_are_spread_evenly() -> None:
    packed = pack([divide(whole(f"b{number}", 0, 100 << 20), 64 << 20) for number in range(8)], 2)
    assert [len(task) for task in packed] == [2] * 8


def test_many_small_objects_share_as_many_tasks_as_there_are_cores() -> None:
    packed = pack([[whole(f"b{number}", 0, 1000)] for number in range(100)], 2)
    assert [len(task) for task in packed] == [50, 50]


def test_there_are_no_tasks_without_splits() -> None:
    assert pack([], 2) == []


# --- settings ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "wrong",
    [{"codec": "csv"}, {"codec": "text", "schema": "a INT"}, {"interval": "0s"}, {"include": [""]}, {"path": "x"}],
)
def test_settings_that_make_no_sense_are_refused(tmp_path: Path, wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        PLUGIN.config(folder=tmp_path, **wrong)
