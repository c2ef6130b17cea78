"""What fails on the host of a store in files means that the store is away for now, and nothing is taken for written."""

from __future__ import annotations

import errno
import os
import resource
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from holdfast.errors import StoreUnavailable
from holdfast.leases.lease import Lease
from holdfast.leases.store import Outcome, Store, Swap
from holdfast.stores.object.folder import FolderObjects
from holdfast.stores.object.store import ObjectStore
from holdfast.stores.sqlite import SqliteStore
from holdfast.testing.rows import make_row, touched

DONE_LATER = (Outcome.OK, Outcome.CONFLICT)


def sqlite_store(folder: Path) -> Store:
    return SqliteStore(folder / "leases.db", busy_timeout=0.1)


def folder_store(folder: Path) -> Store:
    return ObjectStore(FolderObjects(folder / "store", patience=0.2, above=folder))


STORES = {"sqlite": sqlite_store, "folder": folder_store}


@pytest.fixture(params=STORES)
def make_store(request: pytest.FixtureRequest) -> Callable[[Path], Store]:
    return STORES[request.param]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of two megabytes."""
    disk = tmp_path / "disk"
    disk.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(disk)]
    if os.geteuid() != 0 or subprocess.run(command, capture_output=True, check=False).returncode != 0:
        pytest.skip("only root may mount a small disk")
    try:
        yield disk
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)


@contextmanager
def full(disk: Path) -> Iterator[None]:
    filler = disk / "filler"
    with filler.open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(bytes(4096))
    try:
        yield
    finally:
        filler.unlink()


@contextmanager
def without_free_descriptors() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    kept: list[int] = []
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 256), hard))
    try:
        with suppress(OSError):
            while True:
                kept.append(os.open(os.devnull, os.O_RDONLY))
        yield
    finally:
        for number in kept:
            os.close(number)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def tried(write: Callable[[], list[Outcome]]) -> list[Outcome]:
    """What a write comes to; one that is surely not applied counts as none."""
    try:
        return write()
    except StoreUnavailable:
        return []


def large(key: str) -> Lease:
    return make_row(key, spec={"text": "x" * 20_000})


def test_a_full_disk_means_that_the_store_is_away_until_there_is_room(
    small_disk: Path, make_store: Callable[[Path], Store]
) -> None:
    store = make_store(small_disk)
    store.open()
    assert store.add([make_row("a")]) == [Outcome.OK]
    with full(small_disk):
        outcomes = [tried(lambda key=key: store.add([large(f"b{key}")])) for key in range(40)]  # type: ignore[misc]
        assert outcomes[-1] in ([], [Outcome.UNKNOWN])
        assert [row.key for row in store.get([make_row("a").id]) if row] == ["a"]
    for key in range(40):
        assert store.add([large(f"b{key}")])[0] in DONE_LATER
    found = store.get([large(f"b{key}").id for key in range(40)])
    assert all(row is not None and row.unreadable is None for row in found)
    store.close()


def test_a_process_without_free_descriptors_waits_for_its_store(
    tmp_path: Path, make_store: Callable[[Path], Store]
) -> None:
    store = make_store(tmp_path)
    store.open()
    row = make_row("a")
    store.add([row])
    store.close()
    with without_free_descriptors(), pytest.raises(StoreUnavailable):
        store.swap([Swap(row.version, touched(row))])
    assert store.swap([Swap(row.version, touched(row))]) == [Outcome.OK]
    store.close()


def test_a_sqlite_file_whose_folder_goes_away_and_comes_back(tmp_path: Path) -> None:
    folder = tmp_path / "mounted"
    store = sqlite_store(folder)
    store.open()
    store.add([make_row("a")])
    store.close()
    folder.rename(tmp_path / "away")
    with pytest.raises(StoreUnavailable):
        store.get([make_row("a").id])
    (tmp_path / "away").rename(folder)
    assert store.get([make_row("a").id])[0] is not None
    store.close()


@pytest.mark.parametrize("code", [errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.ENOSPC, errno.EMFILE])
def test_a_folder_that_fails_at_any_call_is_away_and_nothing_is_taken_for_written_or_not(
    code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("open", "rename", "unlink", "stat", "mkdir", "utime", "close", "fsync", "scandir"):
        folder = tmp_path / name
        folder.mkdir()
        store = folder_store(folder)
        store.open()
        row = make_row("a")
        store.add([row])
        with monkeypatch.context() as broken:
            _break(broken, name, code)
            outcome = tried(lambda: store.swap([Swap(row.version, touched(row))]))  # noqa: B023
            with suppress(StoreUnavailable):
                store.get([row.id])
        (present,) = store.get([row.id])
        assert present is not None
        written = present.version > row.version
        assert outcome in ([Outcome.UNKNOWN], [Outcome.OK] if written else []), name
        store.close()


def _break(broken: pytest.MonkeyPatch, name: str, code: int) -> None:
    """That call of the system does its work and fails then, as one over a network may."""
    original = getattr(os, name)

    def failing(*arguments: object, **named: object) -> object:
        done = original(*arguments, **named)
        if name in {"open", "scandir"}:
            os.close(done) if name == "open" else done.close()
        raise OSError(code, os.strerror(code))

    broken.setattr(os, name, failing)
