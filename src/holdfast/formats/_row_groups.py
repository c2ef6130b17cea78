"""Row groups: columnar formats collect rows in memory and write many of them at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from holdfast.flow.format import FormatWriter

GROUP_ROWS = 1 << 20


class GroupedFile(FormatWriter):
    """Writes the collected rows as a table when they reach `group_bytes`."""

    def __init__(self, write: Callable[[Any], None], close: Callable[[], None], group_bytes: int) -> None:
        self._write = write
        self._close = close
        self._group_bytes = group_bytes
        self._waiting: list[Any] = []
        self._rows = 0
        self._bytes = 0

    @property
    def buffered(self) -> int:
        return self._bytes

    def write(self, rows: Any) -> None:
        if not rows.num_rows:
            return
        self._waiting.append(rows)
        self._rows += rows.num_rows
        self._bytes += sum(map(_payload, rows.columns))
        if self._bytes >= self._group_bytes or self._rows >= GROUP_ROWS:
            self.flush()

    def flush(self) -> None:
        import pyarrow as pa

        if self._waiting:
            self._write(pa.Table.from_batches(self._waiting))
            self._waiting, self._rows, self._bytes = [], 0, 0

    def close(self) -> None:
        self.flush()
        self._close()


def _payload(array: Any) -> int:
    """Bytes of the values alone. Depends only on the rows, not on whether Arrow allocated a validity bitmap."""
    import pyarrow as pa

    kind = array.type
    if pa.types.is_struct(kind):
        return sum(_payload(array.field(index)) for index in range(kind.num_fields))
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return 4 * len(array) + _payload(array.flatten())
    if pa.types.is_map(kind):
        return 4 * len(array) + _payload(array.keys) + _payload(array.items)
    if pa.types.is_null(kind):
        return 0
    if pa.types.is_primitive(kind) or pa.types.is_decimal(kind) or pa.types.is_fixed_size_binary(kind):
        return int(len(array) * kind.bit_width // 8)
    return 4 * len(array) + _text_bytes(array)


def _text_bytes(array: Any) -> int:
    import numpy as np
    import pyarrow as pa

    wide = pa.types.is_large_string(array.type) or pa.types.is_large_binary(array.type)
    borders = np.frombuffer(array.buffers()[1], np.int64 if wide else np.int32)
    return int(borders[array.offset + len(array)] - borders[array.offset])
