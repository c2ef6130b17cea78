"""What the store needs of its storage: list with tags, read, write if unchanged. Buckets and folders provide it.

A tag names one state of one object: it changes with every write, also if the object gets the same bytes again or is
made anew. Names are relative paths of ours, made in `holdfast.stores.object.rows`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import NamedTuple, TypeVar

Input = TypeVar("Input")
Result = TypeVar("Result")


class Found(NamedTuple):
    """An object as it was at one moment."""

    data: bytes
    tag: str


class Changed(Exception):
    """The object is not as the condition says. What is there may still be an earlier try of the same write."""


class TaggedObjects(ABC):
    """Objects with tags. All calls block and may be made by several threads at once.

    Reads and `list` raise `StoreUnavailable` when there is no response, and never return an empty result for it.
    """

    @property
    @abstractmethod
    def location(self) -> str:
        """Where it is, for messages."""

    def check(self) -> None:
        """Raise `StoreError` where nothing should be made: called before the first request."""
        return

    def require(self, marker: str) -> None:
        """From now on this object must be there; without it, reads and writes raise `StoreUnavailable`."""

    @abstractmethod
    def tags(self, prefix: str) -> dict[str, str]:
        """Tags of all objects whose names begin with the prefix, which ends with a slash or is empty."""

    @abstractmethod
    def read(self, name: str) -> Found | None:
        """The object as it is now; None if there is none."""

    @abstractmethod
    def write(self, name: str, data: bytes, tag: str | None) -> str:
        """Replace the object that has this tag, or make one if the tag is None; returns the new tag.

        Raises `Changed` if the object has another tag, or is there though none should be, or is not there;
        `AnswerLost` if it may have been written; `StoreUnavailable` if it surely was not.
        """

    @abstractmethod
    def delete(self, name: str, tag: str) -> None:
        """Delete the object if it still has this tag, where that can be asked for; else leave it. Never raises."""

    @abstractmethod
    def discard(self, name: str) -> None:
        """Delete an object that no other process uses. Never raises."""

    @abstractmethod
    def each(self, do: Callable[[Input], Result], inputs: Iterable[Input]) -> list[Result]:
        """`do` of each input, several at a time, in order. The first error is raised when all have ended."""

    @abstractmethod
    def now(self) -> float:
        """Seconds since 1970, by the clock of the storage. Costs a request only if none was made before."""

    @abstractmethod
    def close(self) -> None:
        """Give back what is open. May be called again."""
