"""The bucket: an object store or a file system, reduced to the operations that exactly-once needs.

Keys are paths relative to the pipeline's root, made by `holdfast.flow.names`. All calls block and raise
`Unavailable` when the bucket does not respond; the same call may then be repeated.
"""

from __future__ import annotations

import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol, TypeVar

from holdfast.errors import Refused
from holdfast.flow.format import FormatWriter
from holdfast.flow.names import staging_key
from holdfast.flow.staging import StagedBatch
from holdfast.leases.lease import Json

_Result = TypeVar("_Result")
_Item = TypeVar("_Item")


class Published(Enum):
    """The object at the final key after a publish."""

    DONE = "done"
    """Exactly the staged bytes, published by this call or an earlier one."""
    GONE = "gone"
    """Nothing, and the staged data is gone as well."""
    FOREIGN = "foreign"
    """Another object. It was not touched."""


@dataclass(frozen=True, slots=True)
class StagedFile:
    """A staged object that will get a final key. The bucket finds it by its `handle`."""

    handle: Json
    key: str
    sha256: str
    size: int | None = None
    """Size of the object when it was closed, if known: staged data that is shorter now counts as gone."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of a probe: a message for people, and how the bucket stages."""

    text: str
    staging: str


class StagedWriter(Protocol):
    """An open staged object. Nothing of it is visible to readers."""

    def write(self, data: bytes | memoryview) -> int: ...

    def close(self) -> tuple[Json, int, str]:
        """Make the object durable. Returns its handle, its size and the SHA-256 of its bytes. May be called once."""
        ...


class RootLock(Protocol):
    """A root that this process has locked."""

    def close(self) -> None:
        """Release the root. May be repeated; never raises."""
        ...


class Bucket(ABC):
    """One root in a bucket. Instances are picklable and open their clients where they are used."""

    portion: int = 100
    """How many files a caller passes to one call, so that it can report progress between calls."""

    def portions(self, files: Sequence[_Item], times: int = 1) -> Iterator[Sequence[_Item]]:
        """The files or handles in order, as lists that are each small enough for one call."""
        size = self.portion * times
        return (files[at : at + size] for at in range(0, len(files), size))

    def probe(self) -> Verdict:
        """Test with temporary objects whether this bucket gives the guarantees that exactly-once needs.

        Called once when a sink opens, before anything else; copies that are pickled afterwards include the result. May
        be repeated. Raises `Refused` when a guarantee does not hold or access is denied, `Unavailable` when the bucket
        does not respond.
        """
        return Verdict("create and publish overwrite nothing", "files")

    def warm_up(self) -> None:
        """Load the modules that this process needs to use the bucket. Sends no request, never raises."""

    @abstractmethod
    def create(self, key: str, data: bytes) -> bool:
        """Create an object with these bytes; False if the key exists already. Atomic and durable."""

    @abstractmethod
    def read(self, key: str) -> bytes | None:
        """The object's bytes; None if it does not exist."""

    def read_range(self, key: str, start: int, size: int) -> bytes | None:
        """That many bytes of the object from `start` on, fewer at its end; None if it does not exist."""
        data = self.read(key)
        return None if data is None else data[start : start + size]

    def written_at(self, key: str) -> float | None:  # noqa: ARG002 - for those that know it
        """When the object was created, in seconds since 1970, for display; None if that is unknown."""
        return None

    @abstractmethod
    def keys(self, prefix: str) -> Iterator[str]:
        """Keys of all objects whose key begins with the prefix, hidden ones included, sorted.

        A staged object does not count.
        """

    @abstractmethod
    def stage(self, staged_key: str, key: str) -> StagedWriter:
        """Open a staged object that will get the final key `key`. `staged_key` is unique to this attempt."""

    def close_all(self, writers: Sequence[StagedWriter]) -> list[tuple[Json, int, str]]:
        """Close all writers; returns the results of `close` in order. A remote bucket closes several at a time.

        The first error is raised after all were tried; it is then unknown which of them are closed.
        """
        return [writer.close() for writer in writers]

    @abstractmethod
    def has_staged(self, files: Sequence[StagedFile]) -> list[bool]:
        """For each file, whether its staged data still exists."""

    @abstractmethod
    def publish(self, files: Sequence[StagedFile]) -> list[Published]:
        """Make each file visible under its final key; durable when the call returns. Never overwrites."""

    @abstractmethod
    def discard(self, handles: Sequence[Json]) -> None:
        """Delete staged objects; missing ones are ignored."""

    def handle_size(self, staged_key: str, key: str) -> int:
        """Maximum number of bytes that the handle of an object staged under this key takes in a receipt."""
        return len(staged_key) + len(key) + 320

    @abstractmethod
    def staged_under(self, prefix: str) -> Iterator[tuple[str, Json]]:
        """Key and handle of every staged object whose key begins with the prefix."""

    def run_all(self, tasks: Sequence[Callable[[], _Result]]) -> list[_Result]:
        """Run the tasks; returns their results, in order. A remote bucket runs several at a time.

        Tasks may call this bucket, but not `run_all`. The first error is raised after all have ended.
        """
        return [task() for task in tasks]

    def move(self, key: str, to: str) -> bool:
        """Give an object another key, which no other caller ever uses. False if it exists under neither key.

        Durable when the call returns. May be repeated, also after an interruption: the object exists under at least one
        key at all times. Raises `Refused`, and changes nothing, when another object is at `to`.
        """
        raise Refused(f"{type(self).__name__} cannot move {key} to {to}")

    def lock(self, *, exclusive: bool) -> RootLock | None:  # noqa: ARG002 - for those that have locks
        """Lock this root, exclusively or shared with other holders. None if another lock conflicts.

        The lock ends with the process. It catches mistakes of operators; no data depends on it. A bucket without locks
        always returns one.
        """
        return _NoLock()


class _NoLock:
    def close(self) -> None:
        """Nothing to do: there is no lock."""


class StagingAttempt:
    """One attempt of one task: the files that it stages have names that no other attempt can have."""

    def __init__(self, bucket: Bucket) -> None:
        self.bucket = bucket
        self._id = uuid.uuid4().hex
        self._files = 0

    def stage(self, batch: StagedBatch, key: str) -> StagedWriter:
        """Open a staged file of the batch that will get the final key `key`."""
        self._files += 1
        return self.bucket.stage(staging_key(batch.name, batch.token, batch.id, f"{self._id}-{self._files}"), key)


class OpenFile:
    """A staged file that is open for rows of a format, or for lines."""

    def __init__(self, raw: StagedWriter, key: str, first: int, output_folder: str = "") -> None:
        self.first = first
        self.size = 0
        self.writer: FormatWriter | None = None
        self._raw = raw
        self._key = key
        self._output_folder = output_folder
        self._last = first
        self._rows = 0

    @property
    def buffered(self) -> int:
        """Bytes buffered in memory, by the format's writer or on the way to the bucket."""
        waiting = 0 if self.writer is None else self.writer.buffered
        return waiting + int(getattr(self._raw, "buffered", 0))

    def flush(self) -> None:
        if self.writer is not None:
            self.writer.flush()

    def write(self, data: Any) -> int:
        """Called by the format's writer."""
        written = self._raw.write(data)
        self.size += written
        return written

    def write_rows(self, first: int, last: int, rows: Any) -> None:
        assert self.writer is not None
        assert first >= self.first
        self._last = max(self._last, last)
        self._rows += rows.num_rows
        self.writer.write(rows)

    def write_line(self, item: int, line: bytes, *, rows: int = 1) -> None:
        """Write a line, which counts as that many rows of the commit."""
        self._last = max(self._last, item)
        self._rows += rows
        self.write(line)

    def end(self) -> StagedWriter:
        """Write the end of the file.

        Returns the writer, which the caller closes; `entry` takes the result of closing it.
        """
        if self.writer is not None:
            self.writer.close()
        return self._raw

    def close(self) -> dict[str, Json]:
        """End and close the file. Returns its entry in the receipt."""
        return self.entry(self.end().close())

    def entry(self, closed: tuple[Json, int, str]) -> dict[str, Json]:
        """The file's entry in the receipt, with the handle, size and SHA-256 that closing has returned."""
        handle, size, sha256 = closed
        entry = {
            "staged": handle,
            "key": self._key,
            "rows": self._rows,
            "size": size,
            "sha256": sha256,
            "first": self.first,
            "last": self._last,
        }
        return entry | ({"place": self._output_folder} if self._output_folder else {})
