"""Appends to one shard. Several processes may do so: each append holds the lock of the shard's folder.

An append writes a frame after the committed records, makes it durable, and only then moves the shard's end. A writer
that is killed in between leaves bytes after the end, which no reader delivers and which the next append cuts off.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from holdfast.errors import SourceUnavailable, UsageError
from holdfast.sources.stream.ends import Ends
from holdfast.sources.stream.frames import (
    FRAME_BYTES,
    MAGIC,
    MAX_RECORD_BYTES,
    SEGMENT_HEADER,
    Frame,
    NewRecord,
    encode,
)
from holdfast.sources.stream.segments import (
    FIRST_FRAME,
    INDEX_EVERY,
    Segment,
    index_entry,
    last_whole,
    segment_name,
    segments,
)

SEGMENTS_PER_RETENTION = 8
"""A segment covers at most this part of the retention, so that records go soon after their time."""


@dataclass(frozen=True)
class ShardSettings:
    """How a shard is written."""

    retention: float | None
    """Seconds for which records are kept at least; None: for ever."""
    segment_bytes: int
    sync: bool
    """Whether an append returns only once its records are on the disk."""


class ShardWriter:
    """Appends to one shard. Used by one thread at a time; a child process must make its own."""

    def __init__(
        self, folder: Path, number: int, ends: Ends, settings: ShardSettings, now: Callable[[], float] = time.time
    ) -> None:
        self._number, self._ends, self._settings, self._now = number, ends, settings, now
        self._folder = folder
        self._lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        self._file = -1
        self._segment = Segment(0, folder)
        self._began, self._timestamp = 0, 0
        self._size, self._end, self._indexed = 0, -1, 0

    def append(self, records: Sequence[NewRecord]) -> tuple[int, int]:
        """Append records in this order, and return their offsets [first, end) once they are durable.

        Records of up to 1 MiB in total are appended as a whole or not at all; larger appends may be cut between records
        if this process is killed. Blocks while another process appends to the shard. Raises `UsageError` for a record
        that is too large, and `SourceUnavailable`; the records may then be there or not.
        """
        portions = list(_portions(records))
        self._exclude_others()
        try:
            self._catch_up()
            first = self._end
            for portion in portions:
                self._write(portion)
            return first, self._end
        except OSError as error:
            self._end = -1  # what is in the file is unknown now
            raise SourceUnavailable(f"{self._folder} cannot be written: {error.strerror}") from error
        finally:
            fcntl.flock(self._lock, fcntl.LOCK_UN)

    def close(self) -> None:
        for descriptor in (self._file, self._lock):
            if descriptor >= 0:
                os.close(descriptor)
        self._file = self._lock = -1

    def _exclude_others(self) -> None:
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX)
        except OSError as error:
            raise SourceUnavailable(f"{self._folder} cannot be locked: {error.strerror}") from error

    # --- where the shard ends --------------------------------------------------------------------------------------

    def _catch_up(self) -> None:
        """Find the end of the shard, which another process may have moved, and cut off what is after it."""
        end = self._ends.get(self._number)
        if end is None or end != self._end or self._was_rolled_in_vain():
            self._look_up(end)
        if self._file < 0:
            return
        status = os.fstat(self._file)
        if not status.st_nlink:
            raise SourceUnavailable(f"{self._folder} was deleted")
        if status.st_size > self._size:
            os.ftruncate(self._file, self._size)

    def _was_rolled_in_vain(self) -> bool:
        """Whether a writer created the next segment and was killed before it committed a frame there.

        By that writer's clock the current segment was full; by this one's it may not be. What that writer has left in
        the next segment must not be read as this writer's later.
        """
        # By its name alone: a path for every append would take as long as all the rest.
        return self._end != self._segment.base and os.access(segment_name(self._end), os.F_OK, dir_fd=self._lock)

    def _look_up(self, end: int | None) -> None:
        """Find the last committed record: from what this writer knows, or in the last segment that holds one."""
        found = segments(self._folder)
        last = next((s for s in reversed(found) if s.base < end), None) if end is not None else last_whole(found)
        for segment in found:
            if last is None or segment.base > last.base:
                segment.remove()  # nothing in it was committed
        if last is None:
            self._let_go()
            self._end = 0 if end is None else end
        elif end is None or self._end < 0 or last != self._segment or self._file < 0:
            self._open(last)
            self._end = last.base
            self._scan(FIRST_FRAME if end is None else last.position_of(end - 1), end)
        else:
            self._scan(self._size, end)
        if end is None:
            self._recover(max((segment.base for segment in found), default=0))

    def _recover(self, least: int) -> None:
        """Begin again after a crash of the host: keep what has reached the disk, and use no offset twice."""
        if self._file >= 0:
            os.ftruncate(self._file, self._size)
            os.fdatasync(self._file)
        if self._end < least:
            self._let_go()
            self._end = least
        self._ends.set(self._number, self._end)

    def _scan(self, position: int, end: int | None) -> None:
        self._size = position
        for frame, at in self._segment.frames(position):
            if end is not None and frame.base >= end:
                break
            self._end, self._timestamp, self._size = frame.end, frame.timestamp, at + frame.stop - frame.start
        if end is not None and self._end != end:
            raise SourceUnavailable(f"{self._segment.path} is damaged: its records end at {self._end}, not at {end}")

    def _open(self, segment: Segment) -> None:
        self._let_go()
        self._file = os.open(segment.path, os.O_RDWR | os.O_CREAT, 0o666)
        self._segment, self._began = segment, segment.began() or 0
        self._indexed = max((entry.position for entry in segment.index()), default=0)

    def _let_go(self) -> None:
        if self._file >= 0:
            os.close(self._file)
        self._file = -1

    # --- writing ---------------------------------------------------------------------------------------------------

    def _write(self, records: Sequence[NewRecord]) -> None:
        self._timestamp = max(self._timestamp, int(self._now() * 1000))
        frame = encode(self._end, self._timestamp, records)
        rolled = self._file < 0 or self._is_full()
        if rolled:
            self._roll()
        position = self._size
        _write_all(self._file, frame, position)
        if self._settings.sync:
            os.fdatasync(self._file)
        self._size += len(frame)
        self._end += len(records)
        self._ends.set(self._number, self._end)
        if self._size - self._indexed > INDEX_EVERY:
            self._add_to_index(Frame(0, 0, self._end - len(records), self._end, self._timestamp), position)
        if rolled:
            self._remove_expired()

    def _is_full(self) -> bool:
        age, kept = self._timestamp - self._began, self._settings.retention
        return self._size >= self._settings.segment_bytes or (
            kept is not None and age > kept * 1000 / SEGMENTS_PER_RETENTION
        )

    def _roll(self) -> None:
        """Begin a new segment."""
        self._open(Segment(self._end, self._folder))
        os.ftruncate(self._file, 0)
        _write_all(self._file, SEGMENT_HEADER.pack(MAGIC, self._end, self._timestamp), 0)
        self._size, self._began, self._indexed = FIRST_FRAME, self._timestamp, 0
        if self._settings.sync:
            os.fsync(self._lock)

    def _remove_expired(self) -> None:
        """Remove segments whose records have all exceeded the retention."""
        if self._settings.retention is None:
            return
        oldest = self._timestamp - self._settings.retention * 1000
        for segment in segments(self._folder)[:-1]:
            if segment.ended() >= oldest:
                break
            segment.remove()

    def _add_to_index(self, frame: Frame, position: int) -> None:
        with suppress(OSError), self._segment.index_path.open("ab") as index:
            index.write(index_entry(frame, position))
        self._indexed = position


def _write_all(descriptor: int, data: bytes, position: int) -> None:
    view = memoryview(data)
    while view:
        written = os.pwrite(descriptor, view, position)
        view, position = view[written:], position + written


def _portions(records: Sequence[NewRecord]) -> Iterator[Sequence[NewRecord]]:
    """Cut records into frames. Raises `UsageError` for a record that is too large."""
    start, size = 0, 0
    for at, record in enumerate(records):
        length = _length(record)
        if length > MAX_RECORD_BYTES:
            raise UsageError(f"a record of {length:,} bytes is too large for a stream; at most {MAX_RECORD_BYTES:,}")
        if size and size + length > FRAME_BYTES:
            yield records[start:at]
            start, size = at, 0
        size += length
    if start < len(records):
        yield records[start:]


def _length(record: NewRecord) -> int:
    size = len(record.body or b"") + len(record.key or b"")
    return size + sum(len(name) + len(value or b"") for name, value in record.headers) if record.headers else size
