"""A model of a search cluster's indexes and aliases in memory, as faithful as a reindex run can notice.

`tests/servers/index_behaviour.py` compares it with a real server.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from holdfast.errors import Refused
from holdfast.flow.search_index import (
    SUSPENDED,
    WRITE_ALIAS,
    AliasState,
    IndexedDocument,
    IndexOwner,
    IndexPlan,
    NewDocument,
    SearchIndexes,
)


@dataclass
class ModelIndex:
    """One index. Searches see `visible`, which is what had been written at the last refresh."""

    owner: IndexOwner | None
    is_spare: bool = True
    """Whether it has its spare alias."""
    documents: dict[str, IndexedDocument] = field(default_factory=dict)
    deleted: dict[str, int] = field(default_factory=dict)
    """Versions of deleted documents, as long as they are remembered."""
    visible: dict[str, IndexedDocument] = field(default_factory=dict)
    refreshes: bool = False
    remembers: bool = True
    sequence: int = 0

    def write(self, document_id: str, version: int | None, text: str | None) -> bool:
        """Write a document, or delete it if it has no text. Returns False if the index has a later version."""
        found = self.documents.get(document_id)
        stored = found.version if found is not None else self.deleted.get(document_id)
        if version is not None and stored is not None and version < stored:
            return False
        self.sequence += 1
        version = (stored or 0) + 1 if version is None else version
        self.documents.pop(document_id, None)
        self.deleted.pop(document_id, None)
        if text is not None:
            canonical = json.dumps(json.loads(text), sort_keys=True, ensure_ascii=False)
            self.documents[document_id] = IndexedDocument(document_id, version, self.sequence, 1, canonical)
        elif self.remembers:
            self.deleted[document_id] = version
        if self.refreshes:
            self.refresh()
        return True

    def refresh(self) -> None:
        self.visible = dict(self.documents)


class IndexServer(SearchIndexes):
    """The server, and its interface for one run."""

    def __init__(self) -> None:
        self.indexes: dict[str, ModelIndex] = {}
        self.aliases: dict[str, dict[str, Mapping[str, Any]]] = {}
        self.between: Callable[[], None] = lambda: None
        """Called between two requests of one call."""

    def write(self, name: str, document_id: str, version: int | None, text: str | None) -> bool:
        """Write through an index or alias, which is created if there is none, as servers do; not a write alias."""
        if name.endswith(WRITE_ALIAS) and not self.aliases.get(name):
            return False
        index = self._named(name) or self.indexes.setdefault(name, ModelIndex(None, refreshes=True))
        return index.write(document_id, version, text)

    def search(self, name: str) -> Mapping[str, IndexedDocument]:
        """What a search finds. Raises `KeyError` if there is neither an index nor an alias of that name."""
        names = [name] if name in self.indexes else list(self.aliases[name])
        return {found.id: found for index in names for found in self.indexes[index].visible.values()}

    def create(self, index: str, owner: IndexOwner, plan: IndexPlan) -> None:
        if index in self.aliases or self.indexes.setdefault(index, ModelIndex(owner)).owner != owner:
            raise Refused(f"the index {index!r} exists already")

    def restore(self, index: str, plan: IndexPlan) -> None:
        self._index(index).refreshes = True
        self.refresh(index)

    def finish(self, index: str, plan: IndexPlan) -> None:
        self._index(index).remembers = False
        self._index(index).deleted.clear()

    def refresh(self, index: str) -> None:
        self._index(index).refresh()

    def count(self, index: str) -> int:
        return len(self._index(index).visible)

    def owner(self, index: str) -> IndexOwner | None:
        return self.indexes[index].owner if index in self.indexes else None

    def alias(self, alias: str) -> AliasState:
        if alias in self.indexes:
            return AliasState((alias,), concrete=True)
        found = self.aliases.get(alias, {})
        return AliasState(tuple(sorted(found)), options=next(iter(found.values()), {}))

    def swap(self, alias: str, former: AliasState, index: str) -> bool:
        if former.concrete and self.alias(alias) != former:
            return False
        if index not in self.indexes or not all(self._has(alias, name) for name in former.indexes):
            return False
        if not self.indexes[index].is_spare:
            return False
        if former.concrete:
            del self.indexes[alias]
        found = self.aliases.setdefault(alias, {})
        for name in former.indexes:
            found.pop(name, None)
            if name in self.indexes:
                self.indexes[name].is_spare = True
        found[index], self.indexes[index].is_spare = former.options, False
        return True

    def _has(self, alias: str, index: str) -> bool:
        return index == alias in self.indexes or index in self.aliases.get(alias, {})

    def open_writes(self, index: str, alias: str) -> None:
        if index not in self.indexes:
            raise Refused(f"there is no index {index!r}")
        self.aliases.setdefault(alias, {})[index] = {}

    def suspend_writes(self, alias: str) -> None:
        if found := self.aliases.pop(alias, None):
            self.aliases[SUSPENDED + alias] = found

    def reopen_writes(self, alias: str) -> bool:
        if found := self.aliases.pop(SUSPENDED + alias, None):
            self.aliases[alias] = found
        return bool(self.aliases.get(alias))

    def writes(self, alias: str) -> tuple[str, ...]:
        return tuple({**self.aliases.get(alias, {}), **self.aliases.get(SUSPENDED + alias, {})})

    def close_writes(self, alias: str) -> None:
        self.aliases.pop(alias, None)
        self.aliases.pop(SUSPENDED + alias, None)

    def pages(self, index: str, *, texts: bool = False) -> Iterator[Sequence[IndexedDocument]]:
        found = list(self._index(index).visible.values())
        for start in range(0, len(found), 3):
            yield [document if texts else document._replace(text=None) for document in found[start : start + 3]]

    def find(self, index: str, ids: Sequence[str]) -> Mapping[str, IndexedDocument]:
        documents = self._index(index).documents
        return {document_id: documents[document_id] for document_id in ids if document_id in documents}

    def put(self, index: str, documents: Sequence[NewDocument]) -> int:
        target, put = self._index(index), 0
        for document in documents:
            found, current = document.found, target.documents.get(document.id)
            is_same = (found and found.sequence) == (current and current.sequence)
            if document.version is not None or is_same:
                put += target.write(document.id, document.version, document.text)
        return put

    def delete(self, index: str, documents: Sequence[IndexedDocument]) -> int:
        target, deleted = self._index(index), 0
        for found in documents:
            current = target.documents.get(found.id)
            if current is not None and current.sequence == found.sequence:
                target.write(found.id, found.version + 1, None)
                deleted += 1
        return deleted

    def remove(self, index: str, owner: IndexOwner) -> bool:
        if self.owner(index) != owner or self._is_live(index):
            return False
        self.between()
        if not self._retired(index):
            return False
        self.between()
        self.indexes.pop(index, None)
        for alias in [alias for alias, found in self.aliases.items() if index in found]:
            del self.aliases[alias]
        return True

    def _is_live(self, index: str) -> bool:
        return any(index in found for alias, found in self.aliases.items() if not alias.endswith(WRITE_ALIAS))

    def _retired(self, index: str) -> bool:
        """Take the spare alias of the index. Returns whether nobody can promote the index any more."""
        found = self.indexes.get(index)
        if found is None or self._is_live(index):
            return False
        found.is_spare = False
        return True

    def _named(self, name: str) -> ModelIndex | None:
        found = [*self.aliases.get(name, ())] or [name]
        return self.indexes.get(found[0])

    def _index(self, name: str) -> ModelIndex:
        index = self._named(name)
        if index is None:
            raise Refused(f"there is no index {name!r}")
        return index
