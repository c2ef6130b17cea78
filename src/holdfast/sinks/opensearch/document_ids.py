"""Document ids by origin: the same record always has the same id, whichever node or attempt writes it.

An id consists of a hash of the partition's key and incarnation (for an object: bucket, key and ETag), and of the
record's item. Only the first part needs hashing, so that no Python code runs for each record. Rows that a processor
made from the same record are numbered.
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
"""120 bits: among a billion objects, two have the same hash with a probability of 10^-18."""


def origin_prefix(batch: StagedBatch) -> str:
    """The beginning of all ids of a partition: 20 letters, digits, `-` and `_`, and a dot."""
    origin = f"{batch.key}\0{batch.incarnation}".encode("utf-8", "surrogatepass")
    digest = hashlib.blake2b(origin, digest_size=HASH_BYTES).digest()
    return base64.urlsafe_b64encode(digest).decode() + "."


def check_records_together(packed: Sequence[str]) -> None:
    """Raise `BatchError` if a record had rows in two tasks. `packed` has the records of each task of one batch."""
    if len(packed) > 1:
        _check_unique(
            [np.cumsum(np.frombuffer(zlib.decompress(base64.b64decode(records)), np.int64)) for records in packed]
        )


def _check_unique(heads: Sequence[Any]) -> None:
    records = np.concatenate(heads)
    if len(np.unique(records)) < len(records):
        raise BatchError(
            "a processor has separated rows of the same record, so that ids by origin are not unique; keep the rows of "
            "a record together, or give document_id a template"
        )


class RecordNumbers:
    """The second part of the ids of one batch's rows in one task, in the order in which the rows come."""

    def __init__(self) -> None:
        self._last = -1
        self._times = 0
        self._heads: list[Any] = []
        self._in_order = True

    def of(self, items: Any) -> Any:
        """For each row its item as text, followed by `-1`, `-2` for further rows of the same record."""
        numbers = np.asarray(items)
        texts = items.cast(pa.string())
        steps = np.diff(numbers, prepend=self._last)
        self._in_order = self._in_order and bool((steps >= 0).all())
        repeated = steps == 0
        heads = numbers[~repeated]
        self._heads.append(heads)
        if repeated.any():
            ranks = self._ranks(repeated)
            later = pc.binary_join_element_wise(texts, pa.array(ranks).cast(pa.string()), "-")
            texts = pc.if_else(pa.array(repeated), later, texts)
        self._remember(numbers, repeated)
        return texts

    def add_ascending(self, items: list[int]) -> bool:
        """Add the items if each is higher than the one before: then `of` would return just the items as text.

        Returns whether that is so. Faster than `of` for a few items.
        """
        if any(later <= earlier for earlier, later in pairwise([self._last, *items])):
            return False
        self._heads.append(items)
        self._last, self._times = items[-1], 0
        return True

    def check(self) -> None:
        """Raise `BatchError` if rows of a record were separated by others: then two of them have got the same id."""
        if self._in_order or not self._heads:
            return
        _check_unique(self._heads)

    def packed(self) -> str:
        """The records that had rows here, for `check_records_together`; short where items are consecutive."""
        heads = np.sort(np.concatenate([np.asarray(heads, np.int64) for heads in self._heads or [[]]]))
        return base64.b64encode(zlib.compress(np.diff(heads, prepend=0).tobytes(), 1)).decode()

    def _ranks(self, repeated: Any) -> Any:
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
