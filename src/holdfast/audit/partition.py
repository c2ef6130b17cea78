"""Audits one partition: compares its row in the store with its manifests, one after the other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Executor
from typing import TYPE_CHECKING

from holdfast.audit.chain import Chain
from holdfast.audit.commits import CommitAudit
from holdfast.audit.documents import Manifest, Plan, Receipt, Unreadable, offset_of, read_manifest, read_receipt
from holdfast.audit.inventory import Inventory
from holdfast.audit.proof import PartitionProof
from holdfast.audit.roots import read_ahead
from holdfast.audit.sink import AuditedSink
from holdfast.leases.transitions import set_aside_for

if TYPE_CHECKING:
    from holdfast.leases.lease import Lease


def manifest_at(folder: str, sequence: int) -> str:
    """Return the key of a manifest."""
    return f"{folder}/{sequence:020d}.json"


class PartitionAudit:
    """Proves one partition, or reports doubts."""

    def __init__(self, audited: AuditedSink, inventory: Inventory, pool: Executor, *, deep: bool) -> None:
        self._audited = audited
        self._inventory = inventory
        self._pool = pool
        self._deep = deep

    def prove(
        self, folder: str | None, listed: int, key: str, row: Lease | None, plans: Sequence[Plan]
    ) -> PartitionProof:
        """Return the proof of the partition whose manifests are in the folder, up to number `listed`."""
        proof = PartitionProof(self._audited.sink, key, status=None if row is None else row.status.value)
        # Only the live pipeline writes a range again; its own chain shows whether it has.
        chain = Chain(proof, plans if self._audited.offsets else ())
        commits = CommitAudit(self._audited, self._inventory, proof, plans, self._pool, deep=self._deep)
        last = listed if row is None or row.unreadable is not None else row.commit.sequence
        pending = row is not None and row.commit.receipts is not None
        for sequence, manifest in self._manifests(folder, range(1, last + 1), proof):
            publishing = pending and sequence == last
            if manifest is None:
                if not publishing:
                    chain.missing(sequence)
                continue
            self._belongs(proof, key, sequence, manifest)
            chain.add(manifest, commits.check(manifest, publishing=publishing))
        self._forgotten(folder, range(last + 1, listed + 1), proof, commits)
        self._against_row(proof, chain, row)
        chain.close(under_way=_plan_under_way(row))
        return proof

    def _forgotten(self, folder: str | None, sequences: range, proof: PartitionProof, commits: CommitAudit) -> None:
        """Check commits that the store has lost: their files count as named by a manifest, but not in the proof."""
        last = sequences.start - 1
        for sequence, manifest in self._manifests(folder, sequences, proof):
            if manifest is not None:
                proof.doubts.add(f"the store is behind: it has {last} commits, and there is manifest {sequence}")
                commits.check(manifest, publishing=False)

    def _manifests(
        self, folder: str | None, sequences: range, proof: PartitionProof
    ) -> Iterator[tuple[int, Manifest | None]]:
        """Yield each number with its manifest; None if the manifest or the folder does not exist."""
        if folder is None:
            yield from ((sequence, None) for sequence in sequences)
            return
        keys = (manifest_at(folder, sequence) for sequence in sequences)
        for sequence, data in zip(sequences, read_ahead(self._pool, self._audited.root.read, keys), strict=True):
            self._inventory.claim(manifest_at(folder, sequence))
            if data is None:
                yield sequence, None
                continue
            try:
                yield sequence, read_manifest(data)
            except Unreadable as wrong:
                proof.doubts.add(f"manifest {sequence} cannot be read: {wrong}")

    def _belongs(self, proof: PartitionProof, key: str, sequence: int, manifest: Manifest) -> None:
        proof.stream, proof.label = proof.stream or manifest.stream, proof.label or manifest.label
        stated = (manifest.sequence, manifest.pipeline, manifest.key, manifest.stream, manifest.label)
        if stated != (sequence, self._audited.pipeline, key, proof.stream, proof.label):
            proof.doubts.add(
                f"manifest {sequence} says that it is manifest {manifest.sequence} of {manifest.stream} "
                f"{manifest.label}, partition {manifest.key!r} of pipeline {manifest.pipeline!r}"
            )

    # --- against the row ---------------------------------------------------------------------------------------

    def _against_row(self, proof: PartitionProof, chain: Chain, row: Lease | None) -> None:
        if row is None:
            proof.doubts.add("the store has no row for this partition")
        elif row.unreadable is not None:
            proof.doubts.add("the row in the store cannot be read")
        else:
            self._halted(proof, row)
            self._committed(proof, chain, row)
            self._origins(proof, row, chain.last)

    def _halted(self, proof: PartitionProof, row: Lease) -> None:
        if row.history.halt_reason is None:
            return
        sentence = f"the partition is halted: {row.history.halt_reason}"
        if row.history.lost is not None:
            proof.doubts.add(sentence)
        elif row.commit.receipts is None:
            proof.notes.add(sentence)
        else:
            proof.doubts.add(f"{sentence}; its last commit waits to be published")

    def _committed(self, proof: PartitionProof, chain: Chain, row: Lease) -> None:
        receipt = self._receipt(proof, row)
        if row.commit.receipts is not None and receipt is None:
            return
        last = chain.last
        if receipt is not None:
            proof.notes.add(f"commit {row.commit.sequence} is being published")
        if receipt is not None and (last is None or last.sequence < row.commit.sequence):
            self._not_yet_visible(proof, chain, row, receipt)
        elif last is not None and last.sequence == row.commit.sequence:
            self._same_end(proof, chain, row, last)
            self._counts(proof, chain, row)

    def _receipt(self, proof: PartitionProof, row: Lease) -> Receipt | None:
        if row.commit.receipts is None:
            return None
        try:
            return read_receipt(row.commit.receipts[self._audited.sink])
        except KeyError:
            proof.doubts.add(f"commit {row.commit.sequence} is not published, and has no receipt of this sink")
        except Unreadable as wrong:
            proof.doubts.add(f"the receipt of commit {row.commit.sequence} cannot be read: {wrong}")
        return None

    def _not_yet_visible(self, proof: PartitionProof, chain: Chain, row: Lease, receipt: Receipt) -> None:
        """Check a last commit without a manifest: its receipt must explain the position."""
        position = row.progress.position
        proof.start = receipt.start if chain.last is None else proof.start
        if receipt.end != position:
            proof.doubts.add(f"the store is at {_shown(position)}, and its receipt ends at {_shown(receipt.end)}")
        if chain.last is not None and receipt.start != chain.last.end and not chain.step_back(receipt.start):
            proof.doubts.add(
                f"the receipt begins at {_shown(receipt.start)}, and the last manifest ends at {_shown(chain.last.end)}"
            )
        proof.end = proof.start if chain.last is None else proof.end
        self._counts(proof, chain, row, waiting=receipt.rows)

    def _same_end(self, proof: PartitionProof, chain: Chain, row: Lease, last: Manifest) -> None:
        purged = row.status.value == "COMPLETED" and row.progress.position is None
        if purged:
            proof.notes.add("its row was purged: the position is no longer known")
        elif row.progress.position != last.end and not chain.step_back(row.progress.position):
            position, end = offset_of(row.progress.position), offset_of(last.end)
            where = "" if position is None or end is None else "ahead of " if position > end else "behind "
            proof.doubts.add(
                f"the store is at {_shown(row.progress.position)}, {where or 'not at '}the end of the last manifest, "
                f"{_shown(last.end)}"
            )
        if row.commit.commit_id and row.commit.commit_id != last.commit_id:
            proof.doubts.add(f"manifest {last.sequence} belongs to another commit than the store's: {last.commit_id}")

    def _counts(self, proof: PartitionProof, chain: Chain, row: Lease, waiting: int = 0) -> None:
        """Compare the chain with the store's own counts of the rows that were staged for all sinks."""
        counted = row.progress.counts.processed - waiting
        has_counts = row.history.created_at is not None and self._audited.counts_rows
        if has_counts and not proof.doubts.number and counted != chain.records:
            proof.doubts.add(f"the store has counted {counted} rows, and the manifests have {chain.records}")

    def _origins(self, proof: PartitionProof, row: Lease, last: Manifest | None) -> None:
        if last is None:
            return
        if row.commit.incarnation != last.incarnation:
            proof.doubts.add(f"the store is at another incarnation of the source: {row.commit.incarnation!r}")
        if row.commit.generation < last.generation:
            proof.doubts.add(f"the store is at generation {row.commit.generation}, before that of the last manifest")


def _plan_under_way(row: Lease | None) -> str | None:
    """Return the id of the plan for which the partition was set aside."""
    why = None if row is None else set_aside_for(row)
    return why.get("plan") if isinstance(why, dict) else None


def _shown(position: object) -> str:
    offset = offset_of(position)
    return str(position) if offset is None else f"offset {offset}"
