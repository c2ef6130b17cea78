"""What the levels and lengths in a page of Parquet say about its rows and values, without decoding the values.

No library offers this without making the values, which is what must not happen before their size is known.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

_LONGEST_LEVELS, _MOST_LEVELS = 1 << 20, 1 << 24
"""Bytes and number of the repetition levels of a page that are decoded."""
_LONGEST_VARINT = 10


class RowSizes:
    """Finds the longest row of a list, page by page."""

    def __init__(self) -> None:
        self.longest = 0
        self._open = 0
        """Values so far of the row that may go on in the next page."""

    def begin(self, starts: Any, count: int) -> int:
        """Return how many rows begin in a page with `count` values; `starts` are the indices at which they begin."""
        if not len(starts):
            self._open += max(count, 0)
            self.longest = max(self.longest, self._open)
            return 0
        inner = int(np.diff(starts).max(initial=0))
        self.longest = max(self.longest, self._open + int(starts[0]), inner)
        self._open = 0
        self.begin(starts[:0], count - int(starts[-1]))
        return len(starts)


def row_starts(levels: bytes, repetition: int, count: int) -> Any:
    """Indices of the values in a page that begin a row, by repetition levels; empty, which is safe, for large pages."""
    if len(levels) > _LONGEST_LEVELS or not 0 < count <= _MOST_LEVELS:
        return np.empty(0, np.int64)
    return np.flatnonzero(_are_zero(levels, repetition.bit_length(), count))


def _are_zero(data: bytes, width: int, count: int) -> Any:
    """Which of the first levels are 0. They are in runs of one value, or in groups of eight, `width` bits each."""
    found, left, index, bytes_per_value = [np.zeros(0, np.bool_)], count, 0, -(-width // 8)
    while left > 0 and index < len(data):
        header, index = _varint(data, index)
        if header & 1:
            size = (header >> 1) * width
            found.append(~_packed(data[index : index + size], width)[:left].any(axis=1))
            index += size
        else:
            is_zero = not any(data[index : index + bytes_per_value])
            found.append(np.full(min(header >> 1, left), is_zero, np.bool_))
            index += bytes_per_value
        left -= len(found[-1])
    return np.concatenate(found)


class Lengths(NamedTuple):
    """Lengths of values."""

    total: int = 0
    longest: int = 0


def decoded_lengths(data: Any) -> Lengths:
    """The lengths at the beginning of `data`, which are differences packed in blocks (DELTA_BINARY_PACKED).

    Raises `ValueError` if they cannot be decoded, or are too many.
    """
    index, numbers = 0, []
    for _ in range(4):
        number, index = _varint(data, index)
        numbers.append(number)
    block, parts, count, length = *numbers[:3], _signed(numbers[3])
    if not 0 < parts <= block or max(block, count) > _MOST_LEVELS:
        raise ValueError("the lengths of its values cannot be decoded")
    total = longest = max(length, 0)
    per_part, left = block // parts, count - 1
    while left > 0:
        least, index = _varint(data, index)
        widths, index = bytes(data[index : index + parts]), index + parts
        if len(widths) < parts or max(widths) > 64:
            raise ValueError("the lengths of its values cannot be decoded")
        for width in widths[: -(-left // per_part)]:
            size = min(per_part, left)
            lengths = length + np.cumsum(_differences(data[index:], width, size) + _signed(least))
            length, left, index = int(lengths[-1]), left - size, index + per_part * width // 8
            total += int(np.maximum(lengths, 0).sum())
            longest = max(longest, int(lengths.max()))
    return Lengths(total, longest)


def _differences(data: Any, width: int, count: int) -> Any:
    """The first differences of a part of a block, as floats, so that sums of hostile values do not overflow."""
    if not width:
        return np.zeros(count)
    bits = _packed(bytes(data[: -(-count * width // 8)]), width)[:count]
    if len(bits) < count:
        raise ValueError("the lengths of its values are cut off")
    return bits @ np.exp2(np.arange(width))


def _packed(data: bytes, width: int) -> Any:
    """The bits of each number of `width` bits, the lowest first."""
    bits = np.unpackbits(np.frombuffer(data, np.uint8), bitorder="little")
    return bits[: len(bits) // width * width].reshape(-1, width)


def _signed(number: int) -> int:
    return (number >> 1) ^ -(number & 1)


def _varint(data: Any, index: int) -> tuple[int, int]:
    value = shift = 0
    while index < len(data):
        byte = data[index]
        index += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80 or shift >= 7 * _LONGEST_VARINT:
            break
    return value, index
