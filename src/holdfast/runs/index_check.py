"""Compares rows with documents, and mends what differs.

A time of change can go back, and then the index refuses the row for ever: any difference counts, not only a lower
version, and such a document is mended at the version that the index has.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice

from holdfast.flow.search_index import IndexedDocument, NewDocument
from holdfast.flow.tables import TableRow
from holdfast.runs.promotion import Promotion

PAGE = 500
MAX_NAMED = 20


@dataclass
class Comparison:
    """How the documents of an entity differ from its rows."""

    entity: str
    rows: int = 0
    documents: int = 0
    compared: int = 0
    missing: int = 0
    different: int = 0
    extra: int = 0
    mended: int = 0
    examples: list[str] = field(default_factory=list)
    """Ids of some of the documents that differ."""

    @property
    def agrees(self) -> bool:
        """Whether nothing differed."""
        return not (self.missing or self.different or self.extra)

    @property
    def is_mended(self) -> bool:
        """Whether nothing differs any more.

        Something does if the index refused a row or a document changed meanwhile.
        """
        return self.missing + self.different + self.extra == self.mended


@dataclass(frozen=True)
class IndexCheck:
    """What is compared: a share of the rows, chosen by a hash of their ids, and with `texts` also their contents."""

    promotion: Promotion
    share: float = 1.0
    texts: bool = True
    repair: bool = False

    def compare(self, entity: str) -> Comparison:
        """Compare an entity with what is under its alias. Rows that change meanwhile are left out. Blocks."""
        indexes, alias = self.promotion.indexes, self.promotion.tables.entities()[entity].index
        indexes.refresh(alias)
        rows, documents = self.promotion.tables.counts([entity])[entity], indexes.count(alias)
        found = Comparison(entity, rows, documents)
        chosen = (
            row for page in self.promotion.tables.pages(entity) for row in page if self._is_chosen(row.document_id)
        )
        for page in _pages(chosen):
            self._compare_rows(alias, page, found)
        if found.mended:
            # Rows that were deleted just before their documents were added are found below.
            indexes.refresh(alias)
        for stored in indexes.pages(alias):
            self._compare_documents(alias, [document for document in stored if self._is_chosen(document.id)], found)
        return found

    def _is_chosen(self, document_id: str) -> bool:
        return zlib.crc32(document_id.encode("utf-8", "surrogatepass")) < self.share * 2**32

    def _compare_rows(self, alias: str, rows: Sequence[TableRow], found: Comparison) -> None:
        documents = self.promotion.indexes.find(alias, [row.document_id for row in rows])
        found.compared += len(rows)
        wrong = [row for row in rows if self._differs(row, documents.get(row.document_id))]
        still = self.promotion.tables.find(found.entity, [row.document_id for row in wrong]) if wrong else {}
        # A row that has changed since it was read says nothing about its document.
        wrong = [row for row in wrong if still.get(row.document_id) == row]
        missing = [row for row in wrong if row.document_id not in documents]
        found.missing += len(missing)
        found.different += len(wrong) - len(missing)
        _name(found, [row.document_id for row in wrong])
        if self.repair and wrong:
            mended = [_mended(row, documents.get(row.document_id)) for row in wrong]
            found.mended += self.promotion.indexes.put(alias, mended)

    def _differs(self, row: TableRow, document: IndexedDocument | None) -> bool:
        if document is None:
            return True
        if self.texts:
            return bool(json.loads(row.document) != json.loads(document.text or "null"))
        return row.version is not None and row.version != document.version

    def _compare_documents(self, alias: str, documents: Sequence[IndexedDocument], found: Comparison) -> None:
        if not documents:
            return
        present = self.promotion.tables.present(found.entity, [document.id for document in documents])
        extra = [document for document in documents if document.id not in present]
        found.extra += len(extra)
        _name(found, [document.id for document in extra])
        if self.repair and extra:
            found.mended += self.promotion.indexes.delete(alias, extra)


def _mended(row: TableRow, document: IndexedDocument | None) -> NewDocument:
    version = row.version
    if version is not None and document is not None:
        version = max(version, document.version)
    return NewDocument(row.document_id, version, row.document, document)


def _name(found: Comparison, ids: Sequence[str]) -> None:
    found.examples.extend(ids[: MAX_NAMED - len(found.examples)])


def _pages(rows: Iterable[TableRow]) -> Iterator[list[TableRow]]:
    rows = iter(rows)
    while page := list(islice(rows, PAGE)):
        yield page
