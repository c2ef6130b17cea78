"""Folders of a local bucket: created durably, fsynced once per call, listed in the order of keys."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

_PATIENCE = 100
_BUFFER = 1 << 20


class Folders:
    """The folders whose entries one call changes. `sync` makes all of them durable at once."""

    def __init__(self) -> None:
        self._changed: set[Path] = set()

    def make(self, folder: Path) -> None:
        """Create the folder and its parents if they are missing, and note that an entry in it will change."""
        self._changed.add(folder)
        missing = folder
        while not missing.is_dir():
            # The entry of a new folder is in its parent.
            missing = missing.parent
            self._changed.add(missing)
        folder.mkdir(parents=True, exist_ok=True)

    def creating(self, path: Path) -> BinaryIO:
        """A new file, open for writing. Raises `FileExistsError` if it exists."""
        for attempt in range(_PATIENCE):
            self.make(path.parent)
            try:
                number = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o644)
            except FileNotFoundError:
                # Somebody removed the folder because it was empty.
                if attempt == _PATIENCE - 1:
                    raise
            else:
                return open(number, "wb", buffering=_BUFFER)  # noqa: PTH123 - O_EXCL needs the number
        raise AssertionError

    def sync(self) -> None:
        """Make the entries of all changed folders durable."""
        for folder in self._changed:
            number = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
            try:
                os.fsync(number)
            finally:
                os.close(number)


def walk(folder: Path, at: str, prefix: str) -> Iterator[str]:
    """Keys that begin with the prefix, of the regular files below the folder; `at` is the folder's own key."""
    try:
        with os.scandir(folder) as entries:
            names = sorted(_name(entry) for entry in entries if not entry.is_symlink())
    except (FileNotFoundError, NotADirectoryError):
        return
    for name in names:
        key = at + name
        if name.endswith("/") and (key.startswith(prefix) or prefix.startswith(key)):
            yield from walk(folder / name, key, prefix)
        elif key.startswith(prefix):
            yield key


def _name(entry: os.DirEntry[str]) -> str:
    # With the slash behind a folder's name the order within a folder is that of whole keys.
    return f"{entry.name}/" if entry.is_dir(follow_symlinks=False) else entry.name
