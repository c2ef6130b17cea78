"""A root in a file system, read only."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from holdfast.audit.place import STAGING, Listed, Place, is_key
from holdfast.errors import Unavailable

_ABSENT = (FileNotFoundError, NotADirectoryError, IsADirectoryError)


class Folder(Place):
    """A folder and all below it. Symbolic links to folders are not followed."""

    def __init__(self, root: str) -> None:
        self.root = root
        self._path = Path(root).absolute()

    def listing(self) -> Iterator[Listed]:
        with self._told():
            if not self._path.is_dir():
                raise Unavailable(f"the folder {self._path} is not there")
            waiting = [""]
            while waiting:
                below = waiting.pop()
                for entry in _entries(self._path / below):
                    key = below + entry.name
                    if not entry.is_dir(follow_symlinks=False):
                        yield from _listed(key, entry)
                    elif f"{key}/" != STAGING:
                        waiting.append(f"{key}/")

    def folders(self, prefix: str) -> Iterator[str]:
        with self._told():
            names = sorted(entry.name for entry in _entries(self._path / prefix) if entry.is_dir())
        return iter(names)

    def size(self, key: str) -> int | None:
        path = self._path / key
        with self._told():
            try:
                return path.stat().st_size if is_key(key) and path.is_file() else None
            except _ABSENT:
                return None

    def open(self, key: str) -> BinaryIO | None:
        if not is_key(key):
            return None
        with self._told():
            try:
                return (self._path / key).open("rb")
            except _ABSENT:
                return None

    def key_of(self, name: str) -> str:
        path = Path(name).absolute()
        return path.relative_to(self._path).as_posix() if path.is_relative_to(self._path) else name

    @contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise Unavailable(f"cannot read {self._path}: {error}") from error


def _entries(path: Path) -> Iterator[os.DirEntry[str]]:
    try:
        with os.scandir(path) as entries:
            yield from entries
    except _ABSENT:
        return  # taken away since its parent was listed


def _listed(key: str, entry: os.DirEntry[str]) -> Iterator[Listed]:
    try:
        yield Listed(key, entry.stat().st_size)
    except FileNotFoundError:
        return
