"""The steps by which the staged indexes of a run take the place of the former ones. Each may be repeated by any node.

| the node dies after | the next one |
|---|---|
| an index was created | creates it again, without effect |
| settings were restored, counts compared | repeats it |
| the alias was swapped, before the run's row says so | finds its own index under the alias and goes on |
| writes were closed, before documents without rows were deleted | repeats it: nothing is left to be written |
| some documents without rows were deleted | compares again, and deletes the others |
| some former indexes were removed | removes the others |

An alias is swapped only from the state that the run's row names, so that a node that wakes up late changes nothing: the
alias is in another state by then, or the index that it would add has been removed by the run that came after.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from holdfast.errors import Refused
from holdfast.flow.search_index import WRITE_ALIAS, IndexedDocument, IndexOwner, IndexPlan, SearchIndexes
from holdfast.flow.sink import StagesIndexes
from holdfast.flow.tables import Entity, LiveTables
from holdfast.runs.reindex_state import EntityIndex, IndexHistory

MAX_INDEX_NAME = 255


@dataclass(frozen=True)
class Promotion:
    """The indexes of a pipeline's entities, and the tables that they are made from."""

    pipeline: str
    tables: LiveTables
    sink: StagesIndexes
    indexes: SearchIndexes

    def staged(self, run: str, entity: str, prefix: str | None) -> EntityIndex:
        """The names for an entity in a run. Raises `Refused` if the name of the index is too long."""
        alias = self._entity(entity).index
        name = f"{self.sink.prefix if prefix is None else prefix}{alias}_{run}".lower()
        if len((name + WRITE_ALIAS).encode()) > MAX_INDEX_NAME:
            raise Refused(f"the name of the staged index of {entity!r} is too long: {name}")
        return EntityIndex(alias, name, run)

    def in_place(self, entity: str) -> EntityIndex:
        """The live index of an entity. Raises `Refused` if there is none."""
        alias = self._entity(entity).index
        found = self.indexes.alias(alias)
        if len(found.indexes) != 1:
            raise Refused(
                f"{alias!r} is neither an index nor an alias of one, so that {entity!r} cannot be written in place"
            )
        return EntityIndex(alias, alias, former=found)

    def create(self, entity: str, target: EntityIndex) -> None:
        """Create the staged index of an entity."""
        self.indexes.create(target.index, IndexOwner(self.pipeline, target.run), self._plan(entity))

    def open_writes(self, run: str, target: EntityIndex) -> EntityIndex:
        """Let the run write to the index, or to the live one in place. Returns the names with its write alias.

        Raises `Refused` if the index is gone.
        """
        index = target.former.indexes[0] if target.in_place and target.former is not None else target.index
        alias = f"{target.index if target.run == run else f'{target.index}_{run}'}{WRITE_ALIAS}".lower()
        self.indexes.open_writes(index, alias)
        return replace(target, writes=alias)

    def close_writes(self, targets: Mapping[str, EntityIndex]) -> None:
        """Refuse whatever the nodes of the run have sent and is not there yet."""
        for target in targets.values():
            if target.writes:
                self.indexes.close_writes(target.writes)

    def close_left_open(self, entity: str, history: IndexHistory) -> None:
        """Refuse whatever nodes of ended runs have sent and is not there yet: the next run may write the same index."""
        for alias in history.left_open(entity):
            self.indexes.close_writes(alias)

    def check(self, targets: Mapping[str, EntityIndex]) -> None:
        """Raises `Refused` if a staged index is not the one that was created: a later run removes it, for example."""
        for target in targets.values():
            if self.indexes.owner(target.index) != IndexOwner(self.pipeline, target.run):
                raise Refused(f"the staged index {target.index} was removed, so that nothing was promoted; start anew")

    def check_live(self, targets: Mapping[str, EntityIndex]) -> None:
        """Raises `Refused` if an index that was live is not any more: it was replaced or taken back meanwhile."""
        for target in targets.values():
            found = self.indexes.alias(target.alias).indexes
            # Runs of earlier versions in place do not know which index they have written.
            if target.written and found != target.written:
                written, live = ", ".join(target.written), ", ".join(found) or "nothing"
                raise Refused(f"{written} is not live any more, the alias {target.alias} names {live}; start anew")

    def restore(self, targets: Mapping[str, EntityIndex]) -> None:
        """Give the indexes the settings for searching, and make their documents visible. Raises `Refused` as `check`"""
        self.check(targets)
        for entity, target in targets.items():
            self.indexes.restore(target.index, self._plan(entity))

    def shortfall(self, targets: Mapping[str, EntityIndex], min_ratio: float, spare: int) -> str | None:
        """Why the indexes have too few documents; None if they have enough.

        `spare` is how many rows may have changed since the indexes caught up.
        """
        rows = self.tables.counts(list(targets))
        for entity, target in targets.items():
            documents = self.indexes.count(target.index)
            if documents + spare < min_ratio * rows[entity]:
                return f"{entity}: {documents} documents in {target.index}, but {rows[entity]} rows"
        return None

    def seen(self, target: EntityIndex) -> EntityIndex:
        """The names together with what is under the alias now."""
        return replace(target, former=self.indexes.alias(target.alias))

    def swap(self, targets: Mapping[str, EntityIndex]) -> str | None:
        """Put the staged indexes under their aliases. Returns the reason if an alias has been changed by others."""
        for target in targets.values():
            former = target.former
            if former is not None and not self._is_promoted(target) and self.indexes.alias(target.alias) == former:
                self.indexes.swap(target.alias, former, target.index)
            if not self._is_promoted(target):
                found = ", ".join(self.indexes.alias(target.alias).indexes) or "nothing"
                return f"the alias {target.alias} was changed by others, it names {found}; {target.index} is unused"
        return None

    def _is_promoted(self, target: EntityIndex) -> bool:
        state = self.indexes.alias(target.alias)
        return state.indexes == (target.index,) and not state.concrete

    def reconcile(self, entity: str, target: EntityIndex) -> int:
        """Delete the documents whose rows are gone. Returns how many they were."""
        if self._entity(entity).has_deleted_flag:
            return 0
        self.indexes.refresh(target.index)
        gone = (self._gone(entity, page) for page in self.indexes.pages(target.index))
        return sum(self.indexes.delete(target.index, page) for page in gone if page)

    def _gone(self, entity: str, page: Sequence[IndexedDocument]) -> list[IndexedDocument]:
        present = self.tables.present(entity, [document.id for document in page])
        return [document for document in page if document.id not in present]

    def finish(self, targets: Mapping[str, EntityIndex]) -> None:
        for entity, target in targets.items():
            if not target.in_place:
                self.indexes.finish(target.index, self._plan(entity))

    def remove_abandoned(self, entity: str, history: IndexHistory) -> None:
        """Remove the indexes of ended runs that were not promoted, so that a late swap of theirs fails."""
        for target in history.abandoned(entity):
            self.remove(target)

    def remove_former(self, entity: str, history: IndexHistory, current: EntityIndex) -> None:
        """Remove the indexes of promoted runs, all but the current one and those that are kept."""
        former = current.former.indexes if current.former is not None and self.sink.keep_previous else ()
        others = [target for target in history.promoted(entity) if target.index not in {current.index, *former}]
        existing = [target for target in others if self.indexes.owner(target.index) is not None]
        for target in existing[max(0, self.sink.keep_previous - 1) :]:
            self.remove(target)

    def remove(self, target: EntityIndex) -> None:
        """Remove an index of this pipeline's runs, unless an alias names it."""
        self.indexes.remove(target.index, IndexOwner(self.pipeline, target.run))

    def _plan(self, entity: str) -> IndexPlan:
        found = self._entity(entity)
        return self.sink.plan(found.mappings or {}, found.settings or {})

    def _entity(self, name: str) -> Entity:
        entities = self.tables.entities()
        if name not in entities:
            raise Refused(f"there is no entity {name!r} any more; there are {', '.join(entities)}")
        return entities[name]
