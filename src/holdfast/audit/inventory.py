"""What a listing has found, and which of it manifests have named. Kept on disk, so that millions of files fit.

The listing is made before any row or manifest is read. A file becomes visible only after its manifest, so whatever it
holds has a manifest by the time these are read, although the pipeline goes on meanwhile.
"""

from __future__ import annotations

import sqlite3
import tempfile
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

from holdfast.audit.place import OURS, Listed

COMMITS = f"{OURS}commits/"
REPLACED = f"{OURS}replaced/"
_CHUNK = 10_000
_DEPTH = 3
"""Parts of a manifest's key below `commits/`: stream, label, name."""
_AFTER_SLASH = "0"
"""The character behind `/`: ends a range of keys below a folder."""


class Claim(NamedTuple):
    """What is known of a key that a manifest names."""

    size: int | None
    """None if the listing does not have it."""
    times: int
    """How often it was named, this time included."""


class Inventory:
    """Keys with size and how often they were named. For one thread; closing it forgets all."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="holdfast-audit-")
        self._db = sqlite3.connect(Path(self._folder.name) / "inventory.db", isolation_level=None)
        self._db.execute("PRAGMA journal_mode = OFF")
        self._db.execute("PRAGMA synchronous = OFF")
        self._db.execute(
            "CREATE TABLE listed (key BLOB PRIMARY KEY, size INTEGER, named INTEGER NOT NULL) WITHOUT ROWID"
        )
        self._db.execute("CREATE TABLE partitions (key TEXT PRIMARY KEY) WITHOUT ROWID")
        self.number = 0

    def fill(self, listing: Iterable[Listed]) -> None:
        """Take over a whole listing. Raises what the listing raises."""
        rows = ((_stored(one.key), one.size) for one in listing)
        while chunk := list(islice(rows, _CHUNK)):
            self._db.execute("BEGIN")
            self._db.executemany("INSERT OR REPLACE INTO listed VALUES (?, ?, 0)", chunk)
            self._db.execute("COMMIT")
            self.number += len(chunk)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._db.close()
        self._folder.cleanup()

    def size(self, key: str) -> int | None:
        """Bytes of a listed object, without naming it."""
        found = self._db.execute("SELECT size FROM listed WHERE key = ?", (_stored(key),)).fetchone()
        return None if found is None else found[0]

    def claim(self, key: str) -> Claim:
        """Note that a manifest names the key, listed or not."""
        row = self._db.execute(
            "INSERT INTO listed VALUES (?, NULL, 1) ON CONFLICT (key) DO UPDATE SET named = named + 1 "
            "RETURNING size, named",
            (_stored(key),),
        ).fetchone()
        return Claim(*row)

    def commit_folders(self) -> Iterator[tuple[str, int]]:
        """Folders with manifests, in order, each with the highest sequence number in it."""
        after = COMMITS
        while (key := self._first(after, COMMITS[:-1] + _AFTER_SLASH)) is not None:
            parts = key.removeprefix(COMMITS).split("/")
            if len(parts) < _DEPTH:
                after = key + "\0"  # no manifest; told at the end, because nothing names it
                continue
            folder = COMMITS + "/".join(parts[: _DEPTH - 1])
            yield folder, self._highest(folder)
            after = folder + _AFTER_SLASH

    def below(self, prefix: str) -> Iterator[str]:
        """Listed keys below a folder, in order."""
        after, end = prefix, prefix[:-1] + _AFTER_SLASH
        while (key := self._first(after, end)) is not None:
            yield key
            after = key + "\0"

    def note_partition(self, key: str) -> None:
        """Remember that this partition has manifests."""
        self._db.execute("INSERT OR IGNORE INTO partitions VALUES (?)", (key,))

    def knows_partition(self, key: str) -> bool:
        """Whether it was noted."""
        return self._db.execute("SELECT 1 FROM partitions WHERE key = ?", (key,)).fetchone() is not None

    def unnamed(self) -> Iterator[str]:
        """Listed keys that nothing has named, in order."""
        for (key,) in self._db.execute("SELECT key FROM listed WHERE named = 0 ORDER BY key"):
            yield _shown(key)

    def _first(self, start: str, end: str) -> str | None:
        found = self._db.execute(
            "SELECT key FROM listed WHERE key >= ? AND key < ? AND size IS NOT NULL ORDER BY key LIMIT 1",
            (_stored(start), _stored(end)),
        ).fetchone()
        return None if found is None else _shown(found[0])

    def _highest(self, folder: str) -> int:
        """Manifests have 20 digits, so that the last in order is the highest."""
        keys = self._db.execute(
            "SELECT key FROM listed WHERE key >= ? AND key < ? AND size IS NOT NULL ORDER BY key DESC",
            (_stored(f"{folder}/"), _stored(folder + _AFTER_SLASH)),
        )
        names = (_shown(key).removeprefix(f"{folder}/") for (key,) in keys)
        return next((number for name in names if (number := _sequence(name)) is not None), 0)


def _sequence(name: str) -> int | None:
    """The number in a manifest's name; None if it is no such name."""
    digits, _, extension = name.partition(".")
    return int(digits) if len(digits) == 20 and digits.isdecimal() and extension == "json" else None


def _stored(key: str) -> bytes:
    return key.encode("utf-8", "surrogateescape")


def _shown(key: bytes) -> str:
    return key.decode("utf-8", "surrogateescape")
