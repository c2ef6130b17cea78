"""The contract of codecs, which turn the bytes of an object, or of a range of it, into rows."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from holdfast.flow.fault import Fault
from holdfast.sources.objects.object_ref import RandomBytes, Stream

Faults = Sequence[tuple[int, Fault]]


@dataclass(frozen=True, slots=True)
class Portion:
    """Some records in the order of the object: items and columns of the good ones, items and faults of the others."""

    items: Any
    columns: Sequence[Any]
    faults: Faults = ()


@dataclass(frozen=True, slots=True)
class Range:
    """A byte range of an object. It owns the lines, blocks or row groups that begin in [start, end)."""

    start: int
    end: int
    size: int
    """Size of the whole object."""


class Codec(ABC):
    """How bytes become rows of the data columns. Picklable.

    The same bytes always give the same rows and faults. A record that cannot be decoded is a fault and does not affect
    the others. Reading raises `Damaged` where the object itself is broken; all portions yielded before are good.
    """

    schema: pa.Schema
    splits: bool = False
    """Whether ranges can be read separately. Lines, blocks and row groups belong to the range in which they begin."""


class StreamCodec(Codec):
    """A codec that reads forwards. The object may be compressed; the range is then its whole content."""

    has_header: bool = False
    """Whether the first line names the columns."""

    @abstractmethod
    def read(self, data: Stream, start: int, end: int) -> Iterator[Portion]:
        """The records that begin in [start, end). The stream is positioned one byte before `start`, or at 0."""

    @abstractmethod
    def texts(self, data: Stream, start: int, end: int) -> Iterator[Any]:
        """The texts of these records, not decoded, and the header: `Lines` and `LongLine`."""


class BlockCodec(Codec):
    """A codec of files that consist of blocks and have compression of their own."""

    splits = True

    @abstractmethod
    def read(self, data: RandomBytes, extent: Range) -> Iterator[Portion]:
        """The records of the blocks that begin in the range. Blocks on either side are not read."""
