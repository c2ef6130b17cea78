"""Framing of messages in a file: with delimiters, with escapes, or with length prefixes; written and read back."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

ESCAPE = b"\\"
ENDS_IN_MESSAGE = "the file ends within a message"
_LENGTH = 4
_NULL = -1


def chained(values: Any, delimiter: bytes) -> Any:
    """One buffer: all records, with the delimiter between each two. There is at least one record, and none is null."""
    import pyarrow as pa
    import pyarrow.compute as pc

    whole = pa.ListArray.from_arrays(pa.array([0, len(values)], pa.int32()), values)
    return pc.binary_join(whole, delimiter)[0].as_buffer()


def holds(values: Any, delimiter: bytes) -> Any | None:
    """A mask of the messages in which a delimiter begins, even if it ends after the message; None if none does."""
    import pyarrow.compute as pc

    from holdfast.formats._arrays import beside, has_byte, lengths

    # In most data its first byte does not occur at all, and a single scan of all bytes shows that.
    if not has_byte(values, delimiter[:1]):
        return None
    # A message may also end with the beginning of a delimiter: "a|" before "||".
    found = pc.find_substring(beside(values, delimiter), delimiter)
    held = pc.less(found, lengths(values))
    return held if pc.any(held).as_py() else None


def split(parts: Iterator[bytes], delimiter: bytes) -> Iterator[Any]:
    """Arrays of the messages. Raises `ValueError` if the last has no delimiter."""
    import pyarrow as pa
    import pyarrow.compute as pc

    rest = b""
    for part in parts:
        data = rest + part
        # Delimiters are matched from the left, so the last one cannot be searched from the right.
        messages = pc.split_pattern(pa.array([data], pa.binary()), delimiter).values
        rest = messages[-1].as_py()
        if len(messages) > 1:
            yield messages.slice(0, len(messages) - 1)
    if rest:
        raise ValueError(ENDS_IN_MESSAGE)


def prefixed(values: Any) -> Any:
    """One buffer: each message preceded by its length; null has the length -1."""
    import numpy as np

    from holdfast.formats._arrays import joined, lengths, rows_of

    sizes = lengths(values).astype(">i4")
    if values.null_count:
        sizes[np.asarray(values.is_null())] = _NULL
    return joined(rows_of(sizes.view(np.uint8).reshape(-1, _LENGTH)), values)


def without_prefix(parts: Iterator[bytes]) -> Iterator[Any]:
    """Arrays of the messages. Raises `ValueError` if the last is incomplete."""
    rest = b""
    for part in parts:
        data = rest + part
        messages, used = _behind_lengths(data)
        rest = data[used:]
        if len(messages):
            yield messages
    if rest:
        raise ValueError(ENDS_IN_MESSAGE)


def _behind_lengths(data: bytes) -> tuple[Any, int]:
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    from holdfast.formats._arrays import cut_out

    starts, sizes, index, number = [], [], 0, int.from_bytes
    while index + _LENGTH <= len(data):
        size = number(data[index : index + _LENGTH], "big", signed=True)
        if size < _NULL:
            raise ValueError("a message's length is negative")
        if index + _LENGTH + size > len(data):
            break
        starts.append(index + _LENGTH)
        sizes.append(size)
        index += _LENGTH + max(size, 0)
    begins, lengths = np.array(starts, np.int64), np.array(sizes, np.int64)
    messages = cut_out(data, begins, begins + np.maximum(lengths, 0))
    return pc.if_else(pa.array(lengths != _NULL), messages, pa.scalar(None, pa.binary())), index


class Escapes:
    """Escapes backslashes, and a given byte as a backslash and a letter. Unescaping restores the exact bytes."""

    def __init__(self, byte: bytes, letter: bytes) -> None:
        self._byte = byte
        self._letter = letter

    def escaped(self, values: Any) -> Any:
        """The messages with the byte escaped."""
        import pyarrow.compute as pc

        from holdfast.formats._arrays import has_byte

        for byte, instead in ((ESCAPE, ESCAPE + ESCAPE), (self._byte, ESCAPE + self._letter)):
            if has_byte(values, byte):
                values = pc.replace_substring(values, byte, instead)
        return values

    def unescaped(self, values: Any) -> Any:
        """The inverse of `escaped`. Raises `ValueError` for any other backslash."""
        import numpy as np
        import pyarrow as pa

        from holdfast.formats._arrays import content, lengths

        data = np.frombuffer(content(values), np.uint8)
        marks = first_of_pairs(np.flatnonzero(data == ord(ESCAPE)))
        behind = data[np.minimum(marks + 1, len(data) - 1)] if len(marks) else data[:0]
        is_escape = (behind == ord(ESCAPE)) | (behind == ord(self._letter))
        ends = np.cumsum(lengths(values))
        if not is_escape.all() or np.isin(marks + 1, ends).any():
            raise ValueError("a backslash is followed by a byte that is never escaped")
        plain = data.copy()
        plain[marks[behind == ord(self._letter)] + 1] = ord(self._byte)
        borders = np.concatenate([[0], ends - np.searchsorted(marks, ends)]).astype(np.int32)
        text = pa.py_buffer(np.delete(plain, marks))
        return pa.BinaryArray.from_buffers(pa.binary(), len(values), [None, pa.py_buffer(borders), text])


def first_of_pairs(indices: Any) -> Any:
    """Indices of the backslashes that escape the next byte: the first, third, … of each run of them."""
    import numpy as np

    if not len(indices):
        return indices
    begins = np.concatenate([[True], np.diff(indices) != 1])
    run_start = np.maximum.accumulate(np.where(begins, np.arange(len(indices)), 0))
    return indices[(np.arange(len(indices)) - run_start) % 2 == 0]
