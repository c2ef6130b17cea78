"""Fetches small objects of a task several at a time, before they are needed, because most of the time is latency.

Tiny objects are fetched and decoded in groups, because passing an object between threads costs more than reading it. An
object that cannot be fetched raises its error when it is read.
"""

from __future__ import annotations

import io
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

import numpy as np

from holdfast.errors import BatchError, Unavailable
from holdfast.sources.objects.codecs.codec import Codec
from holdfast.sources.objects.codecs.lines import BYTE_ORDER_MARK, LineCodec, LongLine, split_lines
from holdfast.sources.objects.compression import HEAD_BYTES, compression_of
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

    def description(self) -> dict[str, Any]:
        return self.ref.description()

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
    """The bytes or the error of each object. After an object that cannot be reached, no others are requested."""
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


@dataclass(frozen=True, slots=True)
class SmallObjects:
    """Records of several objects, object by object."""

    indices: Any
    """The index of each record's object among the splits."""
    items: Any
    columns: Sequence[Any]


def read_small_objects(splits: Sequence[Split], codec: Codec, compression: str) -> SmallObjects | None:
    """The records of these objects; None if they must be read one by one. Blocks until all bytes have arrived."""
    if len(splits) < 2 or not isinstance(codec, LineCodec) or not all(map(_is_whole, splits)):
        return None
    bodies = _bodies(splits)
    if bodies is None or not all(_is_plain(*pair, compression) for pair in zip(splits, bodies, strict=True)):
        return None
    ended = [body if body.endswith(b"\n") or not body else body + b"\n" for body in bodies]
    found = list(split_lines(io.BytesIO(b"".join(ended)), longest=codec.longest))
    if len(found) != 1 or isinstance(found[0], LongLine):
        return None
    try:
        items, columns = codec.decode(found[0])
    except ValueError:
        return None
    starts = np.array([0, *accumulate(map(len, ended))], np.int64)
    indices = np.searchsorted(starts, items, side="right") - 1
    bases = np.array([split.base for split in splits], np.int64)
    return SmallObjects(indices, items - starts[indices] + bases[indices], columns)


def _is_whole(split: Split) -> bool:
    return (split.start, split.end) == (0, split.ref.size)


def _bodies(splits: Sequence[Split]) -> list[bytes] | None:
    try:
        return [split.ref.fetched() for split in splits]
    except (BatchError, Unavailable):
        return None  # reported when the object is read by itself


def _is_plain(split: Split, body: bytes, compression: str) -> bool:
    if body.startswith(BYTE_ORDER_MARK):
        return False
    return compression_of(split.ref.path, compression, lambda: body[:HEAD_BYTES]) == "none"
