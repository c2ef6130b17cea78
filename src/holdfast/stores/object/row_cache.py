"""Rows as this process has last read or written them, by name, with their tags; and the last listing.

Only objects whose tag has changed are read. A row that this process has written need not be read.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Sequence

from holdfast.stores.object.objects import TaggedObjects
from holdfast.stores.object.rows import LEASES, Stored, parsed

READ_ANEW = ""
"""A tag that no object has."""


class _Listing:
    """For each pipeline's folder, the tags of its objects by name."""

    def __init__(self, began: float, tags: dict[str, str]) -> None:
        self.began = began
        self.folders: dict[str, dict[str, str]] = {}
        for name, tag in tags.items():
            self.note(name, tag)

    def note(self, name: str, tag: str) -> None:
        self.folders.setdefault(_folder(name), {})[name] = tag

    def below(self, prefix: str) -> dict[str, str]:
        tags = self.folders.get(_folder(prefix), {})
        return {name: tag for name, tag in tags.items() if name.startswith(prefix)}


class RowCache:
    """Shared by all threads of a process. Blocks on the objects, never on another thread's request."""

    def __init__(self, objects: TaggedObjects, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._objects = objects
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._moments = itertools.count(1)
        self._rows: dict[str, tuple[int, Stored]] = {}
        self._listing: _Listing | None = None
        self._noted: dict[str, tuple[int, str]] = {}

    def cached(self, name: str) -> Stored | None:
        """The row as last read or written by this process, possibly outdated. Does not block."""
        found = self._rows.get(name)
        return None if found is None else found[1]

    def below(self, prefix: str, max_age: float) -> list[Stored]:
        """The rows below a folder; with `max_age`, from a listing of at most that age and this process's writes."""
        tags = self._recent(max_age).below(prefix) if max_age > 0 else self._objects.tags(prefix)
        self.read([name for name, tag in tags.items() if self._tag_of(name) != tag])
        rows = [self.cached(name) for name in tags]
        return [row for row in rows if row is not None and not row.gone]

    def recently(self, names: Sequence[str], max_age: float) -> list[Stored | None]:
        """These rows, read like those of `below`."""
        listing = self._recent(max_age)
        tags = {name: listing.folders.get(_folder(name), {}).get(name) for name in names}
        self.read([name for name, tag in tags.items() if tag is not None and self._tag_of(name) != tag])
        rows = [None if tags[name] is None else self.cached(name) for name in names]
        return [None if row is None or row.gone else row for row in rows]

    def read(self, names: Sequence[str]) -> list[Stored | None]:
        """The current state of these rows, including removed ones whose object still exists."""
        return self._objects.each(self._read, names)

    def wrote(self, name: str, row: Stored) -> None:
        """Note the row that this process has just written."""
        self._note(name, next(self._moments), row)

    def doubt(self, name: str) -> None:
        """Forget the row, because its current state is unknown; it is read when it is needed next."""
        with self._lock:
            self._rows.pop(name, None)
            self._note_tag(name, next(self._moments), READ_ANEW)

    def _tag_of(self, name: str) -> str | None:
        row = self.cached(name)
        return None if row is None else row.tag

    def _read(self, name: str) -> Stored | None:
        moment = next(self._moments)
        found = self._objects.read(name)
        row = None if found is None else parsed(name, found)
        self._note(name, moment, row)
        return row

    def _note(self, name: str, moment: int, row: Stored | None) -> None:
        with self._lock:
            if self._rows.get(name, (0,))[0] > moment:
                return  # a later write of our own has come first
            if row is None:
                self._forget(name)
            else:
                self._rows[name] = (moment, row)
                self._note_tag(name, moment, row.tag)

    def _forget(self, name: str) -> None:
        self._rows.pop(name, None)
        self._noted.pop(name, None)
        if self._listing is not None:
            self._listing.folders.get(_folder(name), {}).pop(name, None)

    def _note_tag(self, name: str, moment: int, tag: str) -> None:
        self._noted[name] = (moment, tag)
        if self._listing is not None:
            self._listing.note(name, tag)

    def _recent(self, max_age: float) -> _Listing:
        listing, now = self._listing, self._monotonic()
        if listing is not None and 0 <= now - listing.began <= max_age:
            return listing
        moment = next(self._moments)
        listing = _Listing(now, self._objects.tags(LEASES))
        with self._lock:
            # What was written while the listing was made may not be in it.
            self._noted = {name: noted for name, noted in self._noted.items() if noted[0] > moment}
            for name, (_, tag) in self._noted.items():
                listing.note(name, tag)
            self._listing = listing
        return listing


def _folder(name: str) -> str:
    return name.split("/", 2)[1]
