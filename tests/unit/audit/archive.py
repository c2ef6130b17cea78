"""Roots made by hand: plain JSON and bytes in a folder, and a row in a store. Nothing here is the product's writer."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from holdfast.audit.proof import PartitionProof, RootProof
from holdfast.audit.roots import FolderRoot
from holdfast.audit.sink import AuditedSink
from holdfast.audit.verify import verify
from holdfast.formats.raw import Raw
from holdfast.formats.text import Text
from holdfast.leases.lease import Commit, Counts, History, Lease, Ownership, Progress, Status
from holdfast.leases.query import Query
from holdfast.leases.store import Store, Swap
from holdfast.stores.memory import MemoryStore

PIPELINE, SINK, TOPIC = "prod|archive", "files", "orders"
RAW = pa.schema(
    {
        "offset": pa.int64(),
        "timestamp": pa.timestamp("us", "UTC"),
        "timestamp_type": pa.int32(),
        "key": pa.binary(),
        "value": pa.binary(),
        "headers": pa.list_(pa.struct({"key": pa.string(), "value": pa.binary()})),
    }
)


class Archive:
    """One topic in one root. `raw` keeps offsets, text does not."""

    def __init__(self, root: Path, *, raw: bool = True, pipeline: str = PIPELINE, store: Store | None = None) -> None:
        self.root = root
        self.raw = raw
        self.pipeline = pipeline
        self.store = store or MemoryStore()
        self.store.open()
        self.manifests: dict[str, list[dict[str, Any]]] = {}
        self.write("_holdfast/owner.json", json.dumps({"pipeline": pipeline, "sink": SINK}).encode())

    # --- files -------------------------------------------------------------------------------------------------

    def write(self, key: str, data: bytes) -> None:
        path = self.root / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)

    def move(self, old: str, new: str) -> None:
        self.path(new).parent.mkdir(parents=True, exist_ok=True)
        self.path(old).rename(self.path(new))

    def path(self, key: str) -> Path:
        return self.root / key

    def manifest_path(self, sequence: int, label: str = "0") -> Path:
        return self.root / f"_holdfast/commits/{TOPIC}/{label}/{sequence:020d}.json"

    def data_file(
        self, offsets: Sequence[int], *, output_folder: str = "", label: str = "0", generation: int = 1
    ) -> dict[str, Any]:
        """Write a data file; answers what a manifest says of it."""
        extension = "parquet" if self.raw else "txt"
        folder = f"{TOPIC}/{output_folder}/" if output_folder else f"{TOPIC}/"
        key = f"{folder}{generation}_{label}_{offsets[0]:020d}.{extension}"
        return self.raw_file(key, _raw(offsets) if self.raw else _text(offsets), offsets)

    def dead_letters(self, offsets: Sequence[int], *, label: str = "0", generation: int = 1) -> dict[str, Any]:
        origin = {"pipeline": self.pipeline, "key": f"{TOPIC}|{label}"}
        lines = [json.dumps({"reason": "no time", "origin": {**origin, "item": offset}}) + "\n" for offset in offsets]
        key = f"_holdfast/deadletters/{TOPIC}/{generation}_{label}_{offsets[0]:020d}.jsonl"
        return self.raw_file(key, "".join(lines).encode(), offsets)

    def raw_file(self, key: str, data: bytes, offsets: Sequence[int]) -> dict[str, Any]:
        """Write a file of these bytes; returns what a manifest says of it."""
        self.write(key, data)
        digest = hashlib.sha256(data).hexdigest()
        ends = {"first": min(offsets), "last": max(offsets)}
        return {"key": key, "rows": len(offsets), "size": len(data), "sha256": digest, **ends}

    # --- commits -----------------------------------------------------------------------------------------------

    def commit(
        self, start: int, end: int, files: Iterable[dict[str, Any]] | None = None, **fields: Any
    ) -> dict[str, Any]:
        """Write a manifest and, unless files are given, one file with every offset of the range; then move the row."""
        label = fields.pop("label", "0")
        before = self.manifests.setdefault(label, [])
        generation = fields.get("generation", 1)
        if files is None:
            files = [self.data_file(range(start, end), label=label, generation=generation)]
        sequence = len(before) + 1
        manifest = {
            "commit_id": f"commit-{label}-{sequence}",
            "pipeline": self.pipeline,
            "key": f"{TOPIC}|{label}",
            "stream": TOPIC,
            "label": label,
            "sequence": sequence,
            "generation": generation,
            "incarnation": "topic-id",
            "token": 1,
            "start": {"offset": start},
            "end": {"offset": end},
            "files": list(files),
            "gaps": [],
            **fields,
        }
        before.append(manifest)
        self.rewrite(manifest)
        self.set_row(label=label)
        return manifest

    def rewrite(self, manifest: Mapping[str, Any]) -> None:
        """Write a manifest as it is."""
        key = f"_holdfast/commits/{TOPIC}/{manifest['label']}/{manifest['sequence']:020d}.json"
        self.write(key, json.dumps(manifest).encode())

    def pend(self, start: int, end: int) -> dict[str, Any]:
        """Commit a range in the store only, as before its publication; answers the receipt."""
        last = self.row()
        receipt = {"from": {"offset": start}, "to": {"offset": end}, "token": 1, "files": [{"rows": end - start}]}
        self.put(
            replace(
                last,
                progress=replace(
                    last.progress,
                    position={"offset": end},
                    counts=last.progress.counts + Counts(processed=end - start),
                ),
                commit=replace(
                    last.commit, sequence=last.commit.sequence + 1, commit_id="pending", receipts={SINK: receipt}
                ),
            )
        )
        return receipt

    # --- the row -----------------------------------------------------------------------------------------------

    def set_row(self, label: str = "0", *, position: int | None = None, sequence: int | None = None) -> None:
        """The row as the manifests have it, but for what is given."""
        manifests = self.manifests.get(label, [])
        last: dict[str, Any] = manifests[-1] if manifests else {"generation": 1, "commit_id": "", "end": None}
        rows = sum(file["rows"] for manifest in manifests for file in manifest["files"])
        rows += sum(manifest.get("skipped", 0) for manifest in manifests)
        self.put(
            Lease(
                self.pipeline,
                f"{TOPIC}|{label}",
                group=TOPIC,
                spec={"topic": TOPIC, "partition": int(label), "start": "earliest"},
                ownership=Ownership(Status.UNASSIGNED),
                progress=Progress(
                    last["end"] if position is None else {"offset": position}, counts=Counts(processed=rows)
                ),
                commit=Commit(
                    len(manifests) if sequence is None else sequence, last["generation"], "topic-id", last["commit_id"]
                ),
                history=History(created_at=1.0),
            )
        )

    def row(self, label: str = "0") -> Lease:
        lease = next((row for row in self.store.find(Query(self.pipeline)) if row.key == f"{TOPIC}|{label}"), None)
        assert lease is not None
        return lease

    def put(self, lease: Lease) -> None:
        self.store.add([lease])
        (present,) = self.store.get([lease.id])
        assert present is not None
        version = present.version
        self.store.swap([Swap(version, replace(lease, ownership=replace(lease.ownership, version=version + 1)))])

    # --- audit -------------------------------------------------------------------------------------------------

    def audited(self, **options: Any) -> AuditedSink:
        chosen = Raw() if self.raw else Text()
        return AuditedSink(self.pipeline, SINK, FolderRoot(str(self.root)), lambda _: chosen, **options)

    def proofs(self, *, deep: bool = False, **options: Any) -> list[PartitionProof | RootProof]:
        return list(verify(self.audited(**options), self.store, deep=deep))

    def proof(self, *, deep: bool = False, **options: Any) -> PartitionProof:
        """Of the only partition."""
        proof, _ = self.proofs(deep=deep, **options)
        assert isinstance(proof, PartitionProof)
        return proof

    def root_proof(self) -> RootProof:
        proof = self.proofs()[-1]
        assert isinstance(proof, RootProof)
        return proof

    def doubts(self, *, deep: bool = False, **options: Any) -> list[str]:
        """All of them, of partitions and of the root."""
        return [sentence for proof in self.proofs(deep=deep, **options) for sentence in proof.doubts.sentences()]


def _text(offsets: Sequence[int]) -> bytes:
    return b"".join(b"message %d\n" % offset for offset in offsets)


def _raw(offsets: Sequence[int]) -> bytes:
    rows = [
        {"offset": offset, "timestamp": offset, "timestamp_type": 0, "key": None, "value": b"message", "headers": None}
        for offset in offsets
    ]
    sink = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_pylist(rows, RAW), sink)
    return bytes(sink.getvalue())
