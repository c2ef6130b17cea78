"""The listing of a root, and which files manifests have named. Kept on disk, so that millions of files fit.

The listing is made before any row or manifest is read. A file becomes visible only after its manifest, so every listed
file has a manifest by the time manifests are read, even though the pipeline keeps running.
"""

from __future__ import annotations

import sqlite3
import tempfile
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

from holdfast.audit.roots import OURS, Listed

COMMITS = f"{OURS}commits/"
REPLACED = f"{OURS}replaced/"
_CHUNK = 10_000
_DEPTH = 3
"""Parts of a manifest's key below `commits/`: stream, label, name."""
_AFTER_SLASH = "0"
"""The character after `/`: it ends the range of keys below a folder."""


class Claim(NamedTuple):
    """A key that a manifest names."""

    size: int | None
    """None if the listing does not have the key."""
    times: int
    """How often the key was named, including this time."""


class Inventory:
    """Keys with their size and how often they were named. For one thread; closing deletes it."""

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
        """Store a whole listing. Raises what the listing raises."""
        rows = ((_stored(listed.key), listed.size) for listed in listing)
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
        """Return the size of a listed object, without noting that a manifest names it."""
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
        """Yield folders with manifests, in order, each with its highest sequence number."""
        after = COMMITS
        while (key := self._first(after, COMMITS[:-1] + _AFTER_SLASH)) is not None:
            parts = key.removeprefix(COMMITS).split("/")
            if len(parts) < _DEPTH:
                after = key + "\0"  # not a manifest; reported at the end, because nothing names it
                continue
            folder = COMMITS + "/".join(parts[: _DEPTH - 1])
            yield folder, self._highest(folder)
            after = folder + _AFTER_SLASH

    def below(self, prefix: str) -> Iterator[str]:
        """Yield listed keys below a folder, in order."""
        after, end = prefix, prefix[:-1] + _AFTER_SLASH
        while (key := self._first(after, end)) is not None:
            yield key
            after = key + "\0"

    def note_partition(self, key: str) -> None:
        """Remember that this partition has manifests."""
        self._db.execute("INSERT OR IGNORE INTO partitions VALUES (?)", (key,))

    def has_partition(self, key: str) -> bool:
        """Return whether the partition was noted."""
        return self._db.execute("SELECT 1 FROM partitions WHERE key = ?", (key,)).fetchone() is not None

    def unnamed(self) -> Iterator[str]:
        """Yield listed keys that nothing has named, in order."""
        for (key,) in self._db.execute("SELECT key FROM listed WHERE named = 0 ORDER BY key"):
            yield _shown(key)

    def _first(self, start: str, end: str) -> str | None:
        found = self._db.execute(
            "SELECT key FROM listed WHERE key >= ? AND key < ? AND size IS NOT NULL ORDER BY key LIMIT 1",
            (_stored(start), _stored(end)),
        ).fetchone()
        return None if found is None else _shown(found[0])

    def _highest(self, folder: str) -> int:
        """Return the highest sequence: names have 20 digits, so the last in order is the highest."""
        keys = self._db.execute(
            "SELECT key FROM listed WHERE key >= ? AND key < ? AND size IS NOT NULL ORDER BY key DESC",
            (_stored(f"{folder}/"), _stored(folder + _AFTER_SLASH)),
        )
        names = (_shown(key).removeprefix(f"{folder}/") for (key,) in keys)
        return next((number for name in names if (number := _sequence(name)) is not None), 0)


def _sequence(name: str) -> int | None:
    """Return the number in a manifest's name; None for other names."""
    digits, _, extension = name.partition(".")
    return int(digits) if len(digits) == 20 and digits.isdecimal() and extension == "json" else None


def _stored(key: str) -> bytes:
    return key.encode("utf-8", "surrogateescape")


def _shown(key: bytes) -> str:
    return key.decode("utf-8", "surrogateescape")
