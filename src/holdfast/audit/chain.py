"""The chain of a partition's manifests: whether they are contiguous, and what they cover. Pure.

Positions are compared for equality; if they are offsets, the numbers show what is missing or duplicated.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from holdfast.audit.documents import Manifest, Plan, Share, offset_of
from holdfast.audit.proof import PartitionProof


@dataclass(slots=True)
class Span:
    """What one commit contributes to the proof."""

    sequence: int
    start: Any
    end: Any
    files: int = 0
    rows: int = 0
    dead_letters: int = 0
    skipped: int = 0
    gaps: int = 0
    share: Share | None = None
    absent: int | None = None
    moved: int = 0
    """Files of the commit that a plan has moved away."""
    moved_rows: int = 0
    moved_letters: int = 0
    """Rows and dead letters in the moved files."""
    letters_read: bool = True
    """Whether the files of dead letters were read back, all of them."""
    exact: bool = True

    @property
    def elsewhere(self) -> int:
        return 0 if self.share is None else self.share.elsewhere

    @property
    def records(self) -> int:
        """Rows and dead letters of the batch, including those skipped, and those routed to other sinks only."""
        return self.given if self.share is None else self.share.of

    @property
    def given(self) -> int:
        """Rows of the batch that came to the sink."""
        return self.rows + self.dead_letters + self.skipped

    @property
    def width(self) -> int | None:
        start, end = offset_of(self.start), offset_of(self.end)
        return None if start is None or end is None else end - start


class Chain:
    """Checks the commits of one partition in order, and adds to its proof."""

    def __init__(self, proof: PartitionProof, plans: Sequence[Plan] = ()) -> None:
        self._proof = proof
        self._plans = list(plans)
        self._waiting = list(plans)
        self._spans: list[Span] = []
        self._exact: bool | None = None
        self.last: Manifest | None = None
        self.records = 0
        """Rows and dead letters of all commits, including replaced ones and those routed to other sinks only."""

    def missing(self, sequence: int) -> None:
        """Note that this manifest is missing; later ones may follow."""
        self._proof.doubts.add(f"manifest {sequence} is missing")

    def add(self, manifest: Manifest, span: Span) -> None:
        """Add the next commit; `span` is the contents of its files."""
        if self.last is None:
            self._proof.start = manifest.start
        else:
            self._follows(self.last, manifest)
        width = span.width
        if width is not None and width < 0:
            self._proof.doubts.add(
                f"manifest {manifest.sequence} ends before it begins: {manifest.start} to {manifest.end}"
            )
        self._proof.end = manifest.end
        self._spans.append(span)
        self.records += span.records
        self.last = manifest
        if not self._plans:
            self._proof.replaced += span.moved
            self._settle()

    def _follows(self, before: Manifest, manifest: Manifest) -> None:
        doubts = self._proof.doubts
        if manifest.generation < before.generation:
            doubts.add(
                f"manifest {manifest.sequence} has generation {manifest.generation}, "
                f"after generation {before.generation}"
            )
        if manifest.incarnation != before.incarnation:
            doubts.add(f"manifest {manifest.sequence} has another incarnation of the source: {manifest.incarnation!r}")
        if manifest.start != before.end and not self.step_back(manifest.start):
            doubts.add(_break(before, manifest))

    def step_back(self, start: Any) -> bool:
        """Return whether plans explain that reading went back to `start`; replaced commits then no longer count."""
        path = self._path_back(offset_of(start))
        for plan in path:
            self._waiting.remove(plan)
            while self._spans and (offset_of(self._spans[-1].end) or 0) > plan.start:
                self._replace(self._spans.pop(), plan)
            self._proof.notes.add(f"offsets {plan.start} to {plan.end - 1} are written again by plan {plan.id}")
            self._proof.end = start
        return bool(path)

    def _path_back(self, start: int | None) -> list[Plan]:
        """Return the plans that lead from the end of the chain back to `start` in steps; empty if they do not."""
        at, path = None if self.last is None else offset_of(self.last.end), list[Plan]()
        while at is not None and start is not None and at > start:
            left = (plan for plan in self._waiting if plan not in path)
            plan = next((candidate for candidate in left if candidate.end == at and candidate.start >= start), None)
            if plan is None:
                return []
            path.append(plan)
            at = plan.start
        return path

    def _replace(self, span: Span, plan: Plan) -> None:
        self._proof.replaced += span.moved
        if (offset_of(span.start) or 0) < plan.start:
            self._proof.doubts.add(f"plan {plan.id} begins at {plan.start}, in the middle of commit {span.sequence}")
        if span.files > span.moved:
            self._proof.doubts.add(
                f"{span.files - span.moved} files of commit {span.sequence} were not moved, although plan "
                f"{plan.id} replaces them"
            )

    def close(self, under_way: str | None = None) -> None:
        """Finish after the last commit: moved files that were not written again are reported.

        `under_way` is the plan that is being carried out, according to the store.
        """
        for span in self._spans:
            if span.moved:
                self._moved(span, under_way)
        self._settle()
        self._proof.exact = bool(self._exact)

    def _moved(self, span: Span, under_way: str | None) -> None:
        self._proof.replaced += span.moved
        sentence = f"{span.moved} files of commit {span.sequence} were moved away and have not been written again yet"
        if all(plan.done and plan.id != under_way for plan in self._plans):
            self._proof.doubts.add(sentence)
        else:
            self._proof.notes.add(f"{sentence}: a plan is under way, and readers see a gap meanwhile")

    def _settle(self) -> None:
        """Count the commits that no plan replaces."""
        proof = self._proof
        for span in self._spans:
            proof.commits += 1
            proof.files += span.files - span.moved
            proof.rows += span.rows - span.moved_rows
            proof.dead_letters += span.dead_letters - span.moved_letters if span.letters_read else 0
            proof.skipped += span.skipped if span.moved < span.files or not span.files else 0
            proof.gaps += span.gaps
            if span.share is not None:
                proof.elsewhere = (proof.elsewhere or 0) + span.elsewhere
            if span.absent is not None:
                proof.absent = (proof.absent or 0) + span.absent
            if span.files:
                self._exact = span.exact and self._exact is not False
        self._spans.clear()


def _break(before: Manifest, manifest: Manifest) -> str:
    """Return what is wrong between two commits, as a message."""
    end, start = offset_of(before.end), offset_of(manifest.start)
    between = f"between manifests {before.sequence} and {manifest.sequence}"
    if end is None or start is None:
        return f"positions do not meet {between}: {before.end} and {manifest.start}"
    if start > end:
        return f"offsets {end} to {start - 1} are in no manifest, {between}"
    return f"offsets {start} to {end - 1} are in two commits, {between}"
