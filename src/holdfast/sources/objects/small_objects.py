"""Tiny objects of lines are decoded in one call: a call per object would cost more than the decoding itself.

This is for plain objects only. If one object of a group is not plain, all of the group are read one by one.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np

from holdfast.errors import BatchError, Unavailable
from holdfast.sources.objects.codecs.codec import Codec
from holdfast.sources.objects.codecs.lines import LineCodec
from holdfast.sources.objects.compression import HEAD_BYTES, compression_of
from holdfast.sources.objects.lines import BYTE_ORDER_MARK, LongLine, split_lines
from holdfast.sources.objects.splits import Split


@dataclass(frozen=True, slots=True)
class SmallObjects:
    """Records of several objects, object by object."""

    indices: Any
    """The index of each record's object among the splits."""
    items: Any
    columns: Sequence[Any]


def read_small_objects(splits: Sequence[Split], codec: Codec, compression: str) -> SmallObjects | None:
    """The records of these objects; None if they must be read one by one. Blocks until all bytes are there."""
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
