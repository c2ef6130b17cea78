"""One commit: whether its files are there, are what the manifest says, and hold each offset once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from typing import TYPE_CHECKING, Any

from holdfast.audit.ahead import ahead
from holdfast.audit.chain import Span
from holdfast.audit.contents import Contents, doubled, is_named_for, look_into
from holdfast.audit.inventory import Inventory
from holdfast.audit.proof import PartitionProof
from holdfast.audit.subject import Subject
from holdfast.audit.witness import Plan, Told, ToldFile, offset_of

if TYPE_CHECKING:
    from holdfast.flow.format import Format


class CommitAudit:
    """Checks the commits of one partition."""

    def __init__(
        self,
        subject: Subject,
        inventory: Inventory,
        proof: PartitionProof,
        plans: Sequence[Plan],
        pool: Executor | None,
    ) -> None:
        """With a pool, files are read; without one, only their size is compared."""
        self._subject = subject
        self._inventory = inventory
        self._proof = proof
        self._plans = plans
        self._moves: Mapping[str, tuple[str, Plan]] = {
            old: (new, plan) for plan in plans for old, new in plan.moves.items()
        }
        self._pool = pool

    def check(self, told: Told, *, publishing: bool) -> Span:
        """What the commit contributes. `publishing`: its files may still be on their way."""
        span = Span(told.sequence, told.start, told.end, files=len(told.files))
        span.rows = sum(file.rows for file in told.files if not file.is_letters)
        span.dead_letters = sum(file.rows for file in told.files if file.is_letters)
        self._shared(told, span)
        if self._subject.offsets:
            self._bounds(told, span)
        there = []
        for file in told.files:
            at = self._present(told, file, publishing=publishing)
            if at is not None:
                there.append((file, at))
            if at not in {None, file.key}:
                span.moved += 1
                span.moved_rows += 0 if file.is_letters else file.rows
                span.moved_letters += file.rows if file.is_letters else 0
            elif not self._subject.offsets:
                self._left_behind(told, file)
        span.exact = self._read(told, span, there)
        return span

    # --- by manifest -------------------------------------------------------------------------------------------

    def _shared(self, told: Told, span: Span) -> None:
        """The files hold as many rows as this sink was given by its routes."""
        span.share = told.share
        if told.share is None:
            return
        records = span.rows + span.dead_letters
        if records != told.share.rows or span.elsewhere < 0:
            self._proof.doubts.add(
                f"commit {told.sequence} has {records} rows, and by their routes {told.share.rows} of "
                f"{told.share.of} were for this sink"
            )

    def _bounds(self, told: Told, span: Span) -> None:
        """Items and gaps lie inside the commit's range, and there are no more rows than offsets."""
        start, end, doubts = offset_of(told.start), offset_of(told.end), self._proof.doubts
        if start is None or end is None:
            doubts.add(f"manifest {told.sequence} has positions that are no offsets")
            return
        for file in told.files:
            if not start <= file.first <= file.last < end:
                doubts.add(f"{file.key} holds offsets {file.first} to {file.last}, outside of commit {told.sequence}")
        reached = start
        for first, stop in sorted(told.gaps):
            if not reached <= first < stop <= end:
                doubts.add(f"manifest {told.sequence} records a gap {first} to {stop - 1} that cannot be")
            reached = max(reached, stop)
            span.gaps += stop - first
        self._room(told, span, end - start - span.gaps)

    def _room(self, told: Told, span: Span, room: int) -> None:
        if self._subject.multiplies:
            return
        records = span.rows + span.dead_letters
        if records > room:
            self._proof.doubts.add(f"commit {told.sequence} has {records} rows for {room} offsets: some are doubled")
        span.absent = max(0, room - records - span.elsewhere)

    def _present(self, told: Told, file: ToldFile, *, publishing: bool) -> str | None:
        """The key where the file is; None if it is nowhere."""
        doubts = self._proof.doubts
        at = self._whereabouts(file)
        size, times = self._inventory.claim(at)
        if times > 1:
            doubts.add(f"{file.key} is named twice, the second time by manifest {told.sequence}")
        if size is None:
            # Perhaps younger than the listing.
            size = self._subject.place.size(at)
        if size is None:
            if publishing:
                self._proof.notes.add(f"{file.key} is being published")
            else:
                doubts.add(f"{at} is missing; manifest {told.sequence} names it")
            return None
        if size != file.size:
            doubts.add(f"{at} has {size} bytes; manifest {told.sequence} says {file.size}")
        return at

    def _left_behind(self, told: Told, file: ToldFile) -> None:
        """What a redrive has written of a range that was written again later is there twice unless it was moved."""
        for plan in self._plans:
            within = file.first < plan.end and file.last >= plan.start
            if plan.done and within and told.generation < plan.generation:
                self._proof.doubts.add(
                    f"{file.key} holds redriven records of offsets that plan {plan.id} replaces, and was not moved away"
                )

    def _whereabouts(self, file: ToldFile) -> str:
        if file.key not in self._moves:
            return file.key
        moved, plan = self._moves[file.key]
        old_is_there = self._subject.place.size(file.key) is not None
        if old_is_there and plan.done:
            self._proof.doubts.add(f"{file.key} is still there; plan {plan.id} says that it was moved away")
        if old_is_there and self._subject.place.size(moved) is None:
            return file.key  # its turn has not come
        return moved

    # --- by reading --------------------------------------------------------------------------------------------

    def _read(self, told: Told, span: Span, there: Sequence[tuple[ToldFile, str]]) -> bool:
        """Whether the offsets themselves were compared."""
        if self._pool is None:
            return False
        place, chosen = self._subject.place, self._subject.format_of(told.stream)
        read = ahead(
            self._pool,
            lambda one: look_into(place, one[0], one[1], chosen, self._others(told, one[0], chosen)),
            there,
        )
        offsets: list[Any] = []
        known = self._subject.offsets and len(there) == len(told.files)
        for (file, at), contents in zip(there, read, strict=True):
            self._compare(told, file, at, contents)
            if contents is None or contents.offsets is None:
                known = False
            elif known:
                self._edges(file, contents.offsets)
                offsets.append(contents.offsets)
        if known and offsets:
            self._disjoint(told, span, offsets)
        return known

    def _compare(self, told: Told, file: ToldFile, at: str, found: Contents | None) -> None:
        doubts, is_todays = self._proof.doubts, told.generation == self._subject.generation
        if found is None:
            doubts.add(f"{at} has vanished")
        elif found.sha256 != file.sha256:
            doubts.add(f"{at} has other bytes than were committed: its SHA-256 is {found.sha256}")
        elif found.foreign:
            self._unread(f"{at} is not in the format of today's settings")
        elif found.rows != file.rows:
            wrong = f"has {found.rows} rows; its manifest says {file.rows}"
            if found.trouble is not None:
                wrong = f"cannot be read: {found.trouble}"
            if is_todays:
                doubts.add(f"{at} {wrong}")
            else:
                # Another generation may have had another format under the same extension.
                self._unread(f"{at} cannot be read by today's settings, which are of another generation: it {wrong}")

    def _unread(self, sentence: str) -> None:
        self._proof.unread += 1
        self._proof.notes.add(f"{sentence}; its digest is right")

    def _others(self, told: Told, file: ToldFile, chosen: Format) -> Sequence[Format]:
        """Formats that the file may have had, if today's need not be its own."""
        if is_named_for(file, chosen) and told.generation == self._subject.generation:
            return ()
        return self._subject.other_formats(file.key)

    def _edges(self, file: ToldFile, offsets: Any) -> None:
        first, last = int(offsets.min()), int(offsets.max())
        if (first, last) != (file.first, file.last):
            self._proof.doubts.add(
                f"{file.key} holds offsets {first} to {last}; its manifest says {file.first} to {file.last}"
            )

    def _disjoint(self, told: Told, span: Span, parts: Sequence[Any]) -> None:
        import numpy as np

        offsets = np.concatenate(list(parts))
        if not self._subject.multiplies:
            for offset in doubled(offsets):
                self._proof.doubts.add(f"offset {offset} is there twice in commit {told.sequence}")
        different = np.unique(offsets)
        for first, stop in told.gaps:
            inside = int(np.count_nonzero((different >= first) & (different < stop)))
            if inside:
                self._proof.doubts.add(f"{inside} offsets are there that manifest {told.sequence} records as lost")
        if span.width is not None:
            elsewhere = 0 if self._subject.multiplies else span.elsewhere
            span.absent = max(0, span.width - span.gaps - len(different) - elsewhere)
