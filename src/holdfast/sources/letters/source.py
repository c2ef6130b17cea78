"""The source of a redrive on the node: each partition has some letters, and its position counts them.

Rows carry the key, the incarnation and the items of the records' own partitions, so that whatever is made from a
record's origin (ids of documents, another dead letter) is what it would have been at first.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from holdfast.errors import BatchError
from holdfast.flow.batch import Batch, Cut, Done, Limits, Name, Plan
from holdfast.flow.letter import LetterBox, LetterId, Rebuilder
from holdfast.flow.source import OffsetPositions, Source
from holdfast.leases.lease import Lease, Partition
from holdfast.sources.letters.spans import read, written

if TYPE_CHECKING:
    from holdfast.sources.letters.reading import LettersRead

MOST_AT_ONCE = 1000
"""Letters of one batch: they travel with the task."""


@dataclass(frozen=True)
class Sheaf:
    """Letters of one partition, in the order of their items."""

    row: Lease
    """The partition's own row."""
    name: Name
    ids: Sequence[LetterId]

    def partition(self) -> Partition:
        return Partition(
            key=self.row.key,
            group=self.row.group,
            spec={"stream": self.name.stream, "label": self.name.label, "letters": written(self.ids)},
            estimated_count=len(self.ids),
            incarnation=self.row.commit.incarnation,
        )


def redriven_name(lease: Lease) -> Name:
    """Beside what the live pipeline has written of this partition, whose commits are numbered by themselves."""
    return Name(lease.spec["stream"], f"{lease.spec['label']}-{lease.run}")


def ids_of(lease: Lease) -> list[LetterId]:
    """The letters of a redrive's partition; none if its row was purged."""
    return list(read(lease.spec.get("letters", ())))


def sent_of(lease: Lease) -> list[LetterId]:
    """Those of them that are committed."""
    position = lease.progress.position
    return ids_of(lease)[: 0 if position is None else position["offset"]]


class LettersSource(Source, OffsetPositions):
    """Reads letters on the node, and gives each to one task."""

    def __init__(self, box: LetterBox, rebuilder: Rebuilder) -> None:
        self._box = box
        self._rebuilder = rebuilder

    def discover(self, state: dict[str, Any]) -> Iterable[Partition]:  # noqa: ARG002 - the run has its partitions
        return ()

    def name(self, lease: Lease) -> Name:
        return redriven_name(lease)

    def plan(self, leases: Sequence[Lease], limits: Limits) -> list[Plan]:
        most = min(MOST_AT_ONCE, limits.max_records or MOST_AT_ONCE)
        return [self._next(lease, most) for lease in leases]

    def _next(self, lease: Lease, most: int) -> Plan:
        position, end = lease.progress.position, len(ids_of(lease))
        start = 0 if position is None else position["offset"]
        if start >= end:
            return Done()
        until = min(end, start + most)
        return Cut(self.position(start), self.position(until), last=until == end)

    def read(
        self,
        spark: Any,  # noqa: ARG002 - Spark only runs it
        batches: Sequence[Batch],
        columns: frozenset[str] | None = None,  # noqa: ARG002 - letters hold little
    ) -> LettersRead:
        from holdfast.sources.letters.reading import LettersRead, rows_of

        fields = self._rebuilder.fields()
        rows = []
        for batch in batches:
            start, end = batch.cut.start["offset"], batch.cut.end["offset"]
            try:
                letters: Any = self._box.fetch(ids_of(batch.lease)[start:end])
            except BatchError as gone:
                letters = gone
            rows.append(rows_of(batch.id, letters, self._rebuilder, fields))
        return LettersRead(rows, fields)
