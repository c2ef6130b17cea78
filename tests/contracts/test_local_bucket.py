from __future__ import annotations

import errno
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast.buckets.bucket import Bucket, Published, StagedFile
from holdfast.buckets.local import LocalBucket
from holdfast.errors import Refused, Unavailable
from holdfast.sinks.files.sink import FilesSink
from holdfast.testing.buckets import KEY, BucketBehaviour, staged
from holdfast.testing.flows import MemoryBucket

NO_HANDLE = re.compile("not a staged object|not a key")


class TestLocalBucket(BucketBehaviour):
    @pytest.fixture(autouse=True)
    def one_root(self, tmp_path: Path) -> None:
        self.root = tmp_path / "root"

    def make_bucket(self) -> Bucket:
        return LocalBucket(self.root)


class TestMemoryBucket(BucketBehaviour):
    """The fake behaves as the real ones do."""

    has_locks = False
    across_processes = False

    @pytest.fixture(autouse=True)
    def one_root(self) -> None:
        self.root = MemoryBucket()

    def make_bucket(self) -> Bucket:
        return self.root


@pytest.fixture
def bucket(tmp_path: Path) -> LocalBucket:
    return LocalBucket(tmp_path / "root")


# --- what leads out of the root ------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", ["../x", "a/../../x", "/etc/x", "a//b", "", ".", "a/./b", "a\0b", "a/"])
def test_what_is_no_key_is_refused(bucket: LocalBucket, key: str) -> None:
    with pytest.raises(ValueError, match="not a key"):
        bucket.create(key, b"")
    with pytest.raises(ValueError, match="not a key"):
        bucket.read(key)


def test_a_folder_that_is_a_link_out_of_the_root_is_refused(bucket: LocalBucket, tmp_path: Path) -> None:
    bucket.create("a", b"")
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "secret").write_text("x")
    (tmp_path / "root" / "way").symlink_to(tmp_path / "outside")
    with pytest.raises(Unavailable, match="leads out of"):
        bucket.create("way/x", b"")
    with pytest.raises(Unavailable, match="leads out of"):
        bucket.read("way/secret")
    with pytest.raises(Unavailable, match="leads out of"):
        list(bucket.keys("way/"))
    assert list(bucket.keys("")) == ["a"]
    assert [path.name for path in (tmp_path / "outside").iterdir()] == ["secret"]


def test_a_root_that_is_a_link_is_fine(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    assert LocalBucket(tmp_path / "link").create(KEY, b"x")
    assert (tmp_path / "real" / KEY).read_bytes() == b"x"


def test_a_link_or_a_folder_at_the_final_key_is_foreign(bucket: LocalBucket, tmp_path: Path) -> None:
    link, folder = staged(bucket, b"x", key="a/link"), staged(bucket, b"x", key="a/folder", batch="b2")
    (tmp_path / "root" / "a" / "folder").mkdir(parents=True)
    (tmp_path / "same").write_bytes(b"x")
    (tmp_path / "root" / "a" / "link").symlink_to(tmp_path / "same")
    assert bucket.publish([link, folder]) == [Published.FOREIGN] * 2


def test_a_handle_can_never_name_a_published_object(bucket: LocalBucket) -> None:
    bucket.create(KEY, b"x")
    for handle in (KEY, "_holdfast/owner.json", "_holdfast/staging/../../" + KEY, {"place": KEY}, None):
        with pytest.raises(ValueError, match=NO_HANDLE):
            bucket.discard([handle])
        with pytest.raises(ValueError, match=NO_HANDLE):
            bucket.publish([StagedFile(handle, "b", "")])
    assert bucket.read(KEY) == b"x"


# --- durability ----------------------------------------------------------------------------------------------------


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """What is made durable or gets a name, in order."""
    seen: list[tuple[str, str]] = []

    def noted(name: str, path_of: Callable[..., str]) -> None:
        real = getattr(os, name)

        def call(*args: Any, **options: Any) -> Any:
            seen.append((name, path_of(*args)))
            return real(*args, **options)

        monkeypatch.setattr(os, name, call)

    noted("fsync", lambda number: str(Path(f"/proc/self/fd/{number}").readlink()))
    noted("link", lambda _from, to: str(to))
    for forbidden in ("rename", "replace"):
        monkeypatch.setattr(os, forbidden, lambda *_: pytest.fail("a rename would overwrite"))
    return seen


def test_staged_data_and_all_folders_above_it_are_durable_before_close_returns(
    bucket: LocalBucket, tmp_path: Path, calls: list[tuple[str, str]]
) -> None:
    file = staged(bucket, b"x")
    synced = [path for name, path in calls if name == "fsync"]
    path = tmp_path / "root" / str(file.handle)
    above = [folder for folder in path.parents if folder.is_relative_to(tmp_path)]
    assert synced[0] == str(path)
    assert set(map(str, above)) == set(synced[1:])


def test_published_names_are_durable_before_the_call_returns_each_folder_once(
    bucket: LocalBucket, tmp_path: Path, calls: list[tuple[str, str]]
) -> None:
    files = [staged(bucket, b"x", key=f"a/{number}", batch=f"b{number}") for number in range(20)]
    calls.clear()
    assert bucket.publish(files) == [Published.DONE] * 20
    assert [name for name, _ in calls[:20]] == ["link"] * 20
    assert sorted(calls[20:]) == [("fsync", str(tmp_path / "root")), ("fsync", str(tmp_path / "root" / "a"))]


def test_an_object_is_created_complete_and_durable(
    bucket: LocalBucket, tmp_path: Path, calls: list[tuple[str, str]]
) -> None:
    bucket.create("warm/up", b"")
    calls.clear()
    bucket.create("warm/x", b"all of it")
    (draft, synced), (linked, path), *folders = [(path, name) for name, path in calls]
    assert (synced, path) == ("fsync", "link")
    assert "_holdfast/staging/." in draft
    assert linked == str(tmp_path / "root" / "warm" / "x")
    assert folders == [(str(tmp_path / "root" / "warm"), "fsync")]


def test_nothing_is_left_of_drafts_and_discarded_data(bucket: LocalBucket, tmp_path: Path) -> None:
    file = staged(bucket, b"x")
    bucket.create(KEY, b"y")
    bucket.create(KEY, b"z")
    bucket.discard([file.handle])
    left = [path for path in (tmp_path / "root").rglob("*") if path.is_file()]
    assert left == [tmp_path / "root" / KEY]
    assert list((tmp_path / "root" / "_holdfast" / "staging").iterdir()) == []


def test_a_repeated_request_of_a_network_mount_is_no_defeat(
    bucket: LocalBucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.link

    def answered_twice(*args: Any) -> None:
        real(*args)
        raise FileExistsError

    monkeypatch.setattr(os, "link", answered_twice)
    assert bucket.create(KEY, b"mine")


# --- trouble -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "number", "said"),
    [
        ("fsync", errno.ENOSPC, "the disk is full"),
        ("open", errno.EACCES, "permission denied"),
        ("open", errno.EROFS, "read-only"),
        ("link", errno.EPERM, "hard links are needed"),
        ("link", errno.EXDEV, "another file system"),
    ],
)
def test_trouble_is_told_so_that_a_person_can_act(
    bucket: LocalBucket, monkeypatch: pytest.MonkeyPatch, call: str, number: int, said: str
) -> None:
    def fail(*_args: Any, **_options: Any) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, call, fail)
    with pytest.raises(Unavailable, match=said):
        bucket.create(KEY, b"x")
    with pytest.raises(Unavailable, match=said):
        bucket.publish([staged(bucket, b"x")])


def test_a_disk_that_fills_up_while_writing_is_told(bucket: LocalBucket) -> None:
    writer = bucket.stage("_holdfast/staging/x", KEY)
    with Path("/dev/full").open("wb") as full:
        os.dup2(full.fileno(), writer._file.fileno())
    with pytest.raises(Unavailable, match="the disk is full"):
        writer.write(b"x" * 10_000_000)
    with pytest.raises(Unavailable, match="an earlier write has failed"):
        writer.close()


# --- one process ---------------------------------------------------------------------------------------------------

HOLDER = """
import signal, sys
from holdfast.buckets.local import LocalBucket
from holdfast.sinks.files.sink import FilesSink
FilesSink("files", LocalBucket(sys.argv[1])).open("orders", durable=sys.argv[2] == "durable")
print("open", flush=True)
signal.pause()
"""


def holder(root: Path, store: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", HOLDER, str(root), store]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "open\n"
    return process


@pytest.mark.parametrize(("theirs", "durable"), [("memory", False), ("memory", True), ("durable", False)])
def test_a_store_in_memory_has_its_root_for_one_live_process(tmp_path: Path, theirs: str, *, durable: bool) -> None:
    with holder(tmp_path, theirs) as process:
        sink = FilesSink("files", LocalBucket(tmp_path))
        with pytest.raises(Refused, match="sqlite"):
            sink.open("orders", durable=durable)
        process.send_signal(signal.SIGKILL)
        process.wait()
        sink.open("orders", durable=durable)
        sink.close()


def test_processes_with_durable_stores_share_a_root(tmp_path: Path) -> None:
    with holder(tmp_path, "durable") as process:
        sink = FilesSink("files", LocalBucket(tmp_path))
        sink.open("orders", durable=True)
        sink.close()
        process.kill()


def test_a_closed_sink_lets_the_next_one_in(tmp_path: Path) -> None:
    first, second = (FilesSink("files", LocalBucket(tmp_path)) for _ in range(2))
    first.open("orders", durable=False)
    with pytest.raises(Refused):
        second.open("orders", durable=False)
    first.close()
    second.open("orders", durable=False)
    second.close()
