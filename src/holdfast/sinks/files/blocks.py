"""Portions that follow from the rows alone, whatever the sizes in which they arrive.

How Spark portions rows depends on which batches share a task. Bytes of files must not: a file that is lost after its
commit is made again alone, and must be the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

BLOCK_ROWS = 8192
BLOCK_BYTES = 32 << 20


class Blocks:
    """Takes record batches, gives blocks that end at `rows` rows, or with the row whose text makes it `size` bytes."""

    def __init__(self, rows: int = BLOCK_ROWS, size: int = BLOCK_BYTES) -> None:
        self._most_rows = rows
        self._most_bytes = size
        self._waiting: list[Any] = []
        self._rows = 0
        self._bytes = 0

    @property
    def buffered(self) -> int:
        """Bytes of the rows that wait for their block to be full."""
        return self._bytes

    def add(self, rows: Any) -> Iterator[Any]:
        """The blocks that are full now; all of them must be taken before the next call."""
        if self._bytes + rows.nbytes >= self._most_bytes:
            # Only here a block may end by its bytes; to look at every text's length each time would cost too much.
            yield from self._cut_by_bytes(self._joined(rows))
            return
        start = 0
        while rows.num_rows - start + self._rows >= self._most_rows:
            wanted = self._most_rows - self._rows
            yield self._joined(rows.slice(start, wanted))
            start += wanted
        self._keep(rows.slice(start))

    def rest(self) -> Iterator[Any]:
        """What is left, if anything."""
        if self._waiting:
            yield self._joined()

    def _cut_by_bytes(self, rows: Any) -> Iterator[Any]:
        ends = np.cumsum(sum(map(_text_bytes, rows.columns), np.zeros(rows.num_rows, np.int64)))
        start, before = 0, 0
        while True:
            by_bytes = int(np.searchsorted(ends, before + self._most_bytes)) + 1
            end = min(start + self._most_rows, by_bytes)
            if end > rows.num_rows:
                break
            yield rows.slice(start, end - start)
            start, before = end, int(ends[end - 1])
        self._keep(rows.slice(start))

    def _keep(self, rows: Any) -> None:
        if rows.num_rows:
            self._waiting.append(rows)
            self._rows += rows.num_rows
            self._bytes += rows.nbytes

    def _joined(self, *last: Any) -> Any:
        parts, self._waiting, self._rows, self._bytes = [*self._waiting, *last], [], 0, 0
        return parts[0] if len(parts) == 1 else pa.concat_batches(parts)


def _text_bytes(column: Any) -> Any:
    """Bytes of text in each row of a column, however deep; never more than the column has in memory."""
    types, kind = pa.types, column.type
    if types.is_struct(kind):
        inner = [_text_bytes(column.field(index)) for index in range(kind.num_fields)]
        return sum(inner, np.zeros(len(column), np.int64))
    if types.is_list(kind) or types.is_large_list(kind) or types.is_map(kind):
        borders = np.asarray(column.offsets)
        values = [column.keys, column.items] if types.is_map(kind) else [column.values]
        before = np.concatenate([[0], np.cumsum(sum(map(_text_bytes, values)))])
        return before[borders[1:]] - before[borders[:-1]]
    if any(
        is_text(kind) for is_text in (types.is_string, types.is_binary, types.is_large_string, types.is_large_binary)
    ):
        return np.asarray(pc.binary_length(column).fill_null(0)).astype(np.int64)
    return np.zeros(len(column), np.int64)
