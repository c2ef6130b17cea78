"""JSON messages as lines, so that a whole portion can be decoded in one call.

A message that begins and ends with a brace, and is followed by a line break, cannot run on into the next: in JSON no
`}` and `{` follow each other but between two objects, and no line break is in a string. So as many objects as messages
is one in each.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.processors.parse.cells import Unreadable

TRIMMED = 16
"""White space around an object that is looked for; a message with more is decoded by itself, or refused."""
LARGEST = 1 << 30
"""Arrow counts the bytes of a column by 32 bits."""
_OPEN, _CLOSE = ord("{"), ord("}")


def look_like_objects(values: Any) -> Any:
    """For each message of a binary array, whether it begins and ends with a brace."""
    if not len(values):
        return np.zeros(0, np.bool_)
    borders = np.frombuffer(values.buffers()[1], np.int32)[values.offset : values.offset + len(values) + 1]
    starts, ends = borders[:-1], borders[1:] - 1
    if borders[-1] == borders[0]:
        return np.zeros(len(values), np.bool_)
    data = np.frombuffer(values.buffers()[2], np.uint8)
    last = len(data) - 1
    for _ in range(TRIMMED):
        before, behind = _is_space(data[np.minimum(starts, last)]), _is_space(data[ends])
        if not before.any() and not behind.any():
            break
        starts, ends = starts + before, np.maximum(ends - behind, 0)
    return (ends > starts) & (data[np.minimum(starts, last)] == _OPEN) & (data[ends] == _CLOSE)


def joined(values: Any) -> Any:
    """All messages with line breaks between them, in one buffer. Raises `Unreadable` if that would be too large."""
    if values.nbytes > LARGEST:
        raise Unreadable(f"a message is larger than {LARGEST} bytes")
    whole = pa.ListArray.from_arrays(pa.array([0, len(values)], pa.int32()), values)
    return pc.binary_join(whole, b"\n")[0].as_buffer()


def _is_space(numbers: Any) -> Any:
    return (numbers == ord(" ")) | (numbers == ord("\n")) | (numbers == ord("\r")) | (numbers == ord("\t"))
