"""What a codec is: it makes rows of an object's bytes, or of a range of them."""

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
    """Some records in the order of the object: items and data columns of the good ones, items and faults of others."""

    items: Any
    columns: Sequence[Any]
    faults: Faults = ()


@dataclass(frozen=True, slots=True)
class Range:
    """Bytes of an object. It owns what begins in [start, end): lines, blocks, row groups."""

    start: int
    end: int
    size: int
    """Bytes of the whole object."""


class Codec(ABC):
    """How bytes become rows of the data columns. Picklable.

    The same bytes give the same rows and faults, whoever reads them. A record that is none is a fault and does not
    touch the others. Reading raises `Damaged` where the object itself is broken; what was yielded before is good.
    """

    schema: pa.Schema
    splits: bool = False
    """Whether ranges can be read apart: each thing belongs to the range in which it begins."""


class StreamCodec(Codec):
    """A codec that reads forwards, so that the object may be compressed. Then the range is all that it unpacks to."""

    @abstractmethod
    def read(self, data: Stream, start: int, end: int) -> Iterator[Portion]:
        """The records that begin in [start, end). The stream stands one byte before `start`, or at 0."""


class BlockCodec(Codec):
    """A codec of files that are made of blocks and compress them by themselves."""

    splits = True

    @abstractmethod
    def read(self, data: RandomBytes, extent: Range) -> Iterator[Portion]:
        """The records of the blocks that begin in the range. Blocks on either side are not read."""
