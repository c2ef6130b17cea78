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

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from holdfast.errors import Refused
from holdfast.flow.run import Run
from holdfast.flow.search_index import SUSPENDED, WRITE_ALIAS, IndexedDocument, IndexOwner, IndexPlan, SearchIndexes
from holdfast.flow.sink import StagesIndexes
from holdfast.flow.tables import Entity, LiveTables
from holdfast.leases.lease import Json
from holdfast.runs.reindex_state import EntityIndex, IndexHistory

MAX_INDEX_NAME = 255
MOST_TOKEN = 10**9
"""The greatest token of a driver that names leave room for."""


@dataclass(frozen=True)
class Promotion:
    """The indexes of a pipeline's entities, and the tables that they are made from."""

    pipeline: str
    tables: LiveTables
    sink: StagesIndexes
    indexes: SearchIndexes

    def staged(self, run: str, entity: str, prefix: str | None) -> EntityIndex:
        """The names of an entity's index and alias in a run. Raises `Refused` if the name of the index is too long."""
        alias = self._entity(entity).index
        name = f"{self.sink.prefix if prefix is None else prefix}{alias}_{run}".lower()
        if len(f"{SUSPENDED}{name}_{MOST_TOKEN}{WRITE_ALIAS}".encode()) > MAX_INDEX_NAME:
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

    def has_tombstones(self, entity: str) -> bool:
        """Whether deletes of the entity are noted from now on. Raises `Refused` if there is no such entity."""
        return self._entity(entity).has_tombstones

    def create(self, entity: str, target: EntityIndex) -> None:
        """Create the staged index of an entity."""
        self.indexes.create(target.index, IndexOwner(self.pipeline, target.run), self._plan(entity))

    def open_writes(self, run: Run, target: EntityIndex) -> EntityIndex:
        """Let the run write to the index, or to the live one in place. Returns the target with its write alias.

        Every driver adds an alias of its own, and the run's row names that of the driver that was not replaced: a
        driver that wakes up late opens nothing that a request could reach. Raises `Refused` if the index is gone.
        """
        index = target.former.indexes[0] if target.in_place and target.former is not None else target.index
        of_run = target.index if target.run == run.id else f"{target.index}_{run.id}"
        alias = f"{of_run}_{run.driver_token}{WRITE_ALIAS}".lower()
        self.indexes.open_writes(index, alias)
        return replace(target, writes=alias)

    def reopen_writes(self, targets: Mapping[str, EntityIndex]) -> None:
        """Let a run that was stopped write again. Raises `Refused` if its writes were closed for good."""
        for target in targets.values():
            if target.writes and not self.indexes.reopen_writes(target.writes):
                raise Refused(
                    f"{', '.join(target.written)} does not accept what the run writes any more; start a new run"
                )

    def close_writes(self, targets: Mapping[str, EntityIndex]) -> None:
        """Refuse all requests that nodes of the run have sent and that have not arrived yet."""
        for target in targets.values():
            if target.writes:
                self.indexes.close_writes(target.writes)

    def suspend_left_open(self, entity: str, history: IndexHistory) -> None:
        """Refuse requests of ended runs that have not arrived yet: the next run may write the same index.

        A run that was stopped may be resumed, and then continues with the same alias.
        """
        for alias in history.left_open(entity):
            self.indexes.suspend_writes(alias)

    def check(self, targets: Mapping[str, EntityIndex]) -> None:
        """Raises `Refused` if a staged index is not the one that was created: a later run may have removed it."""
        for target in targets.values():
            is_ours = self.indexes.owner(target.index) == IndexOwner(self.pipeline, target.run)
            # A driver that wakes up late may create it anew, without documents and without the alias of the run's row.
            if not is_ours or (target.writes and target.index not in self.indexes.writes(target.writes)):
                raise Refused(
                    f"the staged index {target.index} was removed, so that nothing was promoted; start a new run"
                )

    def check_live(self, targets: Mapping[str, EntityIndex]) -> None:
        """Raises `Refused` if an index that was live is not any more: it was replaced or taken back meanwhile."""
        for target in targets.values():
            found = self.indexes.alias(target.alias).indexes
            # Runs of earlier versions in place do not know which index they have written.
            if target.written and found != target.written:
                written, live = ", ".join(target.written), ", ".join(found) or "nothing"
                raise Refused(f"{written} is not live any more, the alias {target.alias} names {live}; start a new run")

    def restore(self, targets: Mapping[str, EntityIndex]) -> None:
        """Give the indexes the settings for searching, and make their documents visible.

        Raises `Refused` as `check` does.
        """
        self.check(targets)
        for entity, target in targets.items():
            self.indexes.restore(target.index, self._plan(entity))

    def shortfall(self, targets: Mapping[str, EntityIndex], min_ratio: float, mark: Json) -> str | None:
        """Why the indexes have too few documents; None if they have enough.

        Every row that was not changed since the mark must have its document; rows changed since then are not counted.
        """
        rows = self.tables.counts(list(targets), mark)
        for entity, target in targets.items():
            documents = self.indexes.count(target.index)
            if documents < min_ratio * rows[entity]:
                return f"{entity}: {documents} documents in {target.index}, but {rows[entity]} rows"
        return None

    def seen(self, target: EntityIndex) -> EntityIndex:
        """The target together with what is under its alias now."""
        return replace(target, former=self.indexes.alias(target.alias))

    def swap(self, targets: Mapping[str, EntityIndex]) -> str | None:
        """Put the staged indexes under their aliases. Returns the reason if an alias has been changed by others."""
        for target in targets.values():
            former = target.former
            if former is not None and not self._is_promoted(target) and self.indexes.alias(target.alias) == former:
                self.indexes.swap(target.alias, former, target.index)
            if not self._is_promoted(target):
                return self._not_promoted(target)
        return None

    def _not_promoted(self, target: EntityIndex) -> str:
        found = self.indexes.alias(target.alias)
        if found == target.former:
            return f"another run has begun to remove {target.index}, so that nothing was promoted; start a new run"
        names = ", ".join(found.indexes) or "nothing"
        return f"the alias {target.alias} was changed by others, it names {names}; {target.index} is unused"

    def _is_promoted(self, target: EntityIndex) -> bool:
        state = self.indexes.alias(target.alias)
        return state.indexes == (target.index,) and not state.concrete

    def reconcile(self, entity: str, target: EntityIndex, since: Json = None) -> int:
        """Delete the documents whose rows are gone. Returns how many they were.

        Documents of rows that were gone at the mark `since` are not in the index, and deletes after it are noted if the
        entity has tombstones; None: neither is known.
        """
        if self._entity(entity).has_deleted_flag:
            return 0
        gone = (self._gone(entity, page) for page in self._suspects(entity, target, since))
        return sum(self.indexes.delete(target.index, page) for page in gone if page)

    def _suspects(self, entity: str, target: EntityIndex, since: Json) -> Iterator[Sequence[IndexedDocument]]:
        """Documents whose rows may be gone: those with a tombstone, or all if deletes are not noted."""
        removed = None if since is None else self.tables.removed(entity, since)
        if removed is None:
            self.indexes.refresh(target.index)
            return self.indexes.pages(target.index)
        return (list(self.indexes.find(target.index, ids).values()) for ids in removed)

    def remove_noted(self, entity: str, target: EntityIndex, since: Json) -> None:
        """Delete documents whose rows are gone, as far as tombstones say so, while the run still writes.

        It need not be complete: `reconcile` follows when nothing is written any more.
        """
        if since is not None and self.has_tombstones(entity):
            self.reconcile(entity, target, since)

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
