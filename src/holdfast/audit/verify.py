"""The proof of one sink: listing first, then rows and manifests of one partition after the other, then the rest.

Memory is bounded by one partition: what the listing has found is kept on disk. The pipeline may run meanwhile.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import replace
from itertools import islice

from holdfast.audit.ahead import THREADS, ahead
from holdfast.audit.inventory import COMMITS, REPLACED, Inventory
from holdfast.audit.partition import PartitionAudit, manifest_at
from holdfast.audit.place import OURS
from holdfast.audit.plans import Plans
from holdfast.audit.proof import PartitionProof, RootProof
from holdfast.audit.subject import Subject
from holdfast.audit.witness import DEAD_LETTERS, Told, Unreadable, read_manifest
from holdfast.leases.lease import Key, Lease
from holdfast.leases.query import Query
from holdfast.leases.store import Store

OWNER = f"{OURS}owner.json"
AT_ONCE = 200
PAGE = 1000


def verify(subject: Subject, store: Store, *, deep: bool = False) -> Iterator[PartitionProof | RootProof]:
    """A proof of each partition, and at last one of the root. Blocks; reads only.

    Raises `Unavailable` or `StoreUnavailable`: then nothing is proven and nothing is doubted.
    """
    pool = ThreadPoolExecutor(THREADS, thread_name_prefix="holdfast-audit")
    try:
        with Inventory() as inventory:
            inventory.fill(subject.place.listing())
            yield from Verification(subject, store, inventory, pool, deep=deep).proofs()
    finally:
        pool.shutdown(cancel_futures=True)


class Verification:
    """One look at one sink."""

    def __init__(self, subject: Subject, store: Store, inventory: Inventory, pool: Executor, *, deep: bool) -> None:
        self._subject = subject
        self._store = store
        self._inventory = inventory
        self._pool = pool
        self._root = RootProof(subject.sink, subject.place.root, objects=inventory.number)
        self._plans = Plans(subject.place, inventory, self._root)
        self._audit = PartitionAudit(subject, inventory, pool, deep=deep)
        # Positions of a redrive count letters; they are no offsets.
        self._redriven = PartitionAudit(replace(subject, offsets=False), inventory, pool, deep=deep)

    def proofs(self) -> Iterator[PartitionProof | RootProof]:
        """All of them, the root's last."""
        for proof in self._of_partitions():
            self._root.count(proof)
            yield proof
        self._check_owner()
        self._check_rest()
        yield self._root

    def _of_partitions(self) -> Iterator[PartitionProof]:
        folders = self._inventory.commit_folders()
        while some := list(islice(folders, AT_ONCE)):
            yield from self._of_folders(some)
        late: dict[str, str] | None = None
        for row in self._rows():
            if self._inventory.knows_partition(_identity(row.key, row.run)):
                continue
            if row.commit.sequence and late is None:
                late = self._late_folders()
            yield self._without_folder(row, (late or {}).get(_identity(row.key, row.run)))

    def _of_folders(self, folders: list[tuple[str, int]]) -> Iterator[PartitionProof]:
        firsts = list(ahead(self._pool, self._first, folders))
        keys = list(dict.fromkeys(first.key for first in firsts if first is not None and not self._redrive(first)))
        rows = self._rows_of(keys)
        for (folder, listed), first in zip(folders, firsts, strict=True):
            if first is None:
                self._root.doubts.add(f"no manifest in {folder} can be read")
            elif self._inventory.knows_partition(_identity(first.key, run := self._redrive(first))):
                self._root.doubts.add(f"{folder} holds manifests of partition {first.key!r}, as another folder does")
            else:
                self._inventory.note_partition(_identity(first.key, run))
                yield (
                    self._of_redrive(folder, listed, first, run)
                    if run
                    else self._audit.prove(
                        folder, listed, first.key, rows[first.key], self._plans.of(first.stream, first.label)
                    )
                )

    def _redrive(self, first: Told) -> str:
        """The run whose folder this is, if it is one that has sent dead letters again."""
        return next((run for run in self._subject.redrives if first.label.endswith(f"-{run}")), "")

    def _of_redrive(self, folder: str, listed: int, first: Told, run: str) -> PartitionProof:
        (row,) = self._store.get([Key(self._subject.pipeline, run, first.key)])
        plans = self._plans.of(first.stream, first.label.removesuffix(f"-{run}"))
        proof = self._redriven.prove(folder, listed, first.key, row, plans)
        proof.key = f"{first.key} ({run})"
        return proof

    def _rows_of(self, keys: list[str]) -> dict[str, Lease | None]:
        """The row of each key, in whichever run of this root it is."""
        rows: dict[str, Lease | None] = dict.fromkeys(keys)
        for run in self._subject.runs:
            found = self._store.get([Key(self._subject.pipeline, run, key) for key in keys])
            rows |= {row.key: row for row in found if row is not None}
        return rows

    def _first(self, listed: tuple[str, int]) -> Told | None:
        """The first manifest of a folder that is there and can be read."""
        folder, highest = listed
        for sequence in range(1, highest + 1):
            data = self._subject.place.read(manifest_at(folder, sequence))
            try:
                if data is not None:
                    return read_manifest(data)
            except Unreadable:
                continue
        return None

    # --- rows without manifests in the listing -----------------------------------------------------------------

    def _rows(self) -> Iterator[Lease]:
        for run in (*self._subject.runs, *self._subject.redrives):
            after: str | None = None
            while page := self._store.find(Query(self._subject.pipeline, run, after_key=after, limit=PAGE)):
                yield from page
                after = page[-1].key

    def _late_folders(self) -> dict[str, str]:
        """Folders of partitions whose first commit came after the listing, by key."""
        known = {folder for folder, _ in self._inventory.commit_folders()}
        place, late = self._subject.place, {}
        for stream in place.folders(COMMITS):
            for label in place.folders(f"{COMMITS}{stream}/"):
                folder = f"{COMMITS}{stream}/{label}"
                if folder not in known and (first := self._first((folder, 1))) is not None:
                    late[_identity(first.key, self._redrive(first))] = folder
        return late

    def _without_folder(self, row: Lease, folder: str | None) -> PartitionProof:
        audit = self._redriven if row.run in self._subject.redrives else self._audit
        proof = audit.prove(folder, 0, row.key, row, ())
        if not row.commit.sequence and row.unreadable is None:
            if row.progress.position is None or not self._subject.offsets:
                proof.notes.add("nothing is committed")
            else:
                proof.doubts.add(f"the store is at {row.progress.position} without a commit")
        return proof

    # --- the root ----------------------------------------------------------------------------------------------

    def _check_owner(self) -> None:
        self._inventory.claim(OWNER)
        data = self._subject.place.read(OWNER)
        try:
            owner = None if data is None else json.loads(data)
        except ValueError:
            owner = "nobody that can be read"
        if owner is None and self._root.partitions:
            self._root.doubts.add(f"{OWNER} is missing: nobody can tell whose root this is")
        elif owner not in (None, {"pipeline": self._subject.pipeline, "sink": self._subject.sink}):
            self._root.doubts.add(f"the root belongs to {owner}")

    def _check_rest(self) -> None:
        hidden = 0
        for key in self._inventory.unnamed():
            if key.startswith((COMMITS, REPLACED, DEAD_LETTERS)):
                self._root.doubts.add(f"{key} belongs to no commit")
            elif any(part.startswith(("_", ".")) for part in key.split("/")):
                hidden += not key.startswith(OURS)
            else:
                self._root.doubts.add(f"{key} is named by no manifest")
        if hidden:
            self._root.notes.add(f"{hidden} hidden objects, which readers pass over, were not looked at")


def _identity(key: str, run: str) -> str:
    """A redrive has partitions of the same keys as the live pipeline; runs with a root of their own have not."""
    return f"{key}\0{run}" if run.startswith("redrive-") else key
