"""Objects as files of a folder that all nodes share, on a file system whose locks (flock) work across nodes.

A write holds the lock of its object while it compares, writes a draft and renames it: readers see the old or the new
state, and the lock of a process that dies is released. What a call has written survives a power cut. The tag is the
file's mtime, which every write increases, even if the clock is coarse.
"""

from __future__ import annotations

import errno
import fcntl
import os
import random
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

from holdfast.buckets.folders import Folders
from holdfast.errors import AnswerLost, StoreError, StoreUnavailable
from holdfast.stores._lock_watchdog import WATCHDOG
from holdfast.stores._server_clock import ServerClock
from holdfast.stores.object.objects import Changed, Found, Input, Result, TaggedObjects

THREADS = 8
FIRST_PAUSE, LONGEST_PAUSE = 0.001, 0.1
STEP = 1_000
"""Minimum increase of a file's mtime in nanoseconds: all current file systems keep microseconds."""


class FolderObjects(TaggedObjects):
    """Files below a folder, which is created with the first object; its parent must exist."""

    def __init__(
        self, root: str | os.PathLike[str], patience: float = 10.0, above: str | os.PathLike[str] = "/"
    ) -> None:
        """`patience`: seconds to wait for another process that writes the same object."""
        self._root = Path(root).absolute()
        self._above = Path(above).absolute()
        self._patience = patience
        self._clock = ServerClock()
        self._marker: Path | None = None
        self._pool: ThreadPoolExecutor | None = None

    @property
    def location(self) -> str:
        return str(self._root)

    def check(self) -> None:
        # Made here, it would be a store of this host alone if a mount is missing.
        with self._store_errors(f"look for {self._above}"):
            there = self._above.is_dir()
        if not there:
            raise StoreError(f"there is no folder {self._above}; make it, or mount it, before nodes start")

    def require(self, marker: str) -> None:
        self._marker = self._root / marker

    def tags(self, prefix: str) -> dict[str, str]:
        with self._store_errors(f"list {self._root / prefix}"):
            found = dict(_walk(self._root / prefix, prefix))
            # Looked for afterwards: a mount that vanishes meanwhile shows a part of its files, or none.
            self._require_marker()
            return found

    def read(self, name: str) -> Found | None:
        with self._store_errors(f"read {self._root / name}"):
            try:
                with (self._root / name).open("rb") as file:
                    return Found(file.read(), _tag(os.fstat(file.fileno())))
            except FileNotFoundError:
                self._require_marker()
                return None

    def write(self, name: str, data: bytes, tag: str | None) -> str:
        path = self._root / name
        draft = self._root / "drafts" / uuid.uuid4().hex
        with self._store_errors(f"write {path}"):
            self._require_marker()
            try:
                self._write_draft(draft, data)
                with self._locked(name):
                    return self._replace(draft, path, tag)
            finally:
                _drop(draft)

    def _require_marker(self) -> None:
        # A mount that is gone leaves an empty folder, which would read as an empty store.
        if self._marker is not None and not self._marker.exists():
            raise StoreUnavailable(f"{self._marker} no longer exists; is {self._above} still mounted?")

    def _write_draft(self, draft: Path, data: bytes) -> None:
        with Folders().creating(draft) as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
            self._clock.hear(os.fstat(file.fileno()).st_mtime)

    def _replace(self, draft: Path, path: Path, tag: str | None) -> str:
        present = _stat(path)
        if (None if present is None else _tag(present)) != tag:
            raise Changed(path.name)
        made = draft.stat()
        if present is not None and made.st_mtime_ns < present.st_mtime_ns + STEP:
            os.utime(draft, ns=(made.st_atime_ns, present.st_mtime_ns + STEP))
            made = draft.stat()
        folders = Folders()
        folders.make(path.parent)
        try:
            draft.rename(path)
            folders.sync()
            self._require_marker()
        except (OSError, StoreUnavailable) as error:
            # A file server may have done what it did not confirm.
            raise AnswerLost(f"cannot make sure that {path} stays: {error}") from error
        return _tag(made)

    def delete(self, name: str, tag: str) -> None:
        path = self._root / name
        with suppress(OSError, StoreUnavailable), self._locked(name):
            present = _stat(path)
            if present is not None and _tag(present) == tag:
                path.unlink()

    def discard(self, name: str) -> None:
        with suppress(OSError):
            (self._root / name).unlink(missing_ok=True)
            self._lock_path(name).unlink(missing_ok=True)

    @contextmanager
    def _locked(self, name: str) -> Iterator[None]:
        """Hold the lock of this object. Lock files are never deleted: a new file would be a different lock."""
        path = self._lock_path(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        with WATCHDOG.holding(self._patience):
            number = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                self._lock(number, name)
                yield
            finally:
                with suppress(OSError):  # the descriptor is free whatever it says
                    os.close(number)

    def _lock(self, number: int, name: str) -> None:
        give_up_at = time.monotonic() + self._patience
        pause = FIRST_PAUSE
        while True:
            try:
                fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() > give_up_at:
                    held = f"{self._root / name} is locked by a process that does not finish"
                    raise StoreUnavailable(held) from None
            else:
                return
            time.sleep(pause * random.random())
            pause = min(2 * pause, LONGEST_PAUSE)

    def _lock_path(self, name: str) -> Path:
        return self._root / "locks" / name

    def each(self, do: Callable[[Input], Result], inputs: Iterable[Input]) -> list[Result]:
        given = list(inputs)
        if len(given) < 2:
            return [do(item) for item in given]
        if self._pool is None:
            self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="holdfast-folder")
        futures = [self._pool.submit(do, item) for item in given]
        errors = [error for error in [future.exception() for future in futures] if error is not None]
        if errors:
            raise errors[0]
        return [future.result() for future in futures]

    def now(self) -> float:
        now = self._clock.now()
        if now is None:
            draft = self._root / "drafts" / uuid.uuid4().hex
            with self._store_errors(f"write {draft}"):
                self._require_marker()
                try:
                    self._write_draft(draft, b"")
                finally:
                    _drop(draft)
            now = self._clock.now()
        if now is None:
            raise StoreUnavailable(f"{self._root} does not support file modification times")
        return now

    def close(self) -> None:
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown()

    @contextmanager
    def _store_errors(self, what: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise StoreUnavailable(f"cannot {what}: {_reason(error)}") from error


def _walk(folder: Path, at: str) -> Iterator[tuple[str, str]]:
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    yield from _walk(folder / entry.name, f"{at}{entry.name}/")
                else:
                    with suppress(FileNotFoundError):  # deleted just now
                        yield at + entry.name, _tag(entry.stat(follow_symlinks=False))
    except FileNotFoundError:
        return


def _drop(draft: Path) -> None:
    # What was written is written, whether or not its draft can be deleted.
    with suppress(OSError):
        draft.unlink(missing_ok=True)


def _stat(path: Path) -> os.stat_result | None:
    try:
        return path.stat()
    except FileNotFoundError:
        return None


def _tag(found: os.stat_result) -> str:
    return f"{found.st_mtime_ns}.{found.st_ino}"


def _reason(error: OSError) -> str:
    if error.errno in {errno.ENOSPC, errno.EDQUOT}:
        return "the disk is full"
    return error.strerror or str(error)
