"""Live tables: what a source must offer besides its batches so that tables can be copied while they change.

Partitions are ranges of keys. Rows of all entities have the same columns, so that one pipeline carries them. A row may
change after it was read: a run therefore takes a **mark** before it copies, and reads once more what changed since.

A mark is JSON that only the source understands. Its promise: a change that was not visible when the mark was taken is
found by the catch-up partitions since that mark, as soon as it is committed, also if its transaction had begun before.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from holdfast.flow.partition_list import LIMITS, PartitionLimits
from holdfast.leases.lease import Json, Partition

ENTITY = "entity"
DOCUMENT_ID = "document_id"
DOCUMENT_VERSION = "document_version"
DELETED = "deleted"
DOCUMENT = "document"
TABLE_COLUMNS = {
    ENTITY: "string",
    DOCUMENT_ID: "string",
    DOCUMENT_VERSION: "long",
    DELETED: "boolean",
    DOCUMENT: "string",
}
"""The data columns of every row, with Spark's types. `document_version` is null where the entity has no versions;
`document` is JSON text on one line, null if the row is deleted."""


@dataclass(frozen=True, slots=True)
class Entity:
    """A kind of document: the rows of a table or query, and the index that they belong to."""

    name: str
    index: str
    """Name under which the documents are searched: an alias, or the index itself."""
    mappings: Json = None
    """Mappings of the index; None: the index decides."""
    settings: Json = None
    """Settings of the index; None: its defaults."""
    priority: int = 0
    """Partitions of a higher priority are claimed first."""
    complexity: float = 1.0
    """Work of one row, compared with a row of an ordinary entity."""
    has_versions: bool = False
    """Whether rows have a version that grows with every change; without it, catching up reads all rows."""
    has_deleted_flag: bool = False
    """Whether rows are marked as deleted instead of being removed; if not, deletes are found by comparing keys."""
    has_tombstones: bool = False
    """Whether keys of deleted rows are noted elsewhere, see `LiveTables.removed`."""
    append_only: bool = False
    """Whether rows never change: catching up reads new rows only."""


@dataclass(frozen=True, slots=True)
class Sizing:
    """How large partitions should be."""

    slots: int = 1
    """Batches that all nodes together carry at a time."""
    rows: int | None = None
    """Rows of each partition; None: the source decides."""
    rates: Mapping[str, float] = field(default_factory=dict)
    """By entity, the rows per second of one slot in an earlier run; entities without one get partitions by count."""
    limits: PartitionLimits = LIMITS


class TableRow(NamedTuple):
    """A row that is not deleted, for comparison with its document."""

    document_id: str
    version: int | None
    document: str


class LiveTables(ABC):
    """A capability of a source whose partitions are key ranges of live tables. No method needs Spark.

    Every call blocks, may be repeated, and raises `SourceUnavailable` while the database does not respond and `Refused`
    if the tables do not match the settings.
    """

    @abstractmethod
    def entities(self) -> Mapping[str, Entity]:
        """All entities by name. Does not block."""

    @abstractmethod
    def watermark(self) -> Json:
        """The mark of this moment: older than every change that is not visible yet."""

    @abstractmethod
    def settled(self, mark: Json) -> bool:
        """Whether all transactions that were open at the mark have ended.

        Catch-up partitions since a mark that were made after it has settled find every change made before it.
        """

    @abstractmethod
    def copy_partitions(self, entities: Sequence[str], sizing: Sizing) -> Iterator[Partition]:
        """Partitions that cover all rows of these entities, in the order in which they should be claimed.

        The group is the entity. `spec` has `entity`, `from`, `to` and `pass` (0); `range_start` and `range_end` are how
        many rows of the entity come before the partition and up to its end. Raises `Refused` beyond the limits of a
        run.
        """

    @abstractmethod
    def catch_up_partitions(self, entities: Sequence[str], since: Json, number: int) -> Iterator[Partition]:
        """Partitions that cover the rows changed since the mark, or all rows where the entity has no versions.

        `number` is 1 for the first pass after the copy, and is part of the keys and of `spec`. A pass without changes
        may have no partitions.
        """

    @abstractmethod
    def removed(self, entity: str, since: Json) -> Iterator[Sequence[str]] | None:
        """Ids of the documents whose rows were deleted since the mark, page by page; some may have a row by now.

        None if deletes are not noted, or not since that mark: then keys have to be compared.
        """

    @abstractmethod
    def counts(self, entities: Sequence[str], since: Json = None) -> Mapping[str, int]:
        """The exact number of rows that are not deleted, by entity, all at the same moment.

        With a mark, rows changed since then are not counted in entities where these are found without reading all rows.
        """

    @abstractmethod
    def present(self, entity: str, document_ids: Sequence[str]) -> Mapping[str, int | None]:
        """Of these documents, those whose row exists now and is not deleted, with the version of the row."""

    @abstractmethod
    def find(self, entity: str, document_ids: Sequence[str]) -> Mapping[str, TableRow]:
        """The rows of these documents that are not deleted, as they are now."""

    @abstractmethod
    def pages(self, entity: str) -> Iterator[Sequence[TableRow]]:
        """All rows that are not deleted, page by page in the order of keys. Pages are read one after the other."""
