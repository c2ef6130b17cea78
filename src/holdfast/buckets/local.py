"""A bucket on a file system: staged as hidden files, published by hard link, never by rename.

A link fails when the name exists, so nothing is overwritten, and the file appears with all of its bytes at once. What a
call has written survives a power cut: files are fsynced before they get their final name, and their folders before the
call returns. Several processes may use one root; on a network mount, links must be atomic.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import stat
import uuid
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from io import BufferedReader
from pathlib import Path
from typing import BinaryIO

from holdfast.buckets.bucket import Bucket, Published, StagedFile
from holdfast.buckets.folders import Folders, walk
from holdfast.errors import Refused, Unavailable
from holdfast.flow.names import OURS
from holdfast.leases.lease import Json

STAGING = f"{OURS}/staging/"
LOCK = f"{OURS}/lock"

_REASONS = {
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "the disk quota is used up",
    errno.EACCES: "permission denied",
    errno.EPERM: "the file system or its permissions allow no such thing; hard links are needed",
    errno.EROFS: "the file system is read-only",
    errno.EXDEV: "it lies on another file system than the staging folder",
    errno.EMFILE: "this process has too many files open",
    errno.ELOOP: "a symbolic link is there",
}


class LocalBucket(Bucket):
    """A folder. It is created with the first object."""

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self._root = Path(root).absolute()

    def create(self, key: str, data: bytes) -> bool:
        path = self._path(key)
        with _errors_of(f"create {path}"):
            draft = self._draft(data)
            try:
                return _link_durably(draft, path, Folders())
            finally:
                draft.unlink(missing_ok=True)

    def _draft(self, data: bytes) -> Path:
        """A durable hidden file with these bytes, to be linked to its final name."""
        # Names of staged objects never begin with a dot, so nobody takes a draft for one.
        draft = self._root / STAGING / f".{uuid.uuid4().hex}"
        with Folders().creating(draft) as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        return draft

    def read(self, key: str) -> bytes | None:
        path = self._path(key)
        with _errors_of(f"read {path}"):
            try:
                return _contents(path)
            except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
                return None

    def read_range(self, key: str, start: int, size: int) -> bytes | None:
        path = self._path(key)
        with _errors_of(f"read {path}"):
            try:
                with _opened(path) as file:
                    file.seek(start)
                    return file.read(size)
            except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
                return None

    def written_at(self, key: str) -> float | None:
        path = self._path(key)
        with _errors_of(f"look at {path}"):
            try:
                return path.stat().st_mtime
            except FileNotFoundError:
                return None

    def keys(self, prefix: str) -> Iterator[str]:
        with _errors_of(f"list {self._root}"):
            for key in self._walk(prefix):
                if not key.startswith(STAGING) and key != LOCK:
                    yield key

    def stage(self, staged_key: str, key: str) -> LocalWriter:  # noqa: ARG002 - a link needs no key before
        path = self._staged(staged_key)
        with _errors_of(f"write {path}"):
            folders = Folders()
            return LocalWriter(staged_key, path, folders.creating(path), folders)

    def has_staged(self, files: Sequence[StagedFile]) -> list[bool]:
        with _errors_of(f"look for staged files under {self._root}"):
            return [os.path.lexists(self._staged(file.handle)) for file in files]

    def publish(self, files: Sequence[StagedFile]) -> list[Published]:
        folders = Folders()
        with _errors_of(f"publish under {self._root}"):
            results = [self._publish(file, folders) for file in files]
            folders.sync()
        return results

    def _publish(self, file: StagedFile, folders: Folders) -> Published:
        staged, path = self._staged(file.handle), self._path(file.key)
        folders.make(path.parent)
        try:
            os.link(staged, path, follow_symlinks=False)
        except FileExistsError:
            return Published.DONE if _is_same_file(staged, path) else _compare(path, file.sha256)
        except FileNotFoundError:
            if os.path.lexists(staged):
                raise  # the final folder was deleted under us; try again later
            return _compare(path, file.sha256)
        return Published.DONE

    def discard(self, handles: Sequence[Json]) -> None:
        staging = self._root / STAGING
        for handle in handles:
            path = self._staged(handle)
            with _errors_of(f"delete {path}"), suppress(FileNotFoundError, NotADirectoryError):
                path.unlink()
            _remove_empty(path.parent, staging)

    def handle_size(self, staged_key: str, key: str) -> int:  # noqa: ARG002 - the handle is the staged key
        return len(staged_key) + 2

    def staged_under(self, prefix: str) -> Iterator[tuple[str, Json]]:
        with _errors_of(f"list {self._root / STAGING}"):
            for key in self._walk(prefix):
                if key.startswith(STAGING) and not key.startswith(f"{STAGING}."):
                    yield key, key

    def move(self, key: str, to: str) -> bool:
        old, new = self._path(key), self._path(to)
        with _errors_of(f"move {old} to {new}"):
            folders = Folders()
            folders.make(new.parent)
            try:
                os.link(old, new, follow_symlinks=False)
            except FileNotFoundError:
                return os.path.lexists(new)
            except FileExistsError:
                if not _is_same_file(old, new) and _contents(old) != _contents(new):
                    raise Refused(f"another file is at {new}; nothing was moved") from None
            folders.sync()
            old.unlink(missing_ok=True)
            _sync(old.parent)
            return True

    def lock(self, *, exclusive: bool) -> LocalLock | None:
        path = self._root / LOCK
        with _errors_of(f"lock {path}"):
            folders = Folders()
            folders.make(path.parent)
            folders.sync()
            file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)
            try:
                fcntl.flock(file, (fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH) | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(file)
                return None
            except OSError:
                os.close(file)
                raise
            return LocalLock(file)

    def _walk(self, prefix: str) -> Iterator[str]:
        folder, slash, _ = prefix.rpartition("/")
        start = self._path(f"{folder}/any").parent if slash else self._root
        return walk(start, folder + slash, prefix)

    # --- paths -------------------------------------------------------------------------------------------------

    def _path(self, key: str) -> Path:
        """The object's path. Raises `ValueError` for an invalid key, `Unavailable` if it leads out of the root."""
        if "\0" in key or any(part in {"", ".", ".."} for part in key.split("/")):
            raise ValueError(f"{key!r} is not a key")
        path = self._root / key
        root, folder = os.path.realpath(self._root), os.path.realpath(path.parent)
        if os.path.commonpath([root, folder]) != root:
            raise Unavailable(f"{path.parent} leads out of {self._root} through a symbolic link; remove the link")
        return path

    def _staged(self, handle: Json) -> Path:
        # A handle comes from a row of the store: it must never name a published object.
        if not isinstance(handle, str) or not handle.startswith(STAGING):
            raise ValueError(f"{handle!r} is not a staged object")
        return self._path(handle)


class LocalWriter:
    """A staged file. Everything written to it is hashed.

    A file that is not closed properly is deleted: on a full disk, the leftovers of one attempt would make the next one
    fail.
    """

    def __init__(self, staged_key: str, path: Path, file: BinaryIO, folders: Folders) -> None:
        self._staged_key = staged_key
        self._path = path
        self._file = file
        self._folders = folders
        self._digest = hashlib.sha256()
        self._size = 0
        self._whole = True
        self._drop = weakref.finalize(self, _drop, os.getpid(), path, file)

    def write(self, data: bytes | memoryview) -> int:
        # A file that lacks what could not be written must never be closed as if it were whole.
        whole, self._whole = self._whole, False
        with self._dropping(), _errors_of(f"write {self._path}"):
            self._file.write(data)
        self._digest.update(data)
        size = memoryview(data).nbytes
        self._size += size
        self._whole = whole
        return size

    def close(self) -> tuple[Json, int, str]:
        if not self._whole:
            raise Unavailable(f"cannot write {self._path}: an earlier write has failed")
        with self._dropping(), _errors_of(f"write {self._path}"), self._file:
            self._file.flush()
            os.fsync(self._file.fileno())
            self._folders.sync()
        self._drop.detach()
        return self._staged_key, self._size, self._digest.hexdigest()

    @contextmanager
    def _dropping(self) -> Iterator[None]:
        try:
            yield
        except BaseException:
            self._whole = False
            self._drop()
            raise


class LocalLock:
    """A lock of the operating system on one file; it ends with the process at the latest."""

    def __init__(self, file: int) -> None:
        self._file: int | None = file

    def close(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            os.close(file)


@contextmanager
def _errors_of(doing: str) -> Iterator[None]:
    """Turn an `OSError` into `Unavailable` with a readable reason."""
    try:
        yield
    except OSError as error:
        reason = _REASONS.get(error.errno or 0) or error.strerror or str(error)
        raise Unavailable(f"cannot {doing}: {reason}") from error


def _drop(maker: int, path: Path, file: BinaryIO) -> None:
    """Delete a staged file that no receipt names. Does nothing in a forked process."""
    if os.getpid() == maker:
        with suppress(OSError):
            path.unlink()
        with suppress(OSError):
            file.close()


def _link_durably(draft: Path, path: Path, folders: Folders) -> bool:
    """Link the draft to this name too; False if the name exists. The name is durable either way."""
    folders.make(path.parent)
    try:
        os.link(draft, path)
        won = True
    except FileExistsError:
        # A network mount may repeat a request that succeeded: two names of the draft mean that we have won.
        won = draft.stat().st_nlink > 1
    folders.sync()
    return won


def _sync(folder: Path) -> None:
    folders = Folders()
    folders.make(folder)
    folders.sync()


def _is_same_file(staged: Path, path: Path) -> bool:
    """Whether both names are links to one file, so that the bytes need not be compared."""
    try:
        return os.path.samestat(staged.lstat(), path.lstat())
    except FileNotFoundError:
        return False


def _compare(path: Path, sha256: str) -> Published:
    """Whether the file at that name has the committed bytes or other ones."""
    try:
        with _opened(path) as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
    except FileNotFoundError:
        return Published.GONE
    except OSError as error:
        if error.errno in {errno.ELOOP, errno.EISDIR, errno.ENXIO}:
            return Published.FOREIGN
        raise
    return Published.DONE if digest == sha256 else Published.FOREIGN


def _contents(path: Path) -> bytes:
    with _opened(path) as file:
        return file.read()


def _opened(path: Path) -> BufferedReader:
    """Open the regular file of that name. Does not follow links, and does not block on pipes."""
    number = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(number).st_mode):
        os.close(number)
        raise IsADirectoryError(errno.EISDIR, "it is not a regular file")
    return os.fdopen(number, "rb")


def _remove_empty(folder: Path, up_to: Path) -> None:
    """Remove empty folders, from this one upwards. They are created again when needed."""
    with suppress(OSError):
        while folder != up_to:
            folder.rmdir()
            folder = folder.parent
