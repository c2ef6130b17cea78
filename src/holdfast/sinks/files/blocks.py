"""Portions of equal size, whatever the sizes in which rows arrive.

How Spark portions rows depends on which batches share a task. Bytes of files must not: a file that is lost after its
commit is made again alone, and must be the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa

BLOCK_ROWS = 8192


class Blocks:
    """Takes items with their rows, gives blocks of exactly `size` rows, and the rest at the end."""

    def __init__(self, size: int = BLOCK_ROWS) -> None:
        self._size = size
        self._waiting: list[Any] = []
        self._count = 0

    def add(self, rows: Any) -> Iterator[Any]:
        """The blocks that are full now; all of them must be taken before the next call."""
        start = 0
        while rows.num_rows - start + self._count >= self._size:
            wanted = self._size - self._count
            yield self._joined(rows.slice(start, wanted))
            start += wanted
        if start < rows.num_rows:
            self._waiting.append(rows.slice(start))
            self._count += rows.num_rows - start

    def rest(self) -> Iterator[Any]:
        """What is left, if anything."""
        if self._waiting:
            yield self._joined()

    def _joined(self, *last: Any) -> Any:
        parts, self._waiting, self._count = [*self._waiting, *last], [], 0
        return parts[0] if len(parts) == 1 else pa.concat_batches(parts)
