"""Manifests and plans in a root: finding those of a partition, an offset or a file, with few requests.

_holdfast/commits/<stream>/<label>/<sequence>.json    a commit
_holdfast/replaced/<id>/plan.json                      which files are moved where; created before the first move
_holdfast/replaced/<id>/done.json                      created after the last move
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import TYPE_CHECKING

from holdfast.audit.documents import Manifest, Plan, Unreadable, offset_of, read_manifest, read_plan
from holdfast.audit.inventory import COMMITS, REPLACED, Inventory
from holdfast.audit.proof import RootProof
from holdfast.audit.roots import Root
from holdfast.errors import UsageError
from holdfast.leases.lease import Key

if TYPE_CHECKING:
    from holdfast.audit.sink import AuditedSink
    from holdfast.leases.lease import Lease
    from holdfast.leases.store import Store

PLAN = "plan.json"


class Manifests:
    """Manifests of one partition, up to the sequence in its row. Raises `UsageError` for a partition without a row."""

    def __init__(self, audited: AuditedSink, store: Store, stream: str, label: str) -> None:
        self._root = audited.root
        self._folder = folder_of(audited.root, stream, label)
        first = None if self._folder is None else self._read(1)
        key = f"{stream}|{label}" if first is None else first.key
        (row,) = store.get([Key(audited.pipeline, "", key)])
        if row is None or row.unreadable is not None:
            raise UsageError(f"the store has no readable row for partition {label} of {stream!r}")
        self.row: Lease = row
        self.plans = [plan for plan in plans_of(audited.root) if (plan.stream, plan.label) == (stream, label)]
        self.number = 0 if first is None else self._last()

    def holding(self, offset: int) -> Manifest | None:
        """Return the latest commit whose range has the offset; None if there is none."""
        if self.plans:
            return next((manifest for manifest in self._backwards() if _has(manifest, offset)), None)
        low, high = 1, self.number
        while low < high:
            middle = (low + high) // 2
            if (offset_of(self.get(middle).end) or 0) > offset:
                high = middle
            else:
                low = middle + 1
        manifest = self.get(low) if low <= self.number else None
        return manifest if manifest is not None and _has(manifest, offset) else None

    def overlapping(self, first: int, last: int) -> Iterator[Manifest]:
        """Yield the commits with any of these offsets, in order."""
        begin = self.holding(first)
        # The first offset may lie before all commits.
        start = 1 if begin is None or self.plans else begin.sequence
        for sequence in range(start, self.number + 1):
            manifest = self.get(sequence)
            low, high = offset_of(manifest.start) or 0, offset_of(manifest.end) or 0
            if low <= last and first < high:
                yield manifest
            elif low > last and not self.plans:
                return

    def first_offset(self) -> int | None:
        """Return the first offset of the first commit."""
        return offset_of(self.get(1).start) if self.number else None

    def get(self, sequence: int) -> Manifest:
        """Return a manifest. Raises `UsageError` if it is missing."""
        manifest = self._read(sequence)
        if manifest is None:
            raise UsageError(f"manifest {sequence} in {self._folder} is missing; run `holdfast verify`")
        return manifest

    def all(self) -> Iterator[Manifest]:
        """Return every commit in order."""
        return map(self.get, range(1, self.number + 1))

    def _backwards(self) -> Iterator[Manifest]:
        return map(self.get, range(self.number, 0, -1))

    def _last(self) -> int:
        """Return the last sequence; a commit that is being published may have no manifest yet."""
        sequence = self.row.commit.sequence
        if self.row.commit.receipts is not None and self._read(sequence) is None:
            return sequence - 1
        return sequence

    def _read(self, sequence: int) -> Manifest | None:
        return manifest_in(self._root, f"{self._folder}/{sequence:020d}.json")


def manifest_in(root: Root, key: str) -> Manifest | None:
    """Return the manifest at a key; None if there is none. Raises `UsageError` if it cannot be read."""
    data = root.read(key)
    try:
        return None if data is None else read_manifest(data)
    except Unreadable as wrong:
        raise UsageError(f"{key} cannot be read: {wrong}; run `holdfast verify`") from wrong


def folder_of(root: Root, stream: str, label: str) -> str | None:
    """Return the folder of a partition's manifests. If its name was escaped, it is found by searching manifests."""
    plain = f"{COMMITS}{stream}/{label}"
    if "/" not in stream + label and _first_is(root, plain, stream, label):
        return plain
    return next((folder for folder in commit_folders(root) if _first_is(root, folder, stream, label)), None)


def commit_folders(root: Root) -> Iterator[str]:
    """Yield every folder with manifests."""
    for stream in root.folders(COMMITS):
        for label in root.folders(f"{COMMITS}{stream}/"):
            yield f"{COMMITS}{stream}/{label}"


def plans_of(root: Root) -> Iterator[Plan]:
    """Yield all plans of a root. Raises `UsageError` if one cannot be read."""
    for name in root.folders(REPLACED):
        try:
            yield plan_at(root, f"{REPLACED}{name}/{PLAN}")
        except Unreadable as wrong:
            raise UsageError(f"plan {name} cannot be read: {wrong}; run `holdfast verify`") from wrong


def _first_is(root: Root, folder: str, stream: str, label: str) -> bool:
    manifest = manifest_in(root, f"{folder}/{1:020d}.json")
    return manifest is not None and (manifest.stream, manifest.label) == (stream, label)


def _has(manifest: Manifest, offset: int) -> bool:
    start, end = offset_of(manifest.start), offset_of(manifest.end)
    return start is not None and end is not None and start <= offset < end


class Plans:
    """All plans of a root; only their keys are kept in memory, because a plan may have many moves."""

    def __init__(self, root: Root, inventory: Inventory, proof: RootProof) -> None:
        self._root = root
        self._keys: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
        for key in plan_keys(inventory):
            inventory.claim(key)
            if inventory.size(_done_key(key)) is not None:
                inventory.claim(_done_key(key))
            try:
                plan = plan_at(root, key)
            except Unreadable as wrong:
                proof.doubts.add(f"{key} cannot be read: {wrong}")
            else:
                self._keys[plan.stream, plan.label].append(key)

    def of(self, stream: str, label: str) -> list[Plan]:
        """Return the plans of one partition, in order of their ids."""
        return [plan_at(self._root, key) for key in self._keys[stream, label]]


def plan_keys(inventory: Inventory) -> list[str]:
    """Return the keys of all plans in the listing."""
    below = inventory.below(REPLACED)
    return [key for key in below if key.count("/") == REPLACED.count("/") + 1 and key.endswith(f"/{PLAN}")]


def plan_at(root: Root, key: str) -> Plan:
    """Return the plan with that key. Raises `Unreadable`."""
    data = root.read(key)
    if data is None:
        raise Unreadable("it no longer exists")
    done = root.size(_done_key(key)) is not None
    return read_plan(key.removeprefix(REPLACED).partition("/")[0], data, done=done)


def _done_key(key: str) -> str:
    """Return the key that is created when all files of a plan are moved; the plan itself never changes."""
    return f"{key.removesuffix(PLAN)}done.json"
