"""Small objects of a task are fetched several at a time, before they are needed: most of their time is waiting.

Tiny objects are fetched in groups, because handing an object over costs more than reading it. An object that cannot be
fetched raises its error when it is read.
"""

from __future__ import annotations

import io
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace

from holdfast.errors import Unavailable
from holdfast.sources.objects.object_ref import ObjectRef, RandomBytes
from holdfast.sources.objects.splits import Split

SMALL_BYTES = 1 << 20
"""Size up to which an object is fetched whole."""
TINY_BYTES = 64 << 10
"""Size up to which one thread fetches a group of objects one after the other."""
GROUP_OBJECTS = 32
GROUP_BYTES = 256 << 10
THREADS = 8
GROUPS_AHEAD = 16
"""Groups that are requested before the first of them is needed."""


@dataclass(frozen=True)
class _PendingRef:
    """An object whose bytes are being fetched, with those of the others of its group."""

    ref: ObjectRef
    group: Future[list[bytes | Exception]]
    index: int
    is_remote = True

    @property
    def path(self) -> str:
        return self.ref.path

    @property
    def size(self) -> int:
        return self.ref.size

    def check(self) -> None:
        self.ref.check()

    def fetched(self) -> bytes:
        result = self.group.result()[self.index]
        if isinstance(result, Exception):
            raise result
        return result

    @contextmanager
    def opened(self) -> Iterator[RandomBytes]:
        yield io.BytesIO(self.fetched())


def read_ahead(splits: Sequence[Split]) -> Iterator[list[Split]]:
    """All splits, in groups of one or more. Those of small remote objects are being fetched when they are yielded."""
    if not any(map(_is_small, splits)):
        yield from ([split] for split in splits)
        return
    pool, pending, left = ThreadPoolExecutor(THREADS, "holdfast-ahead"), deque[list[Split]](), _groups(splits)
    try:
        while True:
            while len(pending) < GROUPS_AHEAD and (group := next(left, None)) is not None:
                pending.append(_requested(pool, group) if _is_small(group[0]) else group)
            if not pending:
                return
            yield pending.popleft()
    finally:
        pool.shutdown(cancel_futures=True)


def _is_small(split: Split) -> bool:
    return split.ref.is_remote and split.ref.size <= SMALL_BYTES


def _groups(splits: Sequence[Split]) -> Iterator[list[Split]]:
    """Consecutive tiny objects in groups, if there are enough of them for all threads; every other split alone."""
    limit = max(1, min(GROUP_OBJECTS, len(splits) // (2 * THREADS)))
    group, size = list[Split](), 0
    for split in splits:
        is_tiny = split.ref.is_remote and split.ref.size <= TINY_BYTES
        if group and not (is_tiny and len(group) < limit and size + split.ref.size <= GROUP_BYTES):
            yield group
            group, size = [], 0
        group.append(split)
        # Nothing joins a split that is not tiny.
        size += split.ref.size if is_tiny else GROUP_BYTES
    if group:
        yield group


def _requested(pool: ThreadPoolExecutor, group: Sequence[Split]) -> list[Split]:
    future = pool.submit(_fetch_group, [split.ref for split in group])
    return [replace(split, ref=_PendingRef(split.ref, future, index)) for index, split in enumerate(group)]


def _fetch_group(refs: Sequence[ObjectRef]) -> list[bytes | Exception]:
    """The bytes or the error of each object. After one that cannot be reached, no others are requested."""
    results: list[bytes | Exception] = []
    for ref in refs:
        is_down = results and isinstance(results[-1], Unavailable)
        results.append(results[-1] if is_down else _fetch(ref))
    return results


def _fetch(ref: ObjectRef) -> bytes | Exception:
    try:
        return ref.fetched()
    except Exception as error:  # noqa: BLE001 - raised when the object is read
        return error
