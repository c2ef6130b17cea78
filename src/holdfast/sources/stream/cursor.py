"""Where a reader is in one shard of an embedded stream, and how it continues from there."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from holdfast.errors import BatchError, Halt
from holdfast.flow.shards import StreamRecord
from holdfast.sources.stream.ends import Ends
from holdfast.sources.stream.frames import Frame, decode, frame_at
from holdfast.sources.stream.segments import FIRST_FRAME, Segment, read_frames, segments


class Gap(NamedTuple):
    """Offsets [start, end) that are no longer in the stream."""

    start: int
    end: int


class Cursor:
    """Reads one shard from an offset on. Used by one thread; holds no file open between two calls."""

    def __init__(self, folder: Path, shard: str, number: int, ends: Ends, offset: int) -> None:
        self._folder, self._shard, self._number, self._ends = folder, shard, number, ends
        self.next = offset
        """Offset of the next record to read."""
        self._segment: Segment | None = None
        self._position = 0

    def is_behind(self) -> bool:
        """Whether there may be records to read. Needs no system call if the end of the shard is known."""
        end = self._ends.get(self._number)
        return end is None or end != self.next

    def read(self) -> list[StreamRecord] | Gap:
        """The next records, some at a time; an empty list if there are none now.

        Returns a `Gap` if retention has deleted the next records; the cursor does not move then. Raises `OSError`,
        `BatchError` for damaged bytes, and `Halt` if the stream ends before the cursor.
        """
        end = self._ends.get(self._number)
        if end is not None and end < self.next:
            raise Halt(f"the stream of {self._shard} ends at {end}, before offset {self.next}: it has lost records")
        if end == self.next:
            return []
        try:
            return self._read()
        except FileNotFoundError:
            self._segment = None  # retention has removed the segment
            return self._read()

    def skip(self, gap: Gap) -> None:
        """Continue after a gap."""
        self.next, self._segment = gap.end, None

    def _read(self) -> list[StreamRecord] | Gap:
        if self._segment is None and (gap := self._locate()) is not None:
            return gap
        if self._segment is None:
            return []
        while True:
            data = read_frames(self._segment.path, self._position)
            # Looked up after the bytes were read: everything before this end was whole by then.
            end = self._ends.get(self._number)
            records, at = self._decoded(data, end)
            self._position += at
            if records:
                return records
            if not at:
                return self._behind_frames(end)

    def _decoded(self, data: bytes, end: int | None) -> tuple[list[StreamRecord], int]:
        """The records of all whole frames before `end`, and where their bytes end."""
        records: list[StreamRecord] = []
        at = 0
        while (end is None or self.next < end) and (frame := frame_at(data, at)) is not None:
            if frame.base > self.next:
                raise BatchError(f"{self._shard} is damaged: offset {frame.base} follows offset {self.next - 1}")
            if frame.end > self.next:
                found = self._rest(data, frame)
                records = records + found if records else found
            at, self.next = frame.stop, max(self.next, frame.end)
        return records, at

    def _rest(self, data: bytes, frame: Frame) -> list[StreamRecord]:
        found = decode(data, frame, self._shard)
        return found[self.next - frame.base :] if self.next > frame.base else found

    def _behind_frames(self, end: int | None) -> list[StreamRecord] | Gap:
        """Decide what follows after the last whole frame: nothing yet, another segment, a gap or damage."""
        assert self._segment is not None
        if end == self.next:
            return []
        following = Segment(self.next, self._folder)
        if following != self._segment and following.began() is not None:
            self._segment, self._position = following, FIRST_FRAME
            return self._read()
        rest = read_frames(self._segment.path, self._position)
        if end is not None and frame_at(rest, 0) is not None:
            return self._read()  # it was being written just now
        later = next((segment for segment in segments(self._folder) if segment.base > self.next), None)
        if end is None or (later is not None and not rest):
            return [] if later is None else Gap(self.next, later.base)
        raise BatchError(f"{self._segment.path} is damaged at byte {self._position}, offset {self.next}")

    def _locate(self) -> Gap | None:
        """Find the segment that holds the next record; returns the gap if that segment begins later."""
        found = segments(self._folder)
        holding = [segment for segment in found if segment.base <= self.next]
        if not holding:
            return Gap(self.next, found[0].base) if found else None
        segment = holding[-1]
        self._position = segment.position_of(self.next)
        self._segment = segment
        return None
