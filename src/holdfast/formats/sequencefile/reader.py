"""Reads SequenceFiles: records and blocks of any file, and messages of files that this package or Hadoop wrote."""

from __future__ import annotations

import struct
import sys
from collections.abc import Iterator
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa

from holdfast.flow.kafka_columns import KEY, OFFSET, VALUE
from holdfast.formats._arrays import content, cut_out, lengths
from holdfast.formats._decompression import Unpack, unpacker
from holdfast.formats._forward import ENDS_TOO_EARLY, ForwardReader
from holdfast.formats.sequencefile import keys as keys_
from holdfast.formats.sequencefile.layout import ESCAPE, AnyHeader, KeyKind, decode_header, taken_vint, taken_vints

WRONG_LENGTH = "a record's length and what follows disagree"
PORTION_RECORDS = 8192
_PORTION_BYTES = 16 << 20
"""Decompressed values that are held before they are handed on."""
_VINT_BYTES = 5
_LENGTH = struct.Struct(">i")


def read(data: BinaryIO) -> Iterator[Any]:
    """Record batches with offset, value, and key if the file has it."""
    forward = ForwardReader(data)
    kind, header = decode_header(forward.take)
    for keys, values in _blocks(forward, header) if header.compression == "block" else _records(forward, header):
        yield _batch(kind, keys, payloads(values))


def _records(forward: ForwardReader, header: AnyHeader) -> Iterator[tuple[Any, Any]]:
    unpack = record_unpacker(header)
    for _, data, starts in record_runs(forward, header):
        for _, keys, values in record_portions(data, starts, unpack):
            yield keys, values


def _blocks(forward: ForwardReader, header: AnyHeader) -> Iterator[tuple[Any, Any]]:
    for _, keys, values in blocks(forward, header):
        yield keys, values


def _batch(kind: KeyKind, keys: Any, values: Any) -> Any:
    if kind == "legacy":
        return pa.record_batch([keys_.legacy_offsets(keys), values], names=[OFFSET, VALUE])
    return pa.record_batch([*keys_.messagepack_fields(payloads(keys)), values], names=[OFFSET, KEY, VALUE])


# --- records -------------------------------------------------------------------------------------------------------


def record_unpacker(header: AnyHeader) -> Unpack | None:
    """Decompresses one value; None if values are not compressed."""
    return unpacker(header.codec) if header.compression == "record" else None


def record_runs(
    forward: ForwardReader, header: AnyHeader, end: int = sys.maxsize, *, max_bytes: int = sys.maxsize
) -> Iterator[tuple[int, bytes, Any]]:
    """Records from here to the first mark that ends at `end` or later, in runs.

    A run is the offset of its data in the file, the data, and the indices in the data where records begin. Raises
    `ValueError` where the file is damaged or a record has more than `max_bytes`; all whole records before it are
    yielded first.
    """
    offset, data = forward.offset, b""
    while True:
        starts, used, reason = _scan(data, offset, header, forward.size, end)
        if reason is None and _length_at(data, used) > max_bytes:
            reason = f"the record at {offset + used} has more than {max_bytes} bytes; at most that many are read"
        if len(starts):
            yield offset, data, starts
        if reason is not None:
            if reason:
                raise ValueError(reason)
            return
        offset, data = offset + used, data[used:]
        portion = forward.portion()
        if not portion:
            if data:
                raise ValueError(ENDS_TOO_EARLY)
            return
        data += portion


def _scan(data: bytes, offset: int, header: AnyHeader, size: int | None, end: int) -> tuple[Any, int, str | None]:
    """Where whole records begin, where the first incomplete one begins, and why the scan ends.

    The reason is None if more data is needed, empty at the end of the range, and otherwise names the damage.
    """
    starts, index, length, mark = [], 0, len(data), ESCAPE + header.sync
    unpack, reason = _LENGTH.unpack_from, None
    while index + 8 <= length and reason is None:
        (record,) = unpack(data, index)
        if record >= 0:
            if index + 8 + record > length:
                is_beyond = size is not None and offset + index + 8 + record > size
                reason = ENDS_TOO_EARLY if is_beyond else None
                break
            starts.append(index)
            index += 8 + record
        elif index + len(mark) > length:
            break
        elif data[index : index + len(mark)] == mark:
            index += len(mark)
            reason = "" if offset + index >= end else None
        else:
            reason = WRONG_LENGTH
    return np.array(starts, np.int64), index, reason


def _length_at(data: bytes, index: int) -> int:
    """The length of the incomplete record that begins there; -1 if even its length is incomplete."""
    return int(_LENGTH.unpack_from(data, index)[0]) if index + _LENGTH.size <= len(data) else -1


def record_portions(
    data: bytes, starts: Any, unpack: Unpack | None, max_bytes: int = sys.maxsize
) -> Iterator[tuple[Any, Any, Any]]:
    """The records that begin at these indices, in portions: where they begin, keys and values.

    Raises `ValueError` at a value that is damaged or becomes more than `max_bytes`; those before it are yielded first.
    """
    for some in np.array_split(starts, -(-len(starts) // PORTION_RECORDS)):
        keys, values = _cut_records(data, some)
        if unpack is None:
            yield some, keys, values
            continue
        first = 0
        for unpacked in _unpacked(values, unpack, max_bytes):
            end = first + len(unpacked)
            yield some[first:end], keys[first:end], unpacked
            first = end


def _unpacked(values: Any, unpack: Unpack, max_bytes: int) -> Iterator[Any]:
    found, size = [], 0
    try:
        for value in values.to_pylist():
            part = unpack(value, max_bytes)
            found.append(part)
            size += len(part)
            if size >= _PORTION_BYTES:
                yield pa.array(found, pa.binary())
                found, size = [], 0
    except ValueError:
        if found:
            yield pa.array(found, pa.binary())
        raise
    if found:
        yield pa.array(found, pa.binary())


def _cut_records(data: bytes, starts: Any) -> tuple[Any, Any]:
    numbers = np.frombuffer(data, np.uint8)
    record, key = (_numbers_at(numbers, starts + index) for index in (0, 4))
    if (key < 0).any() or (key > record).any():
        raise ValueError(WRONG_LENGTH)
    return cut_out(data, starts + 8, starts + 8 + key), cut_out(data, starts + 8 + key, starts + 8 + record)


def payloads(writables: Any) -> Any:
    """The content of each `BytesWritable`, without its length."""
    sizes = lengths(writables).astype(np.int64)
    ends = np.cumsum(sizes)
    data = content(writables)
    if (sizes < 4).any() or (_numbers_at(np.frombuffer(data, np.uint8), ends - sizes) != sizes - 4).any():
        raise ValueError(WRONG_LENGTH)
    return cut_out(data, ends - sizes + 4, ends)


def _numbers_at(data: Any, indices: Any) -> Any:
    return data[indices[:, None] + np.arange(4)].reshape(-1).view(">i4").astype(np.int64)


# --- blocks --------------------------------------------------------------------------------------------------------


def blocks(
    forward: ForwardReader,
    header: AnyHeader,
    end: int = sys.maxsize,
    *,
    behind_mark: bool = False,
    max_records: int = sys.maxsize,
    max_bytes: int = sys.maxsize,
) -> Iterator[tuple[int, Any, Any]]:
    """Blocks from here on that begin before `end`: the offset in the file, keys and values.

    The reader is at a mark, or after it (`behind_mark`). Raises `ValueError` where the file is damaged,
    or where a block has `max_records` or more, or its keys or values more than `max_bytes`.
    """
    unpack, mark = unpacker(header.codec), ESCAPE + header.sync
    while behind_mark or not forward.at_end():
        if not behind_mark and forward.take(len(mark)) != mark:
            raise ValueError(WRONG_LENGTH)
        behind_mark, offset = False, forward.offset
        if offset >= end:
            return
        count = taken_vint(forward.take)
        if count >= max_records:
            raise ValueError(f"the block at {offset} declares {count} records; at most {max_records} are read")
        limits = (_VINT_BYTES * count, max_bytes) * 2
        parts = [unpack(forward.take(taken_vint(forward.take)), limit) for limit in limits]
        keys, values = _cut(parts[1], taken_vints(parts[0], count)), _cut(parts[3], taken_vints(parts[2], count))
        yield offset, keys, values


def _cut(data: bytes, sizes: Any) -> Any:
    """Consecutive records of these sizes."""
    borders = np.concatenate([[0], np.cumsum(sizes)])
    if borders[-1] != len(data):
        raise ValueError(WRONG_LENGTH)
    buffers = [None, pa.py_buffer(borders.astype(np.int32)), pa.py_buffer(data)]
    return pa.BinaryArray.from_buffers(pa.binary(), len(sizes), buffers)
