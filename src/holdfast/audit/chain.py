"""The chain of a partition's manifests: whether they follow one another, and what they cover together. Pure.

Positions are compared as they are; where they are offsets, the numbers are used to say what is missing or doubled.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from holdfast.audit.proof import PartitionProof
from holdfast.audit.witness import Plan, Share, Told, offset_of


@dataclass(slots=True)
class Span:
    """What one commit contributes."""

    sequence: int
    start: Any
    end: Any
    files: int = 0
    rows: int = 0
    dead_letters: int = 0
    gaps: int = 0
    share: Share | None = None
    absent: int | None = None
    moved: int = 0
    """Files of it that a plan has moved away."""
    moved_rows: int = 0
    moved_letters: int = 0
    """What those hold."""
    exact: bool = True

    @property
    def elsewhere(self) -> int:
        return 0 if self.share is None else self.share.elsewhere

    @property
    def records(self) -> int:
        """Rows and dead letters of the batch, also those that were not for this sink."""
        return self.rows + self.dead_letters if self.share is None else self.share.of

    @property
    def width(self) -> int | None:
        start, end = offset_of(self.start), offset_of(self.end)
        return None if start is None or end is None else end - start


class Chain:
    """Takes the commits of one partition in order, and adds to its proof."""

    def __init__(self, proof: PartitionProof, plans: Sequence[Plan] = ()) -> None:
        self._proof = proof
        self._plans = list(plans)
        self._waiting = list(plans)
        self._spans: list[Span] = []
        self._exact: bool | None = None
        self.last: Told | None = None
        self.records = 0
        """Rows and dead letters of all commits that ever were, also those that were not for this sink."""

    def missing(self, sequence: int) -> None:
        """There is no manifest of that number, and later ones may follow."""
        self._proof.doubts.add(f"manifest {sequence} is missing")

    def add(self, told: Told, span: Span) -> None:
        """The next commit; `span` is what its files were found to hold."""
        if self.last is None:
            self._proof.start = told.start
        else:
            self._follows(self.last, told)
        width = span.width
        if width is not None and width < 0:
            self._proof.doubts.add(f"manifest {told.sequence} ends before it begins: {told.start} to {told.end}")
        self._proof.end = told.end
        self._spans.append(span)
        self.records += span.records
        self.last = told
        if not self._plans:
            self._proof.replaced += span.moved
            self._settle()

    def _follows(self, before: Told, told: Told) -> None:
        doubts = self._proof.doubts
        if told.generation < before.generation:
            doubts.add(f"manifest {told.sequence} is of generation {told.generation}, after {before.generation}")
        if told.incarnation != before.incarnation:
            doubts.add(f"manifest {told.sequence} is of another incarnation of the source: {told.incarnation!r}")
        if told.start != before.end and not self.step_back(told.start):
            doubts.add(_break(before, told))

    def step_back(self, start: Any) -> bool:
        """Whether a plan explains that work began anew at `start`; then what it replaced counts no more."""
        path = self._path_back(offset_of(start))
        for plan in path:
            self._waiting.remove(plan)
            while self._spans and (offset_of(self._spans[-1].end) or 0) > plan.start:
                self._replace(self._spans.pop(), plan)
            self._proof.notes.add(f"offsets {plan.start} to {plan.end - 1} are written again by plan {plan.id}")
            self._proof.end = start
        return bool(path)

    def _path_back(self, start: int | None) -> list[Plan]:
        """Plans that lead from the end of the chain back to `start`, one after the other; none if they do not."""
        at, path = None if self.last is None else offset_of(self.last.end), list[Plan]()
        while at is not None and start is not None and at > start:
            left = (plan for plan in self._waiting if plan not in path)
            plan = next((one for one in left if one.end == at and one.start >= start), None)
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
                f"{span.files - span.moved} files of commit {span.sequence} are still in their place, although plan "
                f"{plan.id} replaces them"
            )

    def close(self, under_way: str | None = None) -> None:
        """No more commits come: whatever was moved away must have been written again, or be told.

        `under_way` is the plan that is being carried out, as the store says.
        """
        for span in self._spans:
            if span.moved:
                self._moved(span, under_way)
        self._settle()
        self._proof.exact = bool(self._exact)

    def _moved(self, span: Span, under_way: str | None) -> None:
        self._proof.replaced += span.moved
        sentence = f"{span.moved} files of commit {span.sequence} were moved away and are not written again yet"
        if all(plan.done and plan.id != under_way for plan in self._plans):
            self._proof.doubts.add(sentence)
        else:
            self._proof.notes.add(f"{sentence}: a plan is under way, and readers see a hole meanwhile")

    def _settle(self) -> None:
        """Count what is certain to stay."""
        proof = self._proof
        for span in self._spans:
            proof.commits += 1
            proof.files += span.files - span.moved
            proof.rows += span.rows - span.moved_rows
            proof.dead_letters += span.dead_letters - span.moved_letters
            proof.gaps += span.gaps
            if span.share is not None:
                proof.elsewhere = (proof.elsewhere or 0) + span.elsewhere
            if span.absent is not None:
                proof.absent = (proof.absent or 0) + span.absent
            if span.files:
                self._exact = span.exact and self._exact is not False
        self._spans.clear()


def _break(before: Told, told: Told) -> str:
    """In words what is wrong between two commits."""
    end, start = offset_of(before.end), offset_of(told.start)
    between = f"between manifests {before.sequence} and {told.sequence}"
    if end is None or start is None:
        return f"positions do not meet {between}: {before.end} and {told.start}"
    if start > end:
        return f"offsets {end} to {start - 1} are in no manifest, {between}"
    return f"offsets {start} to {end - 1} are in two commits, {between}"
