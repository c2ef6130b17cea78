"""Writers of SequenceFiles: lengths, keys and values of many records are joined in Arrow.

Only `record` compression runs Python for each record, because each value is a compressed stream of its own.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import numpy as np
import pyarrow as pa

from holdfast.flow.format import FormatWriter, RawWriter
from holdfast.flow.kafka_columns import OFFSET
from holdfast.formats._arrays import beside, content, joined, lengths, rows_of
from holdfast.formats._compression import packer
from holdfast.formats._messages import portions, value_of
from holdfast.formats.sequencefile import keys as keys_
from holdfast.formats.sequencefile.layout import ESCAPE, SYNC_INTERVAL, Header, mark_of, vint, vints

NAME = "sequencefile"
_LEGACY_HEAD = np.dtype([("record", ">i4"), ("key", ">i4"), ("offset", ">i8"), ("value", ">i4")])


def writer(raw: RawWriter, header: Header, level: int | None, block_bytes: int, *, nulls: bool) -> FormatWriter:
    """The writer of one file. `nulls`: whether values may be null; they become empty."""
    if header.compression == "block":
        return BlockFile(raw, header, level, block_bytes, nulls=nulls)
    return RecordFile(raw, header, level, nulls=nulls)


class _File(FormatWriter):
    """Writes the header with the first record, because the sync marker is a digest of it."""

    def __init__(self, raw: RawWriter, header: Header, *, nulls: bool) -> None:
        self._raw = raw
        self._nulls = nulls
        self._header = header
        self._mark = b""

    def write(self, rows: Any) -> None:
        for part in portions(rows):
            self._add(part, value_of(part, NAME, nulls=self._nulls))

    def close(self) -> None:
        self._begin(b"")

    @abstractmethod
    def _add(self, rows: Any, values: Any) -> None:
        """Write further records."""

    def _keys(self, rows: Any) -> list[Any]:
        """The parts of each record's key."""
        return keys_.legacy(rows) if self._header.key == "legacy" else keys_.messagepack(rows)

    def _begin(self, first_record: Any) -> None:
        if not self._mark:
            sync = mark_of(first_record)
            self._mark = ESCAPE + sync
            self._raw.write(self._header.encode(sync))


class RecordFile(_File):
    """Records with a mark every `SYNC_INTERVAL` bytes."""

    def __init__(self, raw: RawWriter, header: Header, level: int | None, *, nulls: bool) -> None:
        super().__init__(raw, header, nulls=nulls)
        self._since_mark = 0
        self._pack = packer(header.codec, level) if header.compression == "record" else None

    def _add(self, rows: Any, values: Any) -> None:
        sizes = lengths(values).astype(np.int64)
        if self._pack is None and self._header.key == "legacy":
            # The most common kind: everything before a value is built in one step.
            self._write(joined(_legacy_heads(rows, sizes), values), np.cumsum(_LEGACY_HEAD.itemsize + sizes))
            return
        inner = [_numbers(sizes), values]
        if self._pack is not None:
            inner = [pa.array(map(self._pack, beside(*inner).to_pylist()), pa.binary())]
        keys = self._keys(rows)
        key_sizes = sum(map(lengths, keys))
        record_sizes = key_sizes + sum(map(lengths, inner))
        self._write(joined(_numbers(record_sizes, key_sizes), *keys, *inner), np.cumsum(8 + record_sizes))

    def _write(self, records: Any, ends: Any) -> None:
        self._begin(records.slice(0, int(ends[0])))
        written = 0
        while written < records.size:
            if self._since_mark >= SYNC_INTERVAL:
                self._raw.write(self._mark)
                self._since_mark = 0
            last = int(np.searchsorted(ends, written + SYNC_INTERVAL - self._since_mark))
            end = int(ends[min(last, len(ends) - 1)])
            self._raw.write(memoryview(records)[written:end])
            self._since_mark += end - written
            written = end


class BlockFile(_File):
    """Records in compressed blocks, with a mark before each."""

    def __init__(self, raw: RawWriter, header: Header, level: int | None, block_bytes: int, *, nulls: bool) -> None:
        super().__init__(raw, header, nulls=nulls)
        self._pack = packer(header.codec, level)
        self._block_bytes = block_bytes
        self._waiting: list[tuple[Any, Any]] = []
        self._bytes = 0

    @property
    def buffered(self) -> int:
        return self._bytes

    def close(self) -> None:
        if self._waiting:
            self._write_block()
        super().close()

    def _add(self, rows: Any, values: Any) -> None:
        keys = beside(*self._keys(rows))
        ends, start, before = np.cumsum(4 + lengths(keys).astype(np.int64) + lengths(values)), 0, 0
        while start < len(keys):
            last = int(np.searchsorted(ends, before + self._block_bytes - self._bytes))
            count = min(last + 1, len(keys)) - start
            self._waiting.append((keys.slice(start, count), values.slice(start, count)))
            start += count
            self._bytes += int(ends[start - 1]) - before
            before = int(ends[start - 1])
            if self._bytes >= self._block_bytes:
                self._write_block()

    def _write_block(self) -> None:
        keys, values = (pa.concat_arrays(parts) for parts in zip(*self._waiting, strict=True))
        self._waiting, self._bytes = [], 0
        sizes = lengths(values)
        self._begin(joined(keys.slice(0, 1), values.slice(0, 1)))
        self._raw.write(self._mark + vint(len(keys)))
        for part in (vints(lengths(keys)), content(keys), vints(sizes + 4), joined(_numbers(sizes), values)):
            packed = self._pack(part)
            self._raw.write(vint(len(packed)) + packed)


def _legacy_heads(rows: Any, sizes: Any) -> Any:
    heads = np.empty(len(sizes), _LEGACY_HEAD)
    heads["record"], heads["key"], heads["value"] = sizes + 12, 8, sizes
    heads["offset"] = np.asarray(rows.column(OFFSET))
    return rows_of(heads.view(np.uint8).reshape(-1, _LEGACY_HEAD.itemsize))


def _numbers(*columns: Any) -> Any:
    """One record per row: the numbers of these columns, 4 bytes each."""
    table = np.stack(columns, axis=1).astype(">i4")
    return rows_of(table.view(np.uint8).reshape(-1, 4 * len(columns)))
