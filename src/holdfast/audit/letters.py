"""Verifies the dead letters of a sink that keeps no manifests, such as those in a search index: they can be read back.

The store counts letters as they are staged. Every letter is read, and each partition must have at least as many as were
counted. More letters than that are not a doubt: a batch that was not committed may have left its letters in an index,
and a record that was sent again may have failed again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from holdfast.audit.proof import LettersProof
from holdfast.errors import BatchError
from holdfast.leases.lease import Lease
from holdfast.leases.query import Query
from holdfast.leases.store import Store

PAGE = 1000


@dataclass(frozen=True)
class AuditedLetters:
    """The dead letters of one sink."""

    pipeline: str
    """The pipeline's name in the store."""
    sink: str
    read: Callable[[], Iterator[str]]
    """Reads each letter with the whole of its record, and yields its partition. Raises if one cannot be read."""
    countable: bool = True
    """Whether the store counts the letters of this sink alone, and each of them is kept apart."""


def verify_letters(audited: AuditedLetters, store: Store) -> LettersProof:
    """Read all letters. Blocks; changes nothing. Raises `Unavailable` or `StoreUnavailable`."""
    proof = LettersProof(audited.sink)
    # Before the letters are read: those that are counted by now exist.
    counted = dict(_counted(audited.pipeline, store)) if audited.countable else {}
    found: Counter[str] = Counter()
    try:
        for key in audited.read():
            found[key] += 1
            proof.letters += 1
    except (ValueError, TypeError, BatchError) as wrong:
        proof.doubts.add(f"a dead letter cannot be read back: {wrong}")
        return proof
    for key, number in counted.items():
        if found[key] < number:
            proof.doubts.add(
                f"partition {key!r}: the store has counted {number} dead letters, and {found[key]} can be read back"
            )
    if not audited.countable:
        proof.notes.add("the store does not count the letters of this sink alone: their number was not compared")
    return proof


def _counted(pipeline: str, store: Store) -> Iterator[tuple[str, int]]:
    """Yield the partitions with dead letters, and how many were committed and published."""
    after: str | None = None
    while page := store.find(Query(pipeline, after_key=after, limit=PAGE)):
        yield from ((row.key, row.progress.counts.dead) for row in page if _is_settled(row))
        after = page[-1].key


def _is_settled(row: Lease) -> bool:
    return row.unreadable is None and row.commit.receipts is None and row.progress.counts.dead > 0
