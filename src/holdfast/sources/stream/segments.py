"""The segments of a shard: files of frames in one folder, each named by the offset of its first record.

Beside a segment lies a sparse index: at regular distances, the offset, timestamp and byte position of a frame. It only
speeds up seeking. An entry counts only if the frame is really there; without an index the segment is scanned.
"""

from __future__ import annotations

import os
import struct
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from holdfast.sources.stream.frames import MAGIC, MAX_FRAME_BYTES, SEGMENT_HEADER, Frame, frame_at, frame_bytes

SUFFIX, INDEX_SUFFIX = ".segment", ".index"
FIRST_FRAME = SEGMENT_HEADER.size
INDEX_EVERY = 64 << 10
"""Bytes of a segment between two entries of its index."""
CHUNK = 128 << 10
"""Bytes that are read at a time."""
LARGEST = 1 << 40
"""Bytes of a segment that an index may point into; beyond that the index is damaged."""
_ENTRY = struct.Struct("<QqQ")


class IndexEntry(NamedTuple):
    """A frame: the offset of its first record, its timestamp, and where its bytes begin."""

    base: int
    timestamp: int
    position: int


@dataclass(frozen=True, order=True)
class Segment:
    """A segment of a shard; its records begin at the offset `base`."""

    base: int
    folder: Path

    @cached_property
    def path(self) -> Path:
        return self.folder / segment_name(self.base)

    @property
    def index_path(self) -> Path:
        return self.folder / f"{self.base:020d}{INDEX_SUFFIX}"

    def began(self) -> int | None:
        """The timestamp of the first frame, in milliseconds; None if the segment is gone or its header is not whole."""
        try:
            data = read(self.path, 0, SEGMENT_HEADER.size)
        except FileNotFoundError:
            return None
        if len(data) < SEGMENT_HEADER.size:
            return None
        magic, base, timestamp = SEGMENT_HEADER.unpack(data)
        return int(timestamp) if (magic, base) == (MAGIC, self.base) else None

    def index(self) -> list[IndexEntry]:
        """The entries of the index; empty without an index. They are hints, see `position_of`."""
        try:
            data = self.index_path.read_bytes()
        except FileNotFoundError:
            return []
        whole = len(data) - len(data) % _ENTRY.size
        entries = (IndexEntry(*entry) for entry in _ENTRY.iter_unpack(data[:whole]))
        return [entry for entry in entries if entry.position < LARGEST]

    def frames(self, position: int = FIRST_FRAME) -> Iterator[tuple[Frame, int]]:
        """Whole frames from a byte position on, with their byte positions, up to the first that is not whole."""
        data, at = b"", 0
        while True:
            frame = frame_at(data, at)
            if frame is None:
                position += at
                data, at = read_frames(self.path, position), 0
                frame = frame_at(data, 0)
                if frame is None:
                    return
            yield frame, position + at
            at = frame.stop

    def position_of(self, offset: int) -> int:
        """A byte position at which a frame begins, at or before the frame that holds this offset."""
        entries = self.index()
        return self._checked(entries[: bisect_right(entries, offset, key=lambda entry: entry.base)])

    def position_before(self, timestamp: int) -> int:
        """A byte position at which a frame begins, at or before the first frame with this timestamp or a later one."""
        entries = self.index()
        return self._checked(entries[: bisect_left(entries, timestamp, key=lambda entry: entry.timestamp)])

    def _checked(self, entries: list[IndexEntry]) -> int:
        for entry in reversed(entries):
            frame = frame_at(read_frames(self.path, entry.position), 0)
            if frame is not None and (frame.base, frame.timestamp) == (entry.base, entry.timestamp):
                return entry.position
        return FIRST_FRAME

    def ended(self) -> int:
        """The timestamp of the last whole frame, in milliseconds; 0 if there is none."""
        entries = self.index()
        return max((frame.timestamp for frame, _ in self.frames(self._checked(entries))), default=0)

    def remove(self) -> None:
        self.path.unlink(missing_ok=True)
        self.index_path.unlink(missing_ok=True)


def segment_name(base: int) -> str:
    """The name of the file of a segment."""
    return f"{base:020d}{SUFFIX}"


def segments(folder: Path) -> list[Segment]:
    """The segments of a shard in order. Raises `OSError`."""
    names = [entry.name for entry in os.scandir(folder) if entry.name.endswith(SUFFIX)]
    return sorted(Segment(int(name.removesuffix(SUFFIX)), folder) for name in names)


def last_whole(found: Sequence[Segment]) -> Segment | None:
    """Return the last segment with a whole frame."""
    whole = (s for s in reversed(found) if s.began() is not None and next(s.frames(), None) is not None)
    return next(whole, None)


def scanned_end(found: Sequence[Segment]) -> int:
    """The offset after the last record, by the checksums alone; offsets of segments without records count as used."""
    last = last_whole(found)
    ends = [frame.end for frame, _ in last.frames()] if last is not None else []
    return max([0, *ends, *(segment.base for segment in found)])


def first_at(folder: Path, timestamp: int, end: int) -> int:
    """The offset of the first record with this timestamp or a later one; `end` if there is none before it.

    Raises `OSError`.
    """
    return _retried(lambda: _first_at(segments(folder), timestamp, end))


def _first_at(found: list[Segment], timestamp: int, end: int) -> int:
    began = [segment.began() for segment in found]
    later = next((at for at, time in enumerate(began) if time is not None and time >= timestamp), len(found))
    if later > 0:
        segment = found[later - 1]
        for frame, _ in segment.frames(segment.position_before(timestamp)):
            if frame.timestamp >= timestamp:
                return min(frame.base, end)
    return min(found[later].base, end) if later < len(found) else end


def _retried(look: Callable[[], int]) -> int:
    """Repeat the call if a segment was removed while it was being read."""
    while True:
        try:
            return look()
        except FileNotFoundError:
            continue


def index_entry(frame: Frame, position: int) -> bytes:
    return _ENTRY.pack(frame.base, frame.timestamp, position)


def read(path: Path, position: int, size: int) -> bytes:
    """Bytes of a file from a position on. Raises `OSError`."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        return os.pread(descriptor, size, position)
    finally:
        os.close(descriptor)


def read_frames(path: Path, position: int) -> bytes:
    """Bytes from a position on, enough for a whole frame if one is there. Raises `OSError`."""
    data = read(path, position, CHUNK)
    length = frame_bytes(data, 0)
    if length and length > len(data) == CHUNK:
        data = read(path, position, min(length, MAX_FRAME_BYTES))
    return data
