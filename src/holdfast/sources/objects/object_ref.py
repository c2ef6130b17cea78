"""References to objects, a file of a folder or an object of an S3 bucket, and their bytes. Picklable.

An object is read only as it was when it was found: a file by its size and time, an object on S3 by its ETag.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from io import RawIOBase
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from holdfast.errors import BatchError, Unavailable, is_host_fault

if TYPE_CHECKING:
    from holdfast.s3.access import S3Access


class Damaged(BatchError):
    """The object itself is broken: truncated, altered, or not of the configured format."""


class Stream(Protocol):
    """Bytes in order."""

    def read(self, size: int, /) -> bytes:
        """Up to `size` bytes; none only at the end. Raises `BatchError` (`Damaged`) or `Unavailable`."""
        ...


class RandomBytes(Protocol):
    """The bytes of an open object. Sequential reads are buffered ahead; a seek may cost a request."""

    def seek(self, offset: int, /) -> int:
        """Go to that byte, counted from the beginning. Reads nothing yet."""

    def read(self, size: int = -1, /) -> bytes:
        """Up to `size` bytes; none only at the end. Raises `BatchError` or `Unavailable`."""


class ObjectRef(Protocol):
    """An object as it was when it was found."""

    @property
    def path(self) -> str:
        """The object in messages, such as /folder/x.jsonl or s3://bucket/key."""

    @property
    def size(self) -> int:
        """Size in bytes."""

    def description(self) -> dict[str, Any]:
        """Which object in which version, as JSON for dead letters."""

    def check(self) -> None:
        """Raise `BatchError` if the object has vanished or changed, or `Unavailable`. Sends no request."""

    @property
    def is_remote(self) -> bool:
        """Whether reading the object waits for a server."""

    def fetched(self) -> bytes:
        """All bytes of the object, read in the fastest way. Raises like `opened`. Thread-safe."""

    def opened(self) -> AbstractContextManager[RandomBytes]:
        """The object's bytes, which can be read until the block ends.

        Raises `BatchError` if the object has vanished or changed, `Unavailable` if it cannot be reached now. Files are
        checked when the block begins and when it ends, objects on S3 with every request.
        """


@dataclass(frozen=True, slots=True)
class FileRef:
    """A file."""

    path: str
    size: int
    mtime_ns: int

    is_remote = False

    def description(self) -> dict[str, Any]:
        return {"path": self.path, "size": self.size, "mtime_ns": self.mtime_ns}

    def fetched(self) -> bytes:
        with self.opened() as data:
            return data.read()

    def check(self) -> None:
        with _source_errors(self.path):
            self._compare(Path(self.path).stat())

    @contextmanager
    def opened(self) -> Iterator[RandomBytes]:
        with _source_errors(self.path):
            file = Path(self.path).open("rb", buffering=0)  # noqa: SIM115 - errors of the block are not translated
        with file:
            self._check_open(file)
            yield _FileBytes(self.path, file)
            self._check_open(file)

    def _check_open(self, file: RawIOBase) -> None:
        with _source_errors(self.path):
            self._compare(os.fstat(file.fileno()))

    def _compare(self, now: os.stat_result) -> None:
        if (now.st_size, now.st_mtime_ns) != (self.size, self.mtime_ns):
            raise BatchError(
                f"{self.path} has changed since it was found: it had {self.size} bytes and has {now.st_size}; "
                "files must be complete when they appear in the folder"
            )


class _FileBytes:
    """An open file. Errors of the host are raised as `Unavailable`, so that codecs do not treat them as damage."""

    def __init__(self, path: str, file: RawIOBase) -> None:
        self._path = path
        self._file = file

    def seek(self, offset: int, /) -> int:
        with _source_errors(self._path):
            return self._file.seek(offset)

    def read(self, size: int = -1, /) -> bytes:
        with _source_errors(self._path):
            return self._file.read(size) or b""


@contextmanager
def _source_errors(path: str) -> Iterator[None]:
    """Turn an error of the operating system into `Unavailable`, or into a `BatchError` of this object."""
    try:
        yield
    except FileNotFoundError:
        raise BatchError(f"{path} has vanished since it was found") from None
    except OSError as error:
        kind = Unavailable if is_host_fault(error) else BatchError
        raise kind(f"cannot read {path}: {error.strerror or error}") from error


@dataclass(frozen=True)
class S3Ref:
    """An object of a bucket, in the version that has this ETag. Without slots, like the splits that go to tasks."""

    access: S3Access
    key: str
    size: int
    etag: str

    is_remote = True

    @property
    def path(self) -> str:
        return f"s3://{self.access.bucket}/{self.key}"

    def description(self) -> dict[str, Any]:
        return {"bucket": self.access.bucket, "key": self.key, "etag": self.etag, "size": self.size}

    def check(self) -> None:
        """Nothing to do: every request names the ETag."""

    def fetched(self) -> bytes:
        from holdfast.s3.client import client_of

        whole = client_of(self.access).small_object(self.key, self.etag)
        if whole is not None and len(whole) == self.size:
            return whole
        with self.opened() as data:
            return data.read()

    @contextmanager
    def opened(self) -> Iterator[RandomBytes]:
        from holdfast.sources.objects.s3_fetch import S3Fetch

        data = S3Fetch(self.access, self.key, self.size, self.etag)
        try:
            yield data
        finally:
            data.close()
