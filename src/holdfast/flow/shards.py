"""Streams whose shards a long-lived task reads by itself: the contract between a source and the tasks of functions.

The node keeps all coordination: it discovers shards, holds a lease for each, and stores positions. A task is given a
shard and a position, fetches the records with its own `ShardReader`, and reports how far it got. Records never pass
through the node.

- A shard is a partition of the source; its id is the key of that partition.
- An **offset** is an integer that names a record within its shard. Offsets grow and may have gaps. They may exceed 64
  bits (a sequence number of Kinesis has 56 digits), so a protocol carries them as text.
- A **position** names the next record to read. It is JSON that only the source understands. Positions are made by
  `ShardedStream.seek`, `ShardReader.position_at` and `ShardReader.position_after`, and are stored as they are.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter
from typing import Literal, NamedTuple, Protocol, TypeAlias

import msgspec

from holdfast.flow.batch import Plan
from holdfast.leases.lease import Json, Lease

MAX_ITEM = 2**63 - 1
_SHARD = attrgetter("shard")
Headers: TypeAlias = tuple[tuple[str, bytes | None], ...]
"""Names and values in the order in which they were sent; a name may occur twice."""


class StreamRecord(msgspec.Struct, frozen=True, gc=False):
    """A record of a shard. Cheap to make: there may be a million per second."""

    shard: str
    offset: int
    timestamp: int
    """Milliseconds since 1970: when the stream received the record, or the time that its producer gave."""
    key: bytes | None
    headers: Headers
    body: bytes | None
    """None for a record without a body, such as a tombstone of Kafka; an empty body is `b""`."""


ShardRecords: TypeAlias = tuple[str, Sequence[StreamRecord]]
"""Records of the shard with that id, in their order. There is at least one, and the sequence does not change."""


@dataclass(frozen=True, slots=True)
class Shard:
    """A shard as it is now."""

    id: str
    number: int
    """The number that handlers see as `shard_id`."""
    parents: tuple[str, ...] = ()
    """Shards whose records come before those of this shard, because they were split or merged.

    A shard is given to a task once the leases of all its parents are complete or gone. A parent that is not listed any
    more counts as complete: its records have been deleted.
    """
    closed: bool = False
    """Whether the shard accepts no more records. Its lease is complete once a reader has reported `ShardEnded`."""


class Lag(NamedTuple):
    """How far a reader is behind the end of a shard; None where the stream does not report it."""

    records: int | None
    milliseconds: int | None


# --- what a reader reports about a shard ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RecordsMissing:
    """Records were deleted, usually by retention, before they were read.

    `start` and `end` are the offsets [start, end) that are gone; None where the stream does not report them. If
    `halted`, the reader fetches nothing more of this shard, and the partition must be halted; otherwise it continues
    after the gap.
    """

    shard: str
    start: int | None
    end: int | None
    halted: bool


@dataclass(frozen=True, slots=True)
class ShardEnded:
    """Every record of a closed shard has been fetched. Reported after the last record, once."""

    shard: str


@dataclass(frozen=True, slots=True)
class ShardFailed:
    """This shard cannot be read, and waiting does not help; the reader fetches nothing more of it.

    If `halt`, going on would lose or mix up records and a person must look, for example because the stream was deleted
    and created again. Otherwise it counts as an attempt of the partition.
    """

    shard: str
    error: str
    halt: bool = False


ShardReport: TypeAlias = RecordsMissing | ShardEnded | ShardFailed


def item_of(offset: int) -> int | None:
    """The offset itself; None if it has more than 64 bits."""
    return offset if offset <= MAX_ITEM else None


class ShardReader(ABC):
    """Fetches records of the shards that it was given, inside a task. Used by one thread.

    Records of a shard come in the order of their offsets, each once. A problem of one shard never keeps back records of
    another: it comes through `reports`.
    """

    @abstractmethod
    def add(self, shard: str, position: Json) -> None:
        """Read this shard too, from the position on. A shard that is being read already is read again from there.

        Does not wait for the stream. A shard or position that is unreadable comes through `reports` as `ShardFailed`.
        """

    @abstractmethod
    def remove(self, shard: str) -> None:
        """Stop reading the shard: no later `fetch` returns its records. No effect if it is not being read.

        A shard that is added again is not paused.
        """

    @abstractmethod
    def pause(self, shard: str) -> None:
        """Fetch nothing of this shard until `resume`, and then continue with the next record.

        Does not wait for the stream. May be repeated, as often as `fetch` is called.
        """

    @abstractmethod
    def resume(self, shard: str) -> None:
        """Fetch records of this shard again. May be repeated."""

    @abstractmethod
    def fetch(self, limit: int, timeout: float) -> Sequence[StreamRecord]:
        """At most `limit` records of all shards together; at least one if one arrives within `timeout` seconds.

        Returns what is there without waiting for more. Blocks for about `timeout` seconds at most; returns early if
        there is something to report. A busy shard does not keep back the others for more than a few calls. Raises
        `SourceUnavailable` if the stream does not respond; the call may be repeated and loses nothing.
        """

    def fetch_by_shard(self, limit: int, timeout: float) -> Sequence[ShardRecords]:
        """Like `fetch`, with the records of each shard together.

        The sequences may create a record only when it is read.
        """
        return [(shard, [*records]) for shard, records in groupby(self.fetch(limit, timeout), _SHARD)]

    @abstractmethod
    def reports(self) -> list[ShardReport]:
        """What became known about shards since the last call. Does not block."""

    @abstractmethod
    def lag(self, shard: str) -> Lag:
        """How far the records that were fetched are behind the end of the shard, as far as known. Does not block."""

    @abstractmethod
    def position_at(self, offset: int) -> Json:
        """The position whose next record is the one with this offset, which must have been fetched. Pure."""

    @abstractmethod
    def position_after(self, offset: int) -> Json:
        """The position after the record with this offset, which must have been fetched. Pure."""

    def item_of(self, offset: int) -> int | None:
        """The 64-bit number that identifies rows made from that record; None if there is none. Pure.

        It grows with the offsets of a shard.
        """
        return item_of(offset)

    @abstractmethod
    def close(self) -> None:
        """Close what was opened. May be repeated; never raises."""


class ReaderFactory(Protocol):
    """Opens readers inside tasks. Picklable, and small: it is sent to every task."""

    def open(self) -> ShardReader:
        """Return a reader without shards. Does not wait for the stream."""


Seek: TypeAlias = Literal["earliest", "latest"] | int
"""Where to begin: at the oldest record, behind the newest one, or at the first record at or after a time, which is
given in milliseconds since 1970."""


class ReportsLags(ABC):
    """A capability of a source that knows the ends of its shards."""

    @abstractmethod
    def lags(self, leases: Sequence[Lease]) -> Sequence[Lag]:
        """For each lease, how far its position is behind the end of the shard. Blocks. Raises `SourceUnavailable`."""


def lags_of(extents: Sequence[tuple[int, int] | None]) -> list[Lag]:
    """The lags of shards of which the next offset to read and the end are known."""
    return [Lag(None if extent is None else max(0, extent[1] - extent[0]), None) for extent in extents]


class ShardedStream(ReportsLags):
    """A capability of a source whose partitions are shards of a stream."""

    @abstractmethod
    def reads(self, stream: str) -> bool:
        """Whether a stream or topic of that name is read. Pure."""

    @abstractmethod
    def shards(self) -> Sequence[Shard]:
        """All shards that hold records or accept new ones, parents before children.

        Blocks. Raises `SourceUnavailable`.
        """

    @abstractmethod
    def seek(self, shards: Sequence[str], to: Seek) -> Mapping[str, Json]:
        """By shard, the position to begin at. Blocks. Raises `SourceUnavailable`.

        The result is stored before anything is read: `latest`, looked up a second time, would skip records. A time
        after the newest record gives the position after that record. A shard that does not exist any more is left out.
        """

    @abstractmethod
    def begin(self, leases: Sequence[Lease]) -> Sequence[Plan]:
        """For each lease, the batch that a task reads from its position on, without an end: `Cut(start, None)`.

        A lease without a position begins where its spec says. Returns a `Halt`, a `BatchError` or a `Wait` for a shard
        that cannot be read as it is, as `Source.plan` does. Blocks. Raises `SourceUnavailable`.
        """

    def item_of(self) -> Callable[[int], int | None]:
        """What `ShardReader.item_of` of its readers computes, as a function that can be pickled. Pure."""
        return item_of

    @abstractmethod
    def reader_factory(self) -> ReaderFactory:
        """What tasks open to read the shards. Does not block."""
