"""The interface of the storage: list with tags, read, write if unchanged. Buckets and folders implement it.

A tag names one state of one object: it changes with every write, also if the object gets the same bytes again or is
created again. Names are relative paths, made in `holdfast.stores.object.rows`.
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
    """The condition of a write does not hold. The current object may come from an earlier attempt of the same write."""


class TaggedObjects(ABC):
    """Objects with tags. All calls block and may be made by several threads at once.

    Reads and `list` raise `StoreUnavailable` when there is no response, and never return an empty result instead.
    """

    charges_for_reads: bool = False
    """Whether every request costs money."""

    @property
    @abstractmethod
    def location(self) -> str:
        """The location of the storage, for messages."""

    def check(self) -> None:
        """Raise `StoreError` if nothing may be created there. Called before the first request."""
        return

    def require(self, marker: str) -> None:
        """From now on this object must exist; without it, reads and writes raise `StoreUnavailable`."""

    @abstractmethod
    def tags(self, prefix: str) -> dict[str, str]:
        """Tags of all objects whose names begin with the prefix, which ends with a slash or is empty."""

    @abstractmethod
    def read(self, name: str) -> Found | None:
        """The current object; None if it does not exist."""

    @abstractmethod
    def write(self, name: str, data: bytes, tag: str | None) -> str:
        """Replace the object that has this tag, or create it if the tag is None; returns the new tag.

        Raises `Changed` if the object has another tag, exists although the tag is None, or does not exist;
        `AnswerLost` if it may have been written; `StoreUnavailable` if it surely was not.
        """

    @abstractmethod
    def delete(self, name: str, tag: str) -> None:
        """Delete the object if it still has this tag; does nothing without conditional deletes. Never raises."""

    @abstractmethod
    def discard(self, name: str) -> None:
        """Delete an object that no other process uses. Never raises."""

    @abstractmethod
    def each(self, do: Callable[[Input], Result], inputs: Iterable[Input]) -> list[Result]:
        """Call `do` for each input, several at a time; returns results in order. Raises the first error at the end."""

    @abstractmethod
    def now(self) -> float:
        """Seconds since 1970, by the clock of the storage. Costs a request only if none was made before."""

    @abstractmethod
    def close(self) -> None:
        """Close files and connections. May be repeated."""
