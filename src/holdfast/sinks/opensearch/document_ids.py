"""Document ids by origin: the same record has the same id whenever and by whomever it is written.

An id is a hash of the partition's key and incarnation (for an object: bucket, key and ETag), and the record's number
in it. Only the first part needs hashing, so that no Python code runs per record. Rows that a processor made from one
record are told apart by their place among them.
"""

from __future__ import annotations

import base64
import hashlib
import zlib
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.errors import BatchError
from holdfast.flow.staging import StagedBatch

HASH_BYTES = 15
"""120 bits: with a billion objects two share a hash once in 10^18 times."""


def origin_of(batch: StagedBatch) -> str:
    """What all ids of a partition begin with: 20 letters, digits, `-` and `_`, and a dot."""
    named = f"{batch.key}\0{batch.incarnation}".encode("utf-8", "surrogatepass")
    digest = hashlib.blake2b(named, digest_size=HASH_BYTES).digest()
    return base64.urlsafe_b64encode(digest).decode() + "."


def check_apart(packed: Sequence[str]) -> None:
    """Raise `BatchError` if a record had rows in two tasks: `packed` are the records of each task of one batch."""
    if len(packed) > 1:
        _check_unique([np.cumsum(np.frombuffer(zlib.decompress(base64.b64decode(one)), np.int64)) for one in packed])


def _check_unique(heads: Sequence[Any]) -> None:
    every = np.concatenate(heads)
    if len(np.unique(every)) < len(every):
        raise BatchError(
            "a processor has torn the rows of one record apart, so that ids by origin are not unique; keep them "
            "together, or give document_id a template"
        )


class Numbers:
    """The second part of the ids of one batch's rows in one task."""

    def __init__(self) -> None:
        self._last = -1
        self._times = 0
        self._heads: list[Any] = []
        self._in_order = True

    def of(self, items: Any) -> Any:
        """For each row its record's number, with `-1`, `-2` behind it for further rows of the same record."""
        numbers = np.asarray(items)
        texts = items.cast(pa.string())
        steps = np.diff(numbers, prepend=self._last)
        self._in_order = self._in_order and bool((steps >= 0).all())
        repeated = steps == 0
        heads = numbers[~repeated]
        self._heads.append(heads)
        if repeated.any():
            places = self._places(repeated)
            later = pc.binary_join_element_wise(texts, pa.array(places).cast(pa.string()), "-")
            texts = pc.if_else(pa.array(repeated), later, texts)
        self._remember(numbers, repeated)
        return texts

    def go_up(self, items: list[int]) -> bool:
        """Whether each item is another record than the one before it: then its number is all that `of` would tell.

        They are noted if it is so. For so few of them that arrays would not pay.
        """
        if any(later <= earlier for earlier, later in pairwise([self._last, *items])):
            return False
        self._heads.append(items)
        self._last, self._times = items[-1], 0
        return True

    def check(self) -> None:
        """Raise `BatchError` if rows of one record came apart: then two of them have had the same id."""
        if self._in_order or not self._heads:
            return
        _check_unique(self._heads)

    def packed(self) -> str:
        """The records that had rows here, for `check_apart`; it is small where items follow each other."""
        heads = np.sort(np.concatenate([np.asarray(heads, np.int64) for heads in self._heads or [[]]]))
        return base64.b64encode(zlib.compress(np.diff(heads, prepend=0).tobytes(), 1)).decode()

    def _places(self, repeated: Any) -> Any:
        """How many rows of the same record came before each row."""
        rows = np.arange(len(repeated))
        starts = np.maximum.accumulate(np.where(repeated, -1, rows))
        return np.where(starts >= 0, rows - starts, rows + 1 + self._times)

    def _remember(self, numbers: Any, repeated: Any) -> None:
        if not len(numbers):
            return
        self._last = int(numbers[-1])
        run = np.flatnonzero(~repeated)
        self._times = len(numbers) - 1 - int(run[-1]) if len(run) else self._times + len(numbers)
