"""Verifications: what is audited of a pipeline, and what the last audit has found, kept in the store for later.

The row has a bounded number of doubts, each cut to a bounded length; `holdfast verify` shows all of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from typing import TypeAlias

from holdfast.assemble import StoredPipeline, audited, audited_letters, audited_run, with_redrives
from holdfast.audit.letters import AuditedLetters, verify_letters
from holdfast.audit.proof import LettersProof, PartitionProof, RootProof
from holdfast.audit.sink import FILES, AuditedSink
from holdfast.audit.verify import verify
from holdfast.errors import AnswerLost, PartitionNotFound
from holdfast.leases.action import LONGEST_REASON, short
from holdfast.leases.lease import Json, Lease, Ownership, Progress, Status
from holdfast.leases.operator import Operator
from holdfast.leases.store import Outcome, Store

Proof: TypeAlias = PartitionProof | RootProof | LettersProof
MOST_DOUBTS = 50
LATEST = "latest"
UNDER_WAY = "under way"
"""The verdict of a verification that has not ended; its process may have died."""


def audited_parts(pipeline: StoredPipeline, run: str | None) -> tuple[list[AuditedSink], list[AuditedLetters]]:
    """Return what is audited of a pipeline, or of a rewind or backfill. Raises `UsageError` if there is nothing."""
    if run is not None:
        return audited_run(pipeline, run), []
    letters = audited_letters(pipeline.settings, pipeline.name)
    if letters and all(named.use.name != FILES for named in pipeline.configured.sinks):
        return [], letters
    return with_redrives(pipeline, audited(pipeline.settings, pipeline.name)), letters


def proofs_of(sinks: list[AuditedSink], letters: list[AuditedLetters], store: Store, *, deep: bool) -> Iterator[Proof]:
    """Yield a proof for each partition, each root and each letter box. Reads only; needs no Spark."""
    for sink in sinks:
        yield from verify(sink, store, deep=deep)
    for box in letters:
        yield verify_letters(box, store)


@dataclass(frozen=True)
class Verified:
    """What a verification has found."""

    verdict: str = UNDER_WAY
    """`proven`, `doubt`, `not read`, `failed` with an error, or `under way`."""
    by: str = ""
    deep: bool = False
    started_at: float = 0.0
    ended_at: float | None = None
    partitions: int = 0
    doubtful: int = 0
    """Partitions, roots and letter boxes with doubts."""
    files: int = 0
    rows: int = 0
    unread: int = 0
    doubts: list[str] = field(default_factory=list)
    error: str | None = None

    def plus(self, proof: Proof) -> Verified:
        """The same result with another proof counted."""
        found = replace(self, doubtful=self.doubtful + bool(proof.doubts.number))
        room = MOST_DOUBTS - len(self.doubts)
        where = f"{proof.sink}: {proof.key}" if isinstance(proof, PartitionProof) else proof.sink
        sentences = [short(f"{where}: {doubt}", LONGEST_REASON) for doubt in proof.doubts.sentences()[:room]]
        found = replace(found, doubts=[*self.doubts, *sentences])
        if not isinstance(proof, PartitionProof):
            return found
        return replace(
            found,
            partitions=found.partitions + 1,
            files=found.files + proof.files,
            rows=found.rows + proof.rows,
            unread=found.unread + proof.unread,
        )

    @property
    def conclusion(self) -> str:
        """The verdict of what was counted."""
        return "doubt" if self.doubtful else "not read" if self.unread else "proven"


@dataclass(frozen=True)
class Verification:
    """The last verification of a pipeline. Raises `StoreUnavailable` at once."""

    pipeline: StoredPipeline

    def latest(self) -> Verified | None:
        """Return the last verification, which may be under way; None if there is none."""
        try:
            state = self._rows.show(LATEST).progress.state
        except PartitionNotFound:
            return None
        return Verified(**{name: value for name, value in state.items() if name in Verified.__dataclass_fields__})

    def carry_out(self, by: str, *, deep: bool = False) -> Verified:
        """Audit the live pipeline, and keep what was found. Blocks until all is read. Raises `UsageError`."""
        store = self.pipeline.store
        found = Verified(by=short(by), deep=deep, started_at=store.now())
        sinks, letters = audited_parts(self.pipeline, None)
        self._keep(found)
        try:
            for proof in proofs_of(sinks, letters, store, deep=deep):
                found = found.plus(proof)
        except Exception as error:
            self._keep(replace(found, verdict="failed", error=short(str(error), LONGEST_REASON), ended_at=store.now()))
            raise
        found = replace(found, verdict=found.conclusion, ended_at=store.now())
        self._keep(found)
        return found

    def _keep(self, found: Verified) -> None:
        state: Json = asdict(found)
        never_due = Ownership(Status.UNASSIGNED, due_at=None, write_id=self._rows.new_id())
        if Outcome.UNKNOWN in self.pipeline.store.add([Lease(self._rows.pipeline, LATEST, ownership=never_due)]):
            raise AnswerLost("the store did not respond, so that the result may not have been kept; verify once more")
        self._rows.change(LATEST, lambda row, _now: replace(row, progress=Progress(state=state)))

    @property
    def _rows(self) -> Operator:
        return replace(self.pipeline.operator(), pipeline=f"{self.pipeline.identifier}/$verify")
