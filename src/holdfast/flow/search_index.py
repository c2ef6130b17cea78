"""Search indexes as a reindex run uses them: create, fill, compare, promote under an alias, remove.

An index that a run fills carries the pipeline and the run in its metadata. Nothing else is ever deleted.

A run writes through an alias of its own, its **write alias**. While it is there, requests of the run are accepted; once
it is removed, a request that arrives late is refused, and does not create an index of that name either.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

WRITE_ALIAS = "_holdfast_writes"
"""End of the names of write aliases."""


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

    With a version it is written unless the index has a later one. Without, it is written unless the document was
    changed since it was found as `found`, or added if that is None.
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
        """Create an index to be filled: without refresh and replicas, and with a long memory of deleted versions.

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
        """Replace what is under the name by the index, in one action, only if it is still `former`.

        A concrete index of that name is deleted in the same action. Returns False, and changes nothing, if the
        server has found another state or does not have the index.
        """

    @abstractmethod
    def open_writes(self, index: str, alias: str) -> None:
        """Add a write alias to the index. Raises `Refused` if there is no such index."""

    @abstractmethod
    def close_writes(self, alias: str) -> None:
        """Remove a write alias, if it is there. Requests under it are refused from now on."""

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
        """Delete the documents that have not been changed since they were found. Returns how many they are."""

    @abstractmethod
    def remove(self, index: str, owner: IndexOwner) -> bool:
        """Delete the index if it is of this owner and only write aliases name it. Returns whether it is gone."""
