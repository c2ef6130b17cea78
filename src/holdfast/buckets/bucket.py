"""The bucket: an object store or a file system, seen through the few verbs that exactly-once needs.

Keys are paths relative to the pipeline's root, made by `holdfast.flow.names`. All calls block and raise
`Unavailable` when the bucket does not answer; the same call may then be made again.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol, TypeVar

from holdfast.errors import Refused
from holdfast.leases.lease import Json

_Result = TypeVar("_Result")
_Item = TypeVar("_Item")


class Published(Enum):
    """What is at the final key now."""

    DONE = "done"
    """The very bytes that were staged, by this call or an earlier one."""
    GONE = "gone"
    """Nothing, and the staged data is gone as well."""
    FOREIGN = "foreign"
    """Another object. It was not touched."""


@dataclass(frozen=True, slots=True)
class StagedFile:
    """A staged object on its way to its final key. `handle` is what the bucket needs to find it again."""

    handle: Json
    key: str
    sha256: str
    size: int | None = None
    """Bytes it had when it was closed, where that is known: staged data that is shorter now counts as gone."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a bucket was found to be good for, for people, and how it stages."""

    text: str
    staging: str


class StagedWriter(Protocol):
    """An open staged object. Nothing of it is visible to readers."""

    def write(self, data: bytes | memoryview) -> int: ...

    def close(self) -> tuple[Json, int, str]:
        """Make it durable. Answers its handle, its size and the SHA-256 of its bytes. May be called once."""
        ...


class RootLock(Protocol):
    """A root that is held by this process."""

    def close(self) -> None:
        """Let others have it. May be called again; never raises."""
        ...


class Bucket(ABC):
    """One root in a bucket. Instances are picklable and open their clients where they are used."""

    portion: int = 100
    """How many files a caller gives to one call, so that it can tell of progress between two."""

    def portions(self, files: Sequence[_Item], times: int = 1) -> Iterator[Sequence[_Item]]:
        """The files or handles in order, as many at a time as one call should get."""
        size = self.portion * times
        return (files[at : at + size] for at in range(0, len(files), size))

    def probe(self) -> Verdict:
        """Find out, with harmless objects of its own, whether this bucket holds what exactly-once needs of it.

        Called once when a sink opens, before anything else; what is found travels with copies pickled afterwards.
        May be called again. Raises `Refused` when it does not hold or does not let us in, `Unavailable` when it
        is away.
        """
        return Verdict("create and publish overwrite nothing", "files")

    def warm_up(self) -> None:
        """Load what this process will need to use it. Asks no server, never raises."""

    @abstractmethod
    def create(self, key: str, data: bytes) -> bool:
        """Create an object with these bytes if there is none; False if there is. Atomic and durable."""

    @abstractmethod
    def read(self, key: str) -> bytes | None:
        """The object's bytes; None if there is none."""

    def written_at(self, key: str) -> float | None:  # noqa: ARG002 - for those that know it
        """When the object was created, in seconds since 1970, for people; None if that is not known."""
        return None

    @abstractmethod
    def keys(self, prefix: str) -> Iterator[str]:
        """Keys of all objects whose key begins with the prefix, hidden ones included, sorted.

        What is only staged is no object.
        """

    @abstractmethod
    def stage(self, staged_key: str, key: str) -> StagedWriter:
        """Open a staged object that will get the final key `key`. `staged_key` is unique to this try."""

    def close_all(self, writers: Sequence[StagedWriter]) -> list[tuple[Json, int, str]]:
        """What closing each answers, in order; a bucket that is far away closes several at a time.

        The first error is raised when all were tried; which of them are closed then is not known.
        """
        return [writer.close() for writer in writers]

    @abstractmethod
    def has_staged(self, files: Sequence[StagedFile]) -> list[bool]:
        """Whether the staged data of each is still there."""

    @abstractmethod
    def publish(self, files: Sequence[StagedFile]) -> list[Published]:
        """Make each visible under its final key; durable when the call returns. Never overwrites."""

    @abstractmethod
    def discard(self, handles: Sequence[Json]) -> None:
        """Delete staged objects; those that are gone already are passed over."""

    def handle_size(self, staged_key: str, key: str) -> int:
        """Bytes that the handle of an object staged there takes in a receipt, at most."""
        return len(staged_key) + len(key) + 320

    @abstractmethod
    def staged_under(self, prefix: str) -> Iterator[tuple[str, Json]]:
        """Key and handle of every staged object whose key begins with the prefix."""

    def together(self, tasks: Sequence[Callable[[], _Result]]) -> list[_Result]:
        """What each task answers, in order; with a bucket that is far away several are done at a time.

        Tasks may call this bucket, but not `together`. The first error is raised when all were done.
        """
        return [task() for task in tasks]

    def move(self, key: str, to: str) -> bool:
        """Give an object another key, under which nobody else ever puts anything. False if it is at neither.

        Durable when the call returns. May be repeated, also after half of it: there is never a moment without the
        object. Raises `Refused` when another object is at `to`; then nothing was changed.
        """
        raise Refused(f"{type(self).__name__} cannot move {key} to {to}")

    def lock(self, *, exclusive: bool) -> RootLock | None:  # noqa: ARG002 - for those that have locks
        """Hold this root: alone, or together with others that do not ask for it alone. None if it is taken otherwise.

        The lock ends with the process. It catches mistakes of people; no data depends on it. A bucket that has no locks
        keeps nobody out.
        """
        return _NoLock()


class _NoLock:
    def close(self) -> None:
        """Nothing was taken."""
