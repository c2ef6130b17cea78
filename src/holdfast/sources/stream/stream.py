"""An embedded stream: a folder on this host with one folder of segments per shard.

    <folder of streams>/<name>/stream.json        its settings, written once
                               ends               how far each shard is committed
                               00000/…            a folder per shard: segments, and their indexes

Several processes of the host may append to it and read it at the same time.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from holdfast.errors import Refused, SourceUnavailable, UsageError
from holdfast.flow.shards import Seek
from holdfast.sources.stream import ends as ends_file
from holdfast.sources.stream.ends import Ends
from holdfast.sources.stream.frames import NewRecord
from holdfast.sources.stream.segments import first_at, scanned_end, segments
from holdfast.sources.stream.writer import ShardSettings, ShardWriter

SETTINGS = "stream.json"
VERSION = 1
MAX_SHARDS = 10_000
MAX_OPEN_SHARDS = 256
"""Shards whose files a process that appends keeps open at a time."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")

Durability = Literal["process", "disk"]
"""What appended records survive: the end of the process that appended them, or a crash of the host."""


def default_folder() -> Path:
    """The folder of streams: `HOLDFAST_STREAMS`, or `holdfast/streams` in the user's folder of data."""
    if given := os.environ.get("HOLDFAST_STREAMS"):
        return Path(given)
    data = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    return Path(data) / "holdfast" / "streams"


def stream_names(folder: Path) -> list[str]:
    """The names of the streams in a folder; none if the folder does not exist. Raises `SourceUnavailable`."""
    try:
        found = [entry.name for entry in os.scandir(folder) if _NAME.fullmatch(entry.name)]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise SourceUnavailable(f"{folder} cannot be read: {error.strerror}") from error
    return sorted(name for name in found if (folder / name / SETTINGS).is_file())


def shard_id(name: str, number: int) -> str:
    """The id of a shard, which is also the key of its partition."""
    return f"{name}|{number}"


def shard_number(shard: str) -> int:
    """The number in the id of a shard; -1 if there is none."""
    number = shard.rpartition("|")[2]
    return int(number) if number.isascii() and number.isdigit() and len(number) <= 9 else -1


def shard_folder(stream: Path, number: int) -> Path:
    return stream / f"{number:05d}"


@dataclass(frozen=True)
class StreamSettings:
    """What a stream is created with."""

    shards: int
    retention: float | None = 86_400.0
    """Seconds for which records are kept at least; None: for ever."""
    durability: Durability = "process"
    segment_bytes: int = 64 << 20


@dataclass(frozen=True, slots=True)
class ShardView:
    """A shard as it is now: its records have the offsets [first, end)."""

    number: int
    first: int
    end: int
    bytes: int
    oldest: int | None
    """Timestamp of the oldest segment, in milliseconds; None without records."""


@dataclass
class Stream:
    """A stream that exists. Any thread may use it; `now` is seconds since 1970."""

    path: Path
    id: str
    settings: StreamSettings
    now: Callable[[], float] = time.time
    _ends: Ends | None = None
    _writers: dict[int, ShardWriter] = field(default_factory=dict)
    _process: int = field(default_factory=os.getpid)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def name(self) -> str:
        return self.path.name

    @classmethod
    def create(cls, folder: Path, name: str, settings: StreamSettings) -> Stream:
        """Create a stream. Raises `UsageError` if it exists, or if the name or the settings are unsuitable."""
        _check(name, settings)
        stream, new = folder / name, folder / f".{name}.{uuid.uuid4().hex}"
        if stream.exists():
            raise UsageError(f"stream {name} exists already in {folder}")
        try:
            new.mkdir(parents=True)
            for number in range(settings.shards):
                shard_folder(new, number).mkdir()
            ends_file.create(new, settings.shards)
            text = json.dumps({"version": VERSION, "id": uuid.uuid4().hex, **asdict(settings)}, indent=2)
            (new / SETTINGS).write_text(text, encoding="utf-8")
            _sync(new)
            new.rename(stream)
            _sync_folder(folder)
        except OSError as error:
            shutil.rmtree(new, ignore_errors=True)
            if stream.exists():
                raise UsageError(f"stream {name} exists already in {folder}") from error
            raise SourceUnavailable(f"{stream} cannot be created: {error.strerror}") from error
        return cls.open(folder, name)

    @classmethod
    def open(cls, folder: Path, name: str) -> Stream:
        """Open a stream. Raises `SourceUnavailable` if it does not exist, and `Refused` if it is unreadable."""
        path = folder / name / SETTINGS
        if not _NAME.fullmatch(name):
            raise UsageError(_wrong_name(name))
        try:
            stored = json.loads(path.read_bytes())
            if stored["version"] != VERSION:
                raise Refused(f"{path} has version {stored['version']}, and this holdfast reads {VERSION}")
            return cls(folder / name, str(stored["id"]), _settings(stored))
        except FileNotFoundError:
            raise SourceUnavailable(f"there is no stream {name} in {folder}") from None
        except OSError as error:
            raise SourceUnavailable(f"{path} cannot be read: {error.strerror}") from error
        except (ValueError, KeyError, TypeError) as error:
            raise Refused(f"{path} is not readable: {error}") from error

    def delete(self) -> None:
        """Delete the stream with all its records. Readers report that it is gone."""
        gone = self.path.with_name(f".{self.name}.{uuid.uuid4().hex}")
        try:
            self.path.rename(gone)
        except OSError as error:
            raise SourceUnavailable(f"{self.path} cannot be deleted: {error.strerror}") from error
        shutil.rmtree(gone, ignore_errors=True)

    def close(self) -> None:
        """Close what was opened. May be repeated."""
        for writer in self._writers.values():
            writer.close()
        self._writers.clear()
        if self._ends is not None:
            self._ends.close()
        self._ends = None

    # --- records ---------------------------------------------------------------------------------------------------

    def append(self, shard: int, records: Sequence[NewRecord]) -> tuple[int, int]:
        """Append records to a shard, see `ShardWriter.append`. Raises `UsageError` for an unknown shard."""
        if not 0 <= shard < self.settings.shards:
            raise UsageError(f"stream {self.name} has shards 0 to {self.settings.shards - 1}, not {shard}")
        with self._lock:
            return self._writer(shard).append(records)

    def _writer(self, shard: int) -> ShardWriter:
        if self._process != os.getpid():
            # A lock that is shared with the parent process would keep neither out.
            self._process, self._ends, self._writers = os.getpid(), None, {}
        writer = self._writers.get(shard)
        if writer is None:
            while len(self._writers) >= MAX_OPEN_SHARDS:
                self._writers.pop(next(iter(self._writers))).close()
            settings = self.settings
            how = ShardSettings(settings.retention, settings.segment_bytes, settings.durability == "disk")
            writer = ShardWriter(shard_folder(self.path, shard), shard, self._readable_ends(), how, self.now)
            self._writers[shard] = writer
        return writer

    # --- what is in it ---------------------------------------------------------------------------------------------

    def bounds(self, shard: int) -> tuple[int, int]:
        """The offset of the oldest record of a shard, and the one after its newest. Raises `SourceUnavailable`."""
        ends = self._readable_ends()
        try:
            folder = shard_folder(self.path, shard)
            end = ends.get(shard)
            found = segments(folder)
            if end is None:
                end = scanned_end(found)
            return min((segment.base for segment in found), default=end), end
        except OSError as error:
            raise SourceUnavailable(f"{self.path} cannot be read: {error.strerror}") from error

    def seek(self, shard: int, to: Seek) -> int:
        """The offset to begin at. Raises `SourceUnavailable`."""
        first, end = self.bounds(shard)
        if to == "earliest":
            return first
        if to == "latest":
            return end
        try:
            return first_at(shard_folder(self.path, shard), to, end)
        except OSError as error:
            raise SourceUnavailable(f"{self.path} cannot be read: {error.strerror}") from error

    def arrived(self, shard: int, offset: int) -> int | None:
        """The timestamp of a record in milliseconds; None if it is not there. Raises `SourceUnavailable`."""
        try:
            found = [segment for segment in segments(shard_folder(self.path, shard)) if segment.base <= offset]
            frames = found[-1].frames(found[-1].position_of(offset)) if found else iter(())
            return next((frame.timestamp for frame, _ in frames if frame.end > offset), None)
        except FileNotFoundError:
            return None  # retention has removed it just now
        except OSError as error:
            raise SourceUnavailable(f"{self.path} cannot be read: {error.strerror}") from error

    def view(self, shard: int) -> ShardView:
        """A shard as it is now. Raises `SourceUnavailable`."""
        first, end = self.bounds(shard)
        found = segments(shard_folder(self.path, shard))
        sizes = [_size(segment.path) for segment in found]
        return ShardView(shard, first, end, sum(sizes), found[0].began() if found and end > first else None)

    def _readable_ends(self) -> Ends:
        if self._ends is None:
            self._ends = Ends(self.path, writable=os.access(self.path / ends_file.NAME, os.W_OK))
        return self._ends


def _settings(stored: Mapping[str, Any]) -> StreamSettings:
    names = ("shards", "retention", "durability", "segment_bytes")
    return StreamSettings(**{name: stored[name] for name in names})


def _check(name: str, settings: StreamSettings) -> None:
    if not _NAME.fullmatch(name):
        raise UsageError(_wrong_name(name))
    if not 1 <= settings.shards <= MAX_SHARDS:
        raise UsageError(f"a stream has 1 to {MAX_SHARDS:,} shards, not {settings.shards:,}")
    if settings.retention is not None and settings.retention <= 0:
        raise UsageError("the retention must be longer than 0; write 24h, 7d or `forever`")


def _wrong_name(name: str) -> str:
    return (
        f"{name!r} cannot be the name of a stream: use letters, digits, '.', '_' and '-', beginning with a letter or "
        "digit, at most 128 characters"
    )


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def _sync(stream: Path) -> None:
    for name in (SETTINGS, ends_file.NAME):
        descriptor = os.open(stream / name, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    _sync_folder(stream)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
