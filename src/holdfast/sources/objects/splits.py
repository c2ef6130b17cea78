"""Splits: the byte ranges that tasks read, and how splits are packed into tasks.

How a batch is split depends on the batch alone. Either no task reads two splits of one batch, or one task reads all of
them in order; so a batch that is staged a second time, beside other batches, gives the same files.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace

from holdfast.sources.objects.compression import compression_by_name
from holdfast.sources.objects.object_ref import ObjectRef

TASKS_PER_CORE = 4
TASK_BYTES = 16 << 20
"""Bytes of work that justify another task."""
COMPRESSED_WORK = 5
"""The work of reading a compressed object, as a multiple of its size."""


@dataclass(frozen=True)
class Split:
    """A byte range of one object. It owns the lines, blocks or row groups that begin in [start, end).

    Without slots: a thousand of them go to a task, and pickling objects with slots runs Python code for each.
    """

    batch: str
    ref: ObjectRef
    start: int
    end: int
    undivided: bool = False
    """The split is the whole object, because it is compressed or can only be read from its beginning."""
    salvage: bool = False
    """Whether damage of the object becomes a dead letter, and its good records are kept."""
    drops: bool = False
    """With `salvage`: whether no records of a damaged object are kept. It is read to its end first."""
    first: int = 0
    """Items below this belong to an earlier batch."""
    until: int | None = None
    """Items from this on belong to a later batch."""
    max_records: int | None = None
    """Records after which the batch is cut short."""
    whole_objects: bool = False
    """Whether the batch is cut short only where another object begins."""
    in_order: bool = False
    """Whether one task reads all splits of the batch, in order."""
    base: int = 0
    """Number that is added to every item, if a batch has several objects."""


def divide(whole: Split, split_bytes: int) -> list[Split]:
    """The split in parts of nearly equal size, none larger than `split_bytes`."""
    length = whole.end - whole.start
    count = 1 if whole.undivided else max(1, -(-length // split_bytes))
    borders = [whole.start + length * index // count for index in range(count + 1)]
    return [replace(whole, start=start, end=end) for start, end in itertools.pairwise(borders)]


def pack(batches: Sequence[Sequence[Split]], cores: int) -> list[list[Split]]:
    """Tasks with about equal work.

    Each element of `batches` has the splits of one batch, which go to different tasks.
    """
    splits = [split for batch in batches for split in batch]
    if not splits:
        return []
    tasks = max(_task_count(splits, cores), *map(len, batches))
    packed: list[list[Split]] = [[] for _ in range(tasks)]
    loads = [(0, task) for task in range(tasks)]
    # The largest first, so that the small ones fill the gaps.
    for batch in sorted(batches, key=lambda batch: -sum(map(_work, batch))):
        if batch and batch[0].in_order:
            load, task = heapq.heappop(loads)
            packed[task].extend(batch)
            heapq.heappush(loads, (load + sum(map(_work, batch)), task))
            continue
        lightest = [heapq.heappop(loads) for _ in batch]
        for split, (load, task) in zip(batch, lightest, strict=True):
            packed[task].append(split)
            heapq.heappush(loads, (load + _work(split), task))
    return [task_splits for task_splits in packed if task_splits]


def _task_count(splits: Sequence[Split], cores: int) -> int:
    worthwhile = sum(map(_work, splits)) // TASK_BYTES
    return min(len(splits), max(cores, min(worthwhile, TASKS_PER_CORE * cores)))


def _work(split: Split) -> int:
    return (split.end - split.start) * (1 if compression_by_name(split.ref.path) is None else COMPRESSED_WORK)
