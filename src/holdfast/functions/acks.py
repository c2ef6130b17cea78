"""Which records of one shard are out, which are acknowledged, and how far the position may move."""

from __future__ import annotations

from bisect import insort
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import Protocol

from holdfast.leases.lease import Json, joined

Range = tuple[int, int]
"""Offsets [from, to)."""


class Positions(Protocol):
    """Makes the positions of a stream from offsets that were fetched, as a `ShardReader` does."""

    def position_at(self, offset: int) -> Json: ...

    def position_after(self, offset: int) -> Json: ...


class ShardAcks:
    """Tracks the records of one shard from delivery to acknowledgement. Used by one thread.

    Offsets are integers that grow within the shard, of any size and with gaps. `acked` are the ranges of the lease's
    row: records in them are not delivered again. `window` is how many records may be between the first one that is not
    acknowledged and the last one that was delivered.
    """

    __slots__ = ("_ahead", "_out", "last", "window")

    def __init__(self, acked: Sequence[Range] = (), *, window: int) -> None:
        self.window = window
        self.last: int | None = None
        """Offset of the last record that was delivered."""
        # Delivered records from the first one that is not acknowledged on, and whether each is acknowledged.
        # OrderedDict, because finding the first key of a dict takes longer the more keys were deleted before it.
        self._out: OrderedDict[int, bool] = OrderedDict()
        # Acknowledged before they were delivered, in order, apart from each other.
        self._ahead: list[Range] = list(joined(acked))

    @property
    def head(self) -> int | None:
        """Offset of the first record that is out and not acknowledged; None if there is none."""
        return next(iter(self._out)) if self._out else None

    def position(self, positions: Positions, start: Json) -> Json:
        """The end of the longest prefix that is acknowledged; `start` if no record was delivered."""
        if self._out:
            return positions.position_at(next(iter(self._out)))
        return start if self.last is None else positions.position_after(self.last)

    @property
    def acked(self) -> tuple[Range, ...]:
        """Ranges beyond the position that are acknowledged. Records with no other record between them share a range."""
        return joined([*self._runs(), *self._ahead])

    @property
    def full(self) -> bool:
        """Whether no record may be delivered before the first one that is out is acknowledged."""
        return len(self._out) >= self.window

    @property
    def in_order(self) -> bool:
        """Whether nothing is out and nothing is acknowledged ahead; `passed` may then be used."""
        return not self._out and not self._ahead

    @property
    def unacked(self) -> int:
        """Number of records that are out and not acknowledged."""
        return sum(not acked for acked in self._out.values())

    def is_out(self, offset: int) -> bool:
        """Whether the record was delivered and is not acknowledged."""
        return self._out.get(offset) is False

    def deliver(self, offset: int) -> bool:
        """Note the next record of the shard. Returns whether it must be handled: False if it is acknowledged already.

        Records come in the order of the shard, and none is left out; a record that came before is not handled again.
        """
        if self.last is not None and offset <= self.last:
            return False
        self.last = offset
        if self._ahead and self._was_acked_ahead(offset):
            if self._out:
                self._out[offset] = True
            return False
        self._out[offset] = False
        return True

    def passed(self, offset: int) -> None:
        """Note that all records up to this one were delivered and acknowledged, in order. Only if `in_order`."""
        self.last = offset

    def ack(self, offset: int) -> bool:
        """Acknowledge a record; may be repeated. Returns False if it could not be remembered.

        That happens if the record was not delivered yet and too many such acks are remembered; it will be delivered.
        """
        out = self._out
        if offset not in out:
            return (self.last is not None and offset <= self.last) or self._ack_ahead(offset)
        if offset != next(iter(out)):
            out[offset] = True
            return True
        del out[offset]
        while out:
            head = next(iter(out))
            if not out[head]:
                return True
            del out[head]
        return True

    def _ack_ahead(self, offset: int) -> bool:
        if not any(start <= offset < end for start, end in self._ahead):
            if len(self._ahead) >= self.window:
                return False
            insort(self._ahead, (offset, offset + 1))
            self._ahead = list(joined(self._ahead))
        return True

    def _was_acked_ahead(self, offset: int) -> bool:
        """Whether a range of acks holds the offset. Drops earlier ranges, whose records were delivered since."""
        ahead = self._ahead
        while ahead and ahead[0][1] <= offset:
            del ahead[0]
        if not ahead or ahead[0][0] > offset:
            return False
        _, end = ahead[0]
        ahead[:1] = [(offset + 1, end)] if end > offset + 1 else []
        return True

    def _runs(self) -> Iterator[Range]:
        """Acknowledged records in `_out`, neighbours as one range."""
        start: int | None = None
        end = 0
        for offset, acked in self._out.items():
            if acked:
                start, end = offset if start is None else start, offset + 1
            elif start is not None:
                yield start, end
                start = None
        if start is not None:
            yield start, end
