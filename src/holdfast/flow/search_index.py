"""Search indexes as a reindex run uses them: create, fill, compare, promote under an alias, remove.

An index that a run fills carries the pipeline and the run in its metadata. Nothing else is ever deleted.

A run writes through an alias of its own, its **write alias**. While it is there, requests of the run are accepted; once
it is removed, a request that arrives late is refused, and does not create an index of that name either. The writes of a
run that may be resumed are suspended: the alias is renamed, and only an alias with that other name can be reopened. An
alias that was closed therefore stays closed, even if a node wakes up late and tries to reopen it.

An index of a run that is not live has a **spare alias**. A swap takes it from the index that becomes live and gives it
to the former one, in the same action; a node that removes an index takes its spare alias first. An index without a
spare alias is never promoted again, so that no node removes an index that another one has promoted meanwhile.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

WRITE_ALIAS = "_holdfast_writes"
"""End of the names of write aliases."""
SUSPENDED = "suspended_"
"""Beginning of the name of a write alias while its run may not write."""
SPARE_ALIAS = "_holdfast_spare"
"""End of the name of a spare alias, which begins with that of its index."""


class IndexOwner(NamedTuple):
    """The pipeline and the run that have created an index."""

    pipeline: str
    run: str


@dataclass(frozen=True)
class IndexPlan:
    """Mappings and settings with which an index is created."""

    mappings: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)


class IndexedDocument(NamedTuple):
    """A document as it was found: its version, and the numbers by which a change since then is noticed."""

    id: str
    version: int
    sequence: int
    term: int
    text: str | None = None
    """The document itself, if it was asked for."""


class NewDocument(NamedTuple):
    """A document to be written.

    With a version, it is written unless the index has a later one. Without a version, it replaces the document that was
    found as `found`, unless that was changed since; if `found` is None, it is added.
    """

    id: str
    version: int | None
    text: str
    found: IndexedDocument | None = None


@dataclass(frozen=True)
class AliasState:
    """The indexes that searches under a name reach."""

    indexes: tuple[str, ...] = ()
    concrete: bool = False
    """Whether the name is that of an index, and not an alias."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Of the alias, such as its filter; they stay when the alias is swapped."""


class SearchIndexes(ABC):
    """The indexes of one cluster. Blocks.

    Every call may be repeated, by another node too. Raises `SinkUnavailable` if waiting helps, `Refused` if it does
    not; after `SinkUnavailable` the change may have been made.
    """

    @abstractmethod
    def create(self, index: str, owner: IndexOwner, plan: IndexPlan) -> None:
        """Create an index to be filled: without refresh and replicas, and with deleted versions remembered for long.

        An index of the same owner stays as it is. Raises `Refused` if the name belongs to anybody else.
        """

    @abstractmethod
    def restore(self, index: str, plan: IndexPlan) -> None:
        """Give the index the settings for searching, and refresh it. Deleted versions stay remembered."""

    @abstractmethod
    def finish(self, index: str, plan: IndexPlan) -> None:
        """Let the index forget deleted versions as the plan or the server's default says."""

    @abstractmethod
    def refresh(self, index: str) -> None:
        """Make everything that was written visible to searches."""

    @abstractmethod
    def count(self, index: str) -> int:
        """The number of documents that searches find."""

    @abstractmethod
    def owner(self, index: str) -> IndexOwner | None:
        """Who has created the index; None if there is no such index, or it is not an index of a run."""

    @abstractmethod
    def alias(self, alias: str) -> AliasState:
        """What is under that name now."""

    @abstractmethod
    def swap(self, alias: str, former: AliasState, index: str) -> bool:
        """Put the index under the name in place of `former`, in one action, only if `former` is still there.

        A concrete index of that name is deleted in the same action. Returns False, and changes nothing, if the server
        has found another state, or does not have the index, or somebody has begun to remove it.
        """

    @abstractmethod
    def open_writes(self, index: str, alias: str) -> None:
        """Add a write alias that no other caller adds to the index. Raises `Refused` if there is no such index."""

    @abstractmethod
    def suspend_writes(self, alias: str) -> None:
        """Refuse requests under a write alias, if it is open, until it is reopened."""

    @abstractmethod
    def reopen_writes(self, alias: str) -> bool:
        """Open a write alias that is suspended. Returns whether it is open now; False if it was closed."""

    @abstractmethod
    def writes(self, alias: str) -> tuple[str, ...]:
        """The indexes that have this write alias, open or suspended; none if it was closed."""

    @abstractmethod
    def close_writes(self, alias: str) -> None:
        """Remove a write alias for good, open or suspended, if it is there. Its requests are refused from now on."""

    @abstractmethod
    def pages(self, index: str, *, texts: bool = False) -> Iterator[Sequence[IndexedDocument]]:
        """Yields the documents that searches find, with their `text` if `texts`."""

    @abstractmethod
    def find(self, index: str, ids: Sequence[str]) -> Mapping[str, IndexedDocument]:
        """The documents with these ids, with their texts, as they were last written."""

    @abstractmethod
    def put(self, index: str, documents: Sequence[NewDocument]) -> int:
        """Write documents. Returns how many the index has accepted; what its mapping refuses is not written."""

    @abstractmethod
    def delete(self, index: str, documents: Sequence[IndexedDocument]) -> int:
        """Delete the documents that have not been changed since they were found. Returns how many were deleted."""

    @abstractmethod
    def remove(self, index: str, owner: IndexOwner) -> bool:
        """Delete the index if it is of this owner and not live, nor named by any other alias.

        Returns whether it is gone. From the first request on it cannot be promoted any more.
        """
