"""Checks one commit: its files exist, match the manifest, and hold each offset once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from typing import TYPE_CHECKING, Any

from holdfast.audit.chain import Span
from holdfast.audit.contents import Contents, duplicates, is_named_for, read_contents
from holdfast.audit.documents import Manifest, ManifestFile, Plan, offset_of
from holdfast.audit.inventory import Inventory
from holdfast.audit.proof import PartitionProof
from holdfast.audit.roots import read_ahead
from holdfast.audit.sink import AuditedSink

if TYPE_CHECKING:
    from holdfast.flow.format import Format


class CommitAudit:
    """Checks the commits of one partition."""

    def __init__(
        self,
        audited: AuditedSink,
        inventory: Inventory,
        proof: PartitionProof,
        plans: Sequence[Plan],
        pool: Executor,
        *,
        deep: bool,
    ) -> None:
        """`deep`: read all files.

        Otherwise only those of dead letters are read, and only the sizes of the others are compared.
        """
        self._audited = audited
        self._inventory = inventory
        self._proof = proof
        self._plans = plans
        self._moves: Mapping[str, tuple[str, Plan]] = {
            old: (new, plan) for plan in plans for old, new in plan.moves.items()
        }
        self._pool = pool
        self._deep = deep

    def check(self, manifest: Manifest, *, publishing: bool) -> Span:
        """Return what the commit contributes. `publishing`: some files may not be visible yet."""
        span = Span(manifest.sequence, manifest.start, manifest.end, files=len(manifest.files))
        span.rows = sum(file.rows for file in manifest.files if not file.is_letters)
        span.dead_letters = sum(file.rows for file in manifest.files if file.is_letters)
        span.skipped = manifest.skipped
        self._shared(manifest, span)
        if self._audited.offsets:
            self._bounds(manifest, span)
        present = []
        for file in manifest.files:
            at = self._present(manifest, file, publishing=publishing)
            if at is not None:
                present.append((file, at))
            if at not in {None, file.key}:
                span.moved += 1
                span.moved_rows += 0 if file.is_letters else file.rows
                span.moved_letters += file.rows if file.is_letters else 0
            elif not self._audited.offsets:
                self._left_behind(manifest, file)
        span.exact = self._read(manifest, span, present)
        return span

    # --- by manifest -------------------------------------------------------------------------------------------

    def _shared(self, manifest: Manifest, span: Span) -> None:
        """Check that the files hold as many rows as were routed to this sink."""
        span.share = manifest.share
        if manifest.share is None:
            return
        if span.given != manifest.share.rows or span.elsewhere < 0:
            self._proof.doubts.add(
                f"commit {manifest.sequence} has {span.given} rows, but {manifest.share.rows} of "
                f"{manifest.share.of} were routed to this sink"
            )

    def _bounds(self, manifest: Manifest, span: Span) -> None:
        """Check that items and gaps lie inside the commit's range, and that there are no more rows than offsets."""
        start, end, doubts = offset_of(manifest.start), offset_of(manifest.end), self._proof.doubts
        if start is None or end is None:
            doubts.add(f"manifest {manifest.sequence} has positions that are not offsets")
            return
        for file in manifest.files:
            if not start <= file.first <= file.last < end:
                doubts.add(
                    f"{file.key} holds offsets {file.first} to {file.last}, outside of commit {manifest.sequence}"
                )
        reached = start
        for first, stop in sorted(manifest.gaps):
            if not reached <= first < stop <= end:
                doubts.add(f"manifest {manifest.sequence} records an impossible gap, {first} to {stop - 1}")
            reached = max(reached, stop)
            span.gaps += stop - first
        self._room(manifest, span, end - start - span.gaps)

    def _room(self, manifest: Manifest, span: Span, room: int) -> None:
        if self._audited.multiplies:
            return
        if span.given > room:
            self._proof.doubts.add(
                f"commit {manifest.sequence} has {span.given} rows for {room} offsets: some are duplicates"
            )
        span.absent = max(0, room - span.given - span.elsewhere)

    def _present(self, manifest: Manifest, file: ManifestFile, *, publishing: bool) -> str | None:
        """Return the key under which the file is; None if it does not exist."""
        doubts = self._proof.doubts
        at = self._current_key(file)
        size, times = self._inventory.claim(at)
        if times > 1:
            doubts.add(f"{file.key} is named twice, the second time by manifest {manifest.sequence}")
        if size is None:
            # It may be newer than the listing.
            size = self._audited.root.size(at)
        if size is None:
            if publishing:
                self._proof.notes.add(f"{file.key} is being published")
            else:
                doubts.add(f"{at} is missing; manifest {manifest.sequence} names it")
            return None
        if size != file.size:
            doubts.add(f"{at} has {size} bytes; manifest {manifest.sequence} says {file.size}")
        return at

    def _left_behind(self, manifest: Manifest, file: ManifestFile) -> None:
        """Check that redriven records were moved if their range was written again later; otherwise they exist twice."""
        for plan in self._plans:
            within = file.first < plan.end and file.last >= plan.start
            if plan.done and within and manifest.generation < plan.generation:
                self._proof.doubts.add(
                    f"{file.key} holds redriven records of offsets that plan {plan.id} replaces, and was not moved away"
                )

    def _current_key(self, file: ManifestFile) -> str:
        if file.key not in self._moves:
            return file.key
        moved, plan = self._moves[file.key]
        old_exists = self._audited.root.size(file.key) is not None
        if old_exists and plan.done:
            self._proof.doubts.add(f"{file.key} still exists; plan {plan.id} says that it was moved away")
        if old_exists and self._audited.root.size(moved) is None:
            return file.key  # it is not moved yet
        return moved

    # --- by reading --------------------------------------------------------------------------------------------

    def _read(self, manifest: Manifest, span: Span, present: Sequence[tuple[ManifestFile, str]]) -> bool:
        """Read the files; return whether the offsets themselves were compared."""
        wanted = [(file, at) for file, at in present if self._deep or file.is_letters]
        root, chosen = self._audited.root, self._audited.format_of(manifest.stream)
        read = read_ahead(
            self._pool,
            lambda at: read_contents(root, at[0], at[1], chosen, self._others(manifest, at[0], chosen)),
            wanted,
        )
        offsets: list[Any] = []
        comparable = self._deep and self._audited.offsets and len(present) == len(manifest.files)
        span.letters_read = _letter_files(manifest.files) == _letter_files([file for file, _ in present])
        for (file, at), contents in zip(wanted, read, strict=True):
            is_right = self._compare(manifest, file, at, contents)
            span.letters_read = span.letters_read and (is_right or not file.is_letters)
            if contents is None or contents.offsets is None:
                comparable = False
            elif comparable:
                self._edges(file, contents.offsets)
                offsets.append(contents.offsets)
        if comparable and offsets:
            self._disjoint(manifest, span, offsets)
        return comparable

    def _compare(self, manifest: Manifest, file: ManifestFile, at: str, found: Contents | None) -> bool:
        """Return whether the file could be read and is what the manifest says."""
        doubts, is_current = self._proof.doubts, manifest.generation == self._audited.generation
        if found is not None and found.sha256 == file.sha256 and found.rows == file.rows:
            return True
        if found is None:
            doubts.add(f"{at} no longer exists")
        elif found.sha256 != file.sha256:
            doubts.add(f"{at} has other bytes than the committed ones: its SHA-256 is {found.sha256}")
        elif found.foreign:
            self._unread(f"{at} is not in the format of the current settings")
        else:
            wrong = f"has {found.rows} rows; its manifest says {file.rows}"
            if found.trouble is not None:
                wrong = f"cannot be read: {found.trouble}"
            if is_current or file.is_letters:
                doubts.add(f"{at} {wrong}")
            else:
                # Another generation may have had another format under the same extension.
                self._unread(
                    f"{at} cannot be read with the current settings, which are of another generation: it {wrong}"
                )
        return False

    def _unread(self, sentence: str) -> None:
        self._proof.unread += 1
        self._proof.notes.add(f"{sentence}; its digest is correct")

    def _others(self, manifest: Manifest, file: ManifestFile, chosen: Format) -> Sequence[Format]:
        """Return other formats that the file may have, unless it must have the current one."""
        if is_named_for(file, chosen) and manifest.generation == self._audited.generation:
            return ()
        return self._audited.other_formats(file.key)

    def _edges(self, file: ManifestFile, offsets: Any) -> None:
        if file.is_letter_records:
            return
        first, last = int(offsets.min()), int(offsets.max())
        if (first, last) != (file.first, file.last):
            self._proof.doubts.add(
                f"{file.key} holds offsets {first} to {last}; its manifest says {file.first} to {file.last}"
            )

    def _disjoint(self, manifest: Manifest, span: Span, parts: Sequence[Any]) -> None:
        import numpy as np

        offsets = np.concatenate(list(parts))
        if not self._audited.multiplies:
            for offset in duplicates(offsets):
                self._proof.doubts.add(f"offset {offset} occurs twice in commit {manifest.sequence}")
        different = np.unique(offsets)
        for first, stop in manifest.gaps:
            inside = int(np.count_nonzero((different >= first) & (different < stop)))
            if inside:
                self._proof.doubts.add(f"{inside} offsets exist that manifest {manifest.sequence} records as lost")
        if span.width is not None:
            elsewhere = 0 if self._audited.multiplies else span.elsewhere + span.skipped
            span.absent = max(0, span.width - span.gaps - len(different) - elsewhere)


def _letter_files(files: Sequence[ManifestFile]) -> int:
    return sum(file.is_letters for file in files)
