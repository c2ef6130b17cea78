"""How proofs are shown to a person: a table, doubts and notes in words, and one line that concludes."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from holdfast.audit.proof import Findings, PartitionProof, RootProof
from holdfast.cli import output

COLUMNS = (
    "SINK", "PARTITION", "FROM", "TO", "COMMITS", "FILES", "ROWS", "GAPS", "DEAD LETTERS", "NO RECORD", "VERDICT",
)  # fmt: skip
ROUTED = "ROUTED ELSEWHERE"
"""A column that is shown if a sink has routes."""
MOST_ROWS = 1000
MOST_SENTENCES = 200


class Report:
    """Collects a bounded part of what goes by."""

    def __init__(self, *, deep: bool, offsets: bool) -> None:
        self._deep = deep
        self._offsets = offsets
        self._rows: list[tuple[Any, ...]] = []
        self._doubts: list[str] = []
        self._notes: list[str] = []
        self._left_out = 0
        self._partitions = 0
        self._sums = {"files": 0, "rows": 0, "gaps": 0, "dead_letters": 0, "elsewhere": 0, "absent": 0}
        self._routed = False
        self._exact = True
        self.unread = 0
        """Files that could not be read."""
        self.doubtful = 0
        """Partitions and roots with doubts."""

    def watched(self, proofs: Iterator[PartitionProof | RootProof]) -> Iterator[PartitionProof | RootProof]:
        """The same proofs."""
        for proof in proofs:
            self.doubtful += bool(proof.doubts.number)
            if isinstance(proof, PartitionProof):
                self._count(proof)
            name = f"{proof.sink}: {proof.key}" if isinstance(proof, PartitionProof) else f"{proof.sink}: {proof.root}"
            _keep(self._doubts, f"doubt: {name}", proof.doubts)
            _keep(self._notes, f"note: {name}", proof.notes)
            yield proof

    def say(self) -> None:
        """Print it."""
        output.say_table(*self._table())
        if self._left_out:
            output.say(f"{self._left_out} more partitions are not shown; --json shows all")
        for sentence in (*self._notes, *self._doubts):
            output.say(sentence)
        output.say(self.conclusion())

    def _table(self) -> tuple[Sequence[str], list[tuple[Any, ...]]]:
        shown = [one for one in range(len(COLUMNS) + 1) if self._routed or one != len(COLUMNS) - 1]
        names = (*COLUMNS[:-1], ROUTED, COLUMNS[-1])
        return [names[one] for one in shown], [tuple(row[one] for one in shown) for row in self._rows]

    def conclusion(self) -> str:
        """In one line."""
        sums = self._sums
        if self.doubtful:
            return f"doubt: {self._plural(self._partitions, 'partition')} looked at; what is doubtful stands above"
        if self.unread:
            files = self._plural(self.unread, "file")
            return f"not proven: the rows of {files} could not be read, although the digests are right; see the notes"
        scope = f"{self._plural(self._partitions, 'partition')}, {self._plural(sums['files'], 'file')}"
        if not self._offsets:
            proven = "the chain of commits has no break and every committed file is there"
            return f"proven: {proven} ({scope}, {sums['rows']} rows){self._by_routes()}; {self._how()}"
        return (
            f"proven: every offset up to the committed position is in exactly one file ({scope}, {sums['rows']} rows), "
            f"a recorded gap ({sums['gaps']}), a dead letter ({sums['dead_letters']}) "
            f"or has no record ({sums['absent']}){self._by_routes()}; {self._how()}"
        )

    def _by_routes(self) -> str:
        """What a sink with routes adds: not where other rows went, but that all of its own are there."""
        if not self._routed:
            return ""
        number = self._sums["elsewhere"]
        return f"; each sink with routes holds every row that it was given, and {number} were not for it by their route"

    def _how(self) -> str:
        if not self._deep:
            return "by manifests, names and sizes: --deep reads the files, too"
        if not self._offsets:
            return "by digests and counts of rows: items of this source are no offsets"
        return "by the offsets in the files" if self._exact else "by digests and counts of rows: offsets are not kept"

    def _count(self, proof: PartitionProof) -> None:
        self._partitions += 1
        self.unread += proof.unread
        for name in self._sums:
            self._sums[name] += getattr(proof, name) or 0
        self._routed = self._routed or proof.elsewhere is not None
        self._exact = self._exact and (proof.exact or not proof.files)
        if len(self._rows) < MOST_ROWS:
            self._rows.append(_cells(proof))
        else:
            self._left_out += 1

    @staticmethod
    def _plural(number: int, word: str) -> str:
        return f"{number} {word}" if number == 1 else f"{number} {word}s"


def _keep(sentences: list[str], name: str, found: Findings) -> None:
    room = MOST_SENTENCES - len(sentences)
    sentences += [f"{name}: {sentence}" for sentence in found.sentences()[:room]]


def _cells(proof: PartitionProof) -> tuple[Any, ...]:
    counts = (proof.commits, proof.files, proof.rows, proof.gaps, proof.dead_letters, proof.absent, proof.elsewhere)
    return (proof.sink, proof.key, _shown(proof.start), _shown(proof.end), *counts, proof.verdict)


def _shown(position: Any) -> Any:
    """An offset as a number."""
    if isinstance(position, dict) and list(position) == ["offset"]:
        return position["offset"]
    return None if position is None else json.dumps(position)
