"""Pieces: what one task reads at a stretch, and how pieces share tasks.

How a batch is cut depends on the batch alone, and no task reads two pieces of one batch, or one task reads all of them
in order; so a batch that is staged again in other company gives the same files.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace

from holdfast.sources.objects.compressions import compression_by_name
from holdfast.sources.objects.places import ObjectPlace

TASKS_PER_CORE = 4
WORTH_A_TASK = 16 << 20


@dataclass(frozen=True)
class Piece:
    """A byte range of one object. It owns the lines, blocks or row groups that begin in [start, end).

    Without slots: a thousand of them go to a task, and with slots pickle takes them apart in Python.
    """

    batch: str
    place: ObjectPlace
    start: int
    end: int
    undivided: bool = False
    """Then the piece is the whole object, because it is packed or can only be read from its beginning."""
    salvage: bool = False
    """Whether a damaged object is told of as damage, and good records are kept."""
    drops: bool = False
    """With `salvage`: whether none of a damaged object's own records are kept. It is read to its end before."""
    first: int = 0
    """Items below are not of the batch: they were read before."""
    until: int | None = None
    """Items from here on are not of the batch."""
    most: int | None = None
    """Records after which the batch is cut short."""
    whole_objects: bool = False
    """Whether it is cut short only where another object begins."""
    in_order: bool = False
    """Whether all pieces of the batch are read by one task, in order."""
    base: int = 0
    """Added to every item, where a batch has several objects."""


def cut(whole: Piece, split_bytes: int) -> list[Piece]:
    """The piece in parts of nearly equal size, none larger than `split_bytes`."""
    length = whole.end - whole.start
    count = 1 if whole.undivided else max(1, -(-length // split_bytes))
    borders = [whole.start + length * number // count for number in range(count + 1)]
    return [replace(whole, start=start, end=end) for start, end in itertools.pairwise(borders)]


def pack(batches: Sequence[Sequence[Piece]], cores: int) -> list[list[Piece]]:
    """Tasks with about equal work; each element of `batches` is one batch's pieces, which all get other tasks."""
    pieces = [piece for batch in batches for piece in batch]
    if not pieces:
        return []
    tasks = max(_task_count(pieces, cores), *map(len, batches))
    packed: list[list[Piece]] = [[] for _ in range(tasks)]
    loads = [(0, number) for number in range(tasks)]
    # The largest first, so that the small ones fill the gaps.
    for batch in sorted(batches, key=lambda batch: -sum(map(_work, batch))):
        if batch and batch[0].in_order:
            load, number = heapq.heappop(loads)
            packed[number].extend(batch)
            heapq.heappush(loads, (load + sum(map(_work, batch)), number))
            continue
        lightest = [heapq.heappop(loads) for _ in batch]
        for piece, (load, number) in zip(batch, lightest, strict=True):
            packed[number].append(piece)
            heapq.heappush(loads, (load + _work(piece), number))
    return [task for task in packed if task]


def _task_count(pieces: Sequence[Piece], cores: int) -> int:
    worth = sum(map(_work, pieces)) // WORTH_A_TASK
    return min(len(pieces), max(cores, min(worth, TASKS_PER_CORE * cores)))


def _work(piece: Piece) -> int:
    # Unpacking and what comes out of it cost about this much more than the bytes themselves.
    return (piece.end - piece.start) * (1 if compression_by_name(piece.place.path) is None else 5)
