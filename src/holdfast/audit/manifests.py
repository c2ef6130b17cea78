"""Finding the manifest of an offset or of a file, with few requests."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from holdfast.audit.inventory import COMMITS, REPLACED
from holdfast.audit.place import Place
from holdfast.audit.plans import PLAN, plan_at
from holdfast.audit.witness import Plan, Told, Unreadable, offset_of, read_manifest
from holdfast.errors import UsageError
from holdfast.leases.lease import Key

if TYPE_CHECKING:
    from holdfast.audit.subject import Subject
    from holdfast.leases.lease import Lease
    from holdfast.leases.store import Store


class Manifests:
    """Manifests of one partition, as far as the store knows them. Raises `UsageError` for a partition without a row."""

    def __init__(self, subject: Subject, store: Store, stream: str, label: str) -> None:
        self._place = subject.place
        self._folder = folder_of(subject.place, stream, label)
        first = None if self._folder is None else self._read(1)
        key = f"{stream}|{label}" if first is None else first.key
        (row,) = store.get([Key(subject.pipeline, "", key)])
        if row is None or row.unreadable is not None:
            raise UsageError(f"the store has no row of partition {label} of {stream!r} that can be read")
        self.row: Lease = row
        self.plans = [plan for plan in plans_of(subject.place) if (plan.stream, plan.label) == (stream, label)]
        self.number = 0 if first is None else self._last()

    def holding(self, offset: int) -> Told | None:
        """The latest commit whose range has the offset; None if there is none."""
        if self.plans:
            return next((told for told in self._backwards() if _has(told, offset)), None)
        low, high = 1, self.number
        while low < high:
            middle = (low + high) // 2
            if (offset_of(self.get(middle).end) or 0) > offset:
                high = middle
            else:
                low = middle + 1
        told = self.get(low) if low <= self.number else None
        return told if told is not None and _has(told, offset) else None

    def overlapping(self, first: int, last: int) -> Iterator[Told]:
        """Commits with any of these offsets, in order."""
        begin = self.holding(first)
        # The first offset may lie before all that is there.
        start = 1 if begin is None or self.plans else begin.sequence
        for sequence in range(start, self.number + 1):
            told = self.get(sequence)
            low, high = offset_of(told.start) or 0, offset_of(told.end) or 0
            if low <= last and first < high:
                yield told
            elif low > last and not self.plans:
                return

    def first_offset(self) -> int | None:
        """Where the first commit begins."""
        return offset_of(self.get(1).start) if self.number else None

    def get(self, sequence: int) -> Told:
        """Raises `UsageError` if that manifest is missing: then a proof must come first."""
        told = self._read(sequence)
        if told is None:
            raise UsageError(f"manifest {sequence} in {self._folder} is missing; `holdfast verify` tells more")
        return told

    def all(self) -> Iterator[Told]:
        """Every commit in order."""
        return map(self.get, range(1, self.number + 1))

    def _backwards(self) -> Iterator[Told]:
        return map(self.get, range(self.number, 0, -1))

    def _last(self) -> int:
        """A commit that is being published may have no manifest yet."""
        known = self.row.commit.sequence
        if self.row.commit.receipts is not None and self._read(known) is None:
            return known - 1
        return known

    def _read(self, sequence: int) -> Told | None:
        return manifest(self._place, f"{self._folder}/{sequence:020d}.json")


def manifest(place: Place, key: str) -> Told | None:
    """The manifest at a key; None if there is none. Raises `UsageError` for one that cannot be read."""
    data = place.read(key)
    try:
        return None if data is None else read_manifest(data)
    except Unreadable as wrong:
        raise UsageError(f"{key} cannot be read: {wrong}; `holdfast verify` tells more") from wrong


def folder_of(place: Place, stream: str, label: str) -> str | None:
    """Where a partition's manifests are. A name that was escaped is found by what the manifests say."""
    plain = f"{COMMITS}{stream}/{label}"
    if "/" not in stream + label and _first_is(place, plain, stream, label):
        return plain
    return next((folder for folder in commit_folders(place) if _first_is(place, folder, stream, label)), None)


def commit_folders(place: Place) -> Iterator[str]:
    """Every folder with manifests."""
    for stream in place.folders(COMMITS):
        for label in place.folders(f"{COMMITS}{stream}/"):
            yield f"{COMMITS}{stream}/{label}"


def plans_of(place: Place) -> Iterator[Plan]:
    """All plans of a root. Raises `UsageError` for one that cannot be read."""
    for name in place.folders(REPLACED):
        try:
            yield plan_at(place, f"{REPLACED}{name}/{PLAN}")
        except Unreadable as wrong:
            raise UsageError(f"plan {name} cannot be read: {wrong}; `holdfast verify` tells more") from wrong


def _first_is(place: Place, folder: str, stream: str, label: str) -> bool:
    told = manifest(place, f"{folder}/{1:020d}.json")
    return told is not None and (told.stream, told.label) == (stream, label)


def _has(told: Told, offset: int) -> bool:
    start, end = offset_of(told.start), offset_of(told.end)
    return start is not None and end is not None and start <= offset < end
