"""Verifies one sink: the listing first, then rows and manifests partition by partition, then all other files.

Memory is bounded by one partition, because the listing is kept on disk. The pipeline may keep running.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import replace
from itertools import islice

from holdfast.audit.documents import DEAD_LETTERS, LETTER_RECORDS, Manifest, Unreadable, read_manifest
from holdfast.audit.inventory import COMMITS, REPLACED, Inventory
from holdfast.audit.manifests import Plans
from holdfast.audit.partition import PartitionAudit, manifest_at
from holdfast.audit.proof import PartitionProof, RootProof
from holdfast.audit.roots import OURS, THREADS, read_ahead
from holdfast.audit.sink import AuditedSink
from holdfast.leases.lease import Key, Lease
from holdfast.leases.query import Query
from holdfast.leases.store import Store

OWNER = f"{OURS}owner.json"
AT_ONCE = 200
PAGE = 1000


def verify(audited: AuditedSink, store: Store, *, deep: bool = False) -> Iterator[PartitionProof | RootProof]:
    """Yield a proof of each partition, and at the end one of the root. Blocks; changes nothing.

    Raises `Unavailable` or `StoreUnavailable`; then nothing is proven or doubted.
    """
    pool = ThreadPoolExecutor(THREADS, thread_name_prefix="holdfast-audit")
    try:
        with Inventory() as inventory:
            inventory.fill(audited.root.listing())
            yield from Verification(audited, store, inventory, pool, deep=deep).proofs()
    finally:
        pool.shutdown(cancel_futures=True)


class Verification:
    """One audit of one sink."""

    def __init__(self, audited: AuditedSink, store: Store, inventory: Inventory, pool: Executor, *, deep: bool) -> None:
        self._audited = audited
        self._store = store
        self._inventory = inventory
        self._pool = pool
        self._root_proof = RootProof(audited.sink, audited.root.location, objects=inventory.number)
        self._plans = Plans(audited.root, inventory, self._root_proof)
        self._audit = PartitionAudit(audited, inventory, pool, deep=deep)
        # Positions of a redrive count letters; they are not offsets.
        self._redriven = PartitionAudit(replace(audited, offsets=False), inventory, pool, deep=deep)

    def proofs(self) -> Iterator[PartitionProof | RootProof]:
        """Yield all proofs, the root's last."""
        for proof in self._of_partitions():
            self._root_proof.count(proof)
            yield proof
        self._check_owner()
        self._check_rest()
        yield self._root_proof

    def _of_partitions(self) -> Iterator[PartitionProof]:
        folders = self._inventory.commit_folders()
        while chunk := list(islice(folders, AT_ONCE)):
            yield from self._of_folders(chunk)
        late: dict[str, str] | None = None
        for row in self._rows():
            if self._inventory.has_partition(_identity(row.key, row.run)):
                continue
            if row.commit.sequence and late is None:
                late = self._late_folders()
            yield self._without_folder(row, (late or {}).get(_identity(row.key, row.run)))

    def _of_folders(self, folders: list[tuple[str, int]]) -> Iterator[PartitionProof]:
        firsts = list(read_ahead(self._pool, self._first, folders))
        keys = list(dict.fromkeys(first.key for first in firsts if first is not None and not self._redrive(first)))
        rows = self._rows_of(keys)
        for (folder, listed), first in zip(folders, firsts, strict=True):
            if first is None:
                self._root_proof.doubts.add(f"no manifest in {folder} can be read")
            elif self._inventory.has_partition(_identity(first.key, run := self._redrive(first))):
                self._root_proof.doubts.add(
                    f"{folder} holds manifests of partition {first.key!r}, and so does another folder"
                )
            else:
                self._inventory.note_partition(_identity(first.key, run))
                yield (
                    self._of_redrive(folder, listed, first, run)
                    if run
                    else self._audit.prove(
                        folder, listed, first.key, rows[first.key], self._plans.of(first.stream, first.label)
                    )
                )

    def _redrive(self, first: Manifest) -> str:
        """Return the id of the redrive that wrote this folder; empty if no redrive did."""
        return next((run for run in self._audited.redrives if first.label.endswith(f"-{run}")), "")

    def _of_redrive(self, folder: str, listed: int, first: Manifest, run: str) -> PartitionProof:
        (row,) = self._store.get([Key(self._audited.pipeline, run, first.key)])
        plans = self._plans.of(first.stream, first.label.removesuffix(f"-{run}"))
        proof = self._redriven.prove(folder, listed, first.key, row, plans)
        proof.key = f"{first.key} ({run})"
        return proof

    def _rows_of(self, keys: list[str]) -> dict[str, Lease | None]:
        """Return the row of each key, from any run of this root."""
        rows: dict[str, Lease | None] = dict.fromkeys(keys)
        for run in self._audited.runs:
            found = self._store.get([Key(self._audited.pipeline, run, key) for key in keys])
            rows |= {row.key: row for row in found if row is not None}
        return rows

    def _first(self, listed: tuple[str, int]) -> Manifest | None:
        """Return the first readable manifest of a folder."""
        folder, highest = listed
        for sequence in range(1, highest + 1):
            data = self._audited.root.read(manifest_at(folder, sequence))
            try:
                if data is not None:
                    return read_manifest(data)
            except Unreadable:
                continue
        return None

    # --- rows without manifests in the listing -----------------------------------------------------------------

    def _rows(self) -> Iterator[Lease]:
        for run in (*self._audited.runs, *self._audited.redrives):
            after: str | None = None
            while page := self._store.find(Query(self._audited.pipeline, run, after_key=after, limit=PAGE)):
                yield from page
                after = page[-1].key

    def _late_folders(self) -> dict[str, str]:
        """Return the folders of partitions whose first commit came after the listing, by key."""
        listed = {folder for folder, _ in self._inventory.commit_folders()}
        root, late = self._audited.root, {}
        for stream in root.folders(COMMITS):
            for label in root.folders(f"{COMMITS}{stream}/"):
                folder = f"{COMMITS}{stream}/{label}"
                if folder not in listed and (first := self._first((folder, 1))) is not None:
                    late[_identity(first.key, self._redrive(first))] = folder
        return late

    def _without_folder(self, row: Lease, folder: str | None) -> PartitionProof:
        audit = self._redriven if row.run in self._audited.redrives else self._audit
        proof = audit.prove(folder, 0, row.key, row, ())
        if not row.commit.sequence and row.unreadable is None:
            if row.progress.position is None or not self._audited.offsets:
                proof.notes.add("nothing is committed")
            else:
                proof.doubts.add(f"the store is at {row.progress.position} without a commit")
        return proof

    # --- the root ----------------------------------------------------------------------------------------------

    def _check_owner(self) -> None:
        self._inventory.claim(OWNER)
        data = self._audited.root.read(OWNER)
        try:
            owner = None if data is None else json.loads(data)
        except ValueError:
            owner = "an unreadable owner"
        if owner is None and self._root_proof.partitions:
            self._root_proof.doubts.add(f"{OWNER} is missing: the owner of this root is unknown")
        elif owner not in (None, {"pipeline": self._audited.pipeline, "sink": self._audited.sink}):
            self._root_proof.doubts.add(f"the root belongs to {owner}")

    def _check_rest(self) -> None:
        hidden = 0
        for key in self._inventory.unnamed():
            if key.startswith((COMMITS, REPLACED, DEAD_LETTERS, LETTER_RECORDS)):
                self._root_proof.doubts.add(f"{key} belongs to no commit")
            elif any(part.startswith(("_", ".")) for part in key.split("/")):
                hidden += not key.startswith(OURS)
            else:
                self._root_proof.doubts.add(f"{key} is named by no manifest")
        if hidden:
            self._root_proof.notes.add(f"{hidden} hidden objects, which readers ignore, were not checked")


def _identity(key: str, run: str) -> str:
    """Return a key that is unique in the root: redrives have partitions with the keys of the live pipeline."""
    return f"{key}\0{run}" if run.startswith("redrive-") else key
