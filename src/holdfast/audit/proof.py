"""The results of an audit: counts, doubts and notes of each partition and of the root."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

MOST_KEPT = 20
"""Doubts of one partition that are kept as sentences; further ones are only counted."""


@dataclass(slots=True)
class Findings:
    """Sentences, of which only the first are kept."""

    number: int = 0
    kept: list[str] = field(default_factory=list)

    def add(self, sentence: str) -> None:
        self.number += 1
        if len(self.kept) < MOST_KEPT:
            self.kept.append(sentence)

    def sentences(self) -> list[str]:
        """Return the kept sentences, and how many more there were."""
        more = self.number - len(self.kept)
        return [*self.kept, f"and {more} more"] if more else list(self.kept)


@dataclass(slots=True)
class PartitionProof:
    """One partition in one sink. Counts are those of visible files, without replaced ones."""

    sink: str
    key: str
    stream: str | None = None
    label: str | None = None
    start: Any = None
    end: Any = None
    """The proof covers the positions from `start` up to `end` (exclusive)."""
    status: str | None = None
    commits: int = 0
    files: int = 0
    rows: int = 0
    gaps: int = 0
    """Offsets that are recorded as lost."""
    dead_letters: int = 0
    """Dead letters of the commits whose letters could all be read back."""
    skipped: int = 0
    """Records that the format cannot hold, and that a setting leaves out."""
    elsewhere: int | None = None
    """Rows that were routed to other sinks only; None for a sink without routes."""
    absent: int | None = None
    """Offsets without a record, such as compacted ones; None if items are not offsets."""
    replaced: int = 0
    """Files that were moved away to be written again."""
    unread: int = 0
    """Files with the committed bytes whose rows could not be read."""
    exact: bool = False
    """Whether the offsets in the files were compared, not only their number."""
    doubts: Findings = field(default_factory=Findings)
    notes: Findings = field(default_factory=Findings)

    @property
    def verdict(self) -> str:
        return "doubt" if self.doubts.number else "not read" if self.unread else "proven"

    def row(self) -> dict[str, Any]:
        """Return the proof as JSON."""
        fields = {name: getattr(self, name) for name in PartitionProof.__slots__ if name not in {"doubts", "notes"}}
        found = {"doubts": self.doubts.sentences(), "notes": self.notes.sentences()}
        return {"kind": "partition", **fields, "verdict": self.verdict, **found}


@dataclass(slots=True)
class RootProof:
    """One sink's root as a whole: files that belong to no partition."""

    sink: str
    root: str
    objects: int = 0
    partitions: int = 0
    doubtful: int = 0
    """Partitions with doubts."""
    files: int = 0
    rows: int = 0
    doubts: Findings = field(default_factory=Findings)
    notes: Findings = field(default_factory=Findings)

    @property
    def verdict(self) -> str:
        return "doubt" if self.doubts.number else "proven"

    def count(self, proof: PartitionProof) -> None:
        self.partitions += 1
        self.doubtful += bool(proof.doubts.number)
        self.files += proof.files
        self.rows += proof.rows

    def row(self) -> dict[str, Any]:
        """Return the proof as JSON."""
        fields = {name: getattr(self, name) for name in RootProof.__slots__ if name not in {"doubts", "notes"}}
        found = {"doubts": self.doubts.sentences(), "notes": self.notes.sentences()}
        return {"kind": "root", **fields, "verdict": self.verdict, **found}


@dataclass(slots=True)
class LettersProof:
    """The dead letters of a sink without manifests."""

    sink: str
    letters: int = 0
    """Letters that could be read back."""
    doubts: Findings = field(default_factory=Findings)
    notes: Findings = field(default_factory=Findings)

    @property
    def verdict(self) -> str:
        return "doubt" if self.doubts.number else "proven"

    def row(self) -> dict[str, Any]:
        """Return the proof as JSON."""
        found = {"doubts": self.doubts.sentences(), "notes": self.notes.sentences()}
        return {"kind": "letters", "sink": self.sink, "letters": self.letters, "verdict": self.verdict, **found}
