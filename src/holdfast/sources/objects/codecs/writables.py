"""Hadoop's writables, many at once: columns from the bytes of keys and values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa

from holdfast.formats._arrays import content, cut_out, lengths
from holdfast.formats.sequencefile.reader import payloads

_PACKAGE = "org.apache.hadoop.io."
_WRONG = "a record's length and what follows disagree"


def decoder(class_name: str) -> Callable[[Any], Any] | None:
    """Makes a column of bytes, or of whole numbers, from a binary array. None for a class that is not known.

    It raises `ValueError` if one of them is no such writable.
    """
    known: dict[str, Callable[[Any], Any]] = {
        "BytesWritable": payloads,
        "Text": _texts,
        "LongWritable": lambda values: _numbers(values, ">i8"),
        "IntWritable": lambda values: _numbers(values, ">i4"),
        "NullWritable": lambda values: pa.nulls(len(values), pa.binary()),
    }
    return known.get(class_name.removeprefix(_PACKAGE)) if class_name.startswith(_PACKAGE) else None


def _numbers(values: Any, kind: str) -> Any:
    if (lengths(values) != np.dtype(kind).itemsize).any():
        raise ValueError(_WRONG)
    return pa.array(np.frombuffer(content(values), kind).astype(np.int64))


def _texts(values: Any) -> Any:
    """Each behind its length, which takes one byte up to 127 and else says how many bytes it takes."""
    data, sizes = np.frombuffer(content(values), np.uint8), lengths(values)
    ends = np.cumsum(sizes, dtype=np.int64)
    starts = ends - sizes
    if (sizes < 1).any():
        raise ValueError(_WRONG)
    first = data[starts].astype(np.int64)
    digits = np.where(first <= 127, 0, 0x90 - first)
    if (digits < 0).any() or (digits > 4).any() or (digits >= sizes).any():
        raise ValueError(_WRONG)
    told = np.where(digits == 0, first, 0)
    for place in range(1, 5):
        some = digits >= place
        told[some] = (told[some] << 8) | data[starts[some] + place]
    if (told != sizes - 1 - digits).any():
        raise ValueError(_WRONG)
    return cut_out(content(values), starts + 1 + digits, ends)
