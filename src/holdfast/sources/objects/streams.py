"""Bytes of an object from some offset on, unpacked if they are packed, and proof that it did not change meanwhile."""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Protocol

from holdfast.errors import BatchError

MAGIC = b"\x1f\x8b"
ENDINGS = (".gz", ".gzip")
_GZIP_FORMAT = 31
_READ = 1 << 20


class Stream(Protocol):
    """Bytes in order."""

    def read(self, size: int) -> bytes:
        """Up to so many bytes; none at the end. Raises `BatchError` or `OSError`."""
        ...


class GzipStream:
    """The unpacked bytes of a gzip file of one or more members."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._member = zlib.decompressobj(_GZIP_FORMAT)
        self._packed = b""
        self._inside = False

    def read(self, size: int) -> bytes:
        parts: list[bytes] = []
        missing = size
        while missing and (part := self._some(missing)):
            parts.append(part)
            missing -= len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _some(self, most: int) -> bytes:
        """At least one byte unless all are read."""
        while True:
            if not self._packed and not self._refill():
                return b""
            try:
                unpacked = self._member.decompress(self._packed, most)
            except zlib.error as error:
                raise BatchError(f"it is no valid gzip file: {error}") from error
            self._inside = not self._member.eof
            if self._member.eof:
                # Zeros may follow a member, as tapes and block devices leave them.
                self._packed = self._member.unused_data.lstrip(b"\0")
                self._member = zlib.decompressobj(_GZIP_FORMAT)
            else:
                self._packed = self._member.unconsumed_tail
            if unpacked:
                return unpacked

    def _refill(self) -> bool:
        self._packed = self._file.read(_READ)
        if not self._inside:
            self._packed = self._packed.lstrip(b"\0")
        if not self._packed and self._inside:
            raise BatchError("it is no valid gzip file: it ends too early")
        return bool(self._packed)


def is_gzipped(path: Path, compression: str) -> bool:
    """Whether the file is to be unpacked. Raises `OSError`."""
    if compression != "auto":
        return compression == "gzip"
    if path.name.lower().endswith(ENDINGS):
        return True
    with path.open("rb", buffering=0) as file:
        return file.read(len(MAGIC)) == MAGIC


@contextmanager
def unchanged(path: Path, size: int, mtime_ns: int) -> Iterator[BinaryIO]:
    """The open file, if it is and stays what it was when it was found. Raises `BatchError` if not."""
    try:
        file = path.open("rb", buffering=0)
    except FileNotFoundError:
        raise BatchError(f"{path} has vanished since it was found") from None
    except OSError as error:
        raise BatchError(f"cannot open {path}: {error.strerror}") from error
    with file:
        check_unchanged(path, os.fstat(file.fileno()), size, mtime_ns)
        yield file
        check_unchanged(path, os.fstat(file.fileno()), size, mtime_ns)


def check_unchanged(path: Path, now: os.stat_result, size: int, mtime_ns: int) -> None:
    """Raise `BatchError` if the file is not what it was when it was found."""
    if (now.st_size, now.st_mtime_ns) != (size, mtime_ns):
        raise BatchError(
            f"{path} has changed since it was found: it had {size} bytes and has {now.st_size}; "
            "files must be complete when they appear in the folder"
        )
