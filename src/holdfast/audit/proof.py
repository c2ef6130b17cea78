"""What verify has found: for each partition what is where, what is doubtful, and what is worth telling."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

MOST_TOLD = 20
"""Doubts of one partition that are told in words; the others are counted."""


@dataclass(slots=True)
class Findings:
    """Sentences, of which only the first are kept."""

    number: int = 0
    told: list[str] = field(default_factory=list)

    def add(self, sentence: str) -> None:
        self.number += 1
        if len(self.told) < MOST_TOLD:
            self.told.append(sentence)

    def sentences(self) -> list[str]:
        """As much as is shown."""
        more = self.number - len(self.told)
        return [*self.told, f"and {more} more"] if more else list(self.told)


@dataclass(slots=True)
class PartitionProof:
    """One partition in one sink. Counts are of what readers see, without what was replaced."""

    sink: str
    key: str
    stream: str | None = None
    label: str | None = None
    start: Any = None
    end: Any = None
    """The positions from which and up to which (exclusive) the proof reaches."""
    status: str | None = None
    commits: int = 0
    files: int = 0
    rows: int = 0
    gaps: int = 0
    """Offsets that are recorded as lost."""
    dead_letters: int = 0
    elsewhere: int | None = None
    """Rows that by their routes were not for this sink; None for a sink that is given every row."""
    absent: int | None = None
    """Offsets for which there was no record, such as compacted ones; None where offsets are not records."""
    replaced: int = 0
    """Files that were moved away to be written again."""
    unread: int = 0
    """Files that are as they were committed, but whose rows could not be read."""
    exact: bool = False
    """Whether the very offsets in the files were compared, and not only their number."""
    doubts: Findings = field(default_factory=Findings)
    notes: Findings = field(default_factory=Findings)

    @property
    def verdict(self) -> str:
        return "doubt" if self.doubts.number else "not read" if self.unread else "proven"

    def row(self) -> dict[str, Any]:
        """As JSON."""
        told = {name: getattr(self, name) for name in PartitionProof.__slots__ if name not in {"doubts", "notes"}}
        found = {"doubts": self.doubts.sentences(), "notes": self.notes.sentences()}
        return {"kind": "partition", **told, "verdict": self.verdict, **found}


@dataclass(slots=True)
class RootProof:
    """One sink's root as a whole: what no partition accounts for."""

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
        """As JSON."""
        told = {name: getattr(self, name) for name in RootProof.__slots__ if name not in {"doubts", "notes"}}
        found = {"doubts": self.doubts.sentences(), "notes": self.notes.sentences()}
        return {"kind": "root", **told, "verdict": self.verdict, **found}
