"""What a reindex run remembers from step to step, as JSON in the run's row."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from holdfast.flow.run import ENDED, GroupStats, Run, RunStatus
from holdfast.flow.search_index import AliasState
from holdfast.leases.lease import Json

KIND = "reindex"
COPYING, SWAPPING, SWAPPED, LAST_PASS = "copying", "swapping", "swapped", "last_pass"
"""Steps. SWAPPING is stored before the first alias is changed, SWAPPED after the last."""


@dataclass(frozen=True)
class EntityIndex:
    """The index of an entity in one run."""

    alias: str
    index: str
    """The staged index; the alias itself if the run writes in place."""
    run: str = ""
    """The run that has created the index."""
    former: AliasState | None = None
    """What was under the alias before the swap; None until the swap is about to begin. In place: when the run began."""
    taken_back: bool = False
    """Whether a person has put the former index under the alias again."""
    incomplete: bool = False
    """Whether rows of FAILED partitions of an earlier run are missing in it, see `continues` of the configuration."""

    writes: str = ""
    """The write alias of the run, which rows are sent to; runs of earlier versions have none."""

    @property
    def in_place(self) -> bool:
        return self.index == self.alias

    @property
    def written(self) -> tuple[str, ...]:
        """The indexes that the run has written, by their own names."""
        return (() if self.former is None else self.former.indexes) if self.in_place else (self.index,)


@dataclass(frozen=True)
class ReindexState:
    """The state of a reindex run between two calls of its driver."""

    mark: Json
    """A mark of the tables: changes since then may be missing in the index, those of entities with versions."""
    indexes: Mapping[str, EntityIndex]
    """By entity."""
    step: str = COPYING
    passes: int = 0
    """How many times the run has caught up; the latest pass may not have ended yet."""
    rows: int = 0
    """Rows that the latest pass was expected to read, of entities with versions."""
    swap_mark: Json = None
    """A mark taken after the swap."""
    gate_failures: int = 0
    rates: Mapping[str, float] = field(default_factory=dict)
    """By entity, the rows per second that one slot has copied; empty until the copy ends, and if that is not known."""
    deletes_mark: Json = None
    """The mark since which deleted rows may have documents; None: documents may be older than any mark."""
    unversioned_mark: Json = None
    """The mark for entities without versions, which fewer passes read; None: the same."""
    deletes_noted: Sequence[str] = ()
    """Entities that had tombstones at `deletes_mark`. Runs of earlier versions name none: their keys are compared."""
    noted: Sequence[str] = ()
    """Entities that had tombstones at the first mark of the run, for a run of what changed since then."""

    @property
    def oldest_mark(self) -> Json:
        """The mark since which changes of any entity may be missing."""
        return self.mark if self.unversioned_mark is None else self.unversioned_mark

    def deletes_since(self, entity: str) -> Json:
        """The mark since which tombstones name all deleted rows of the entity; None: keys have to be compared."""
        return self.deletes_mark if entity in self.deletes_noted else None

    def encode(self) -> Json:
        return asdict(self)


def decode_state(state: Json) -> ReindexState:
    """The state that was stored. Members that this version does not know are ignored."""
    indexes = {name: _entity_index(found) for name, found in state["indexes"].items()}
    fields = {name: value for name, value in state.items() if name in ReindexState.__dataclass_fields__}
    return ReindexState(**{**fields, "indexes": indexes})


def _entity_index(found: Mapping[str, Any]) -> EntityIndex:
    former = found.get("former")
    alias = None if former is None else AliasState(tuple(former["indexes"]), former["concrete"], former["options"])
    fields = {name: value for name, value in found.items() if name in EntityIndex.__dataclass_fields__}
    return EntityIndex(**{**fields, "former": alias})


def is_copied(run: Run, entity: str) -> bool:
    """Whether a run that has ended has copied all rows of an entity."""
    group = run.groups.get(entity, GroupStats())
    return not run.unlisted and run.pending is None and group.completed == group.partitions


class IndexHistory:
    """The indexes that runs have made for an entity, from the rows of the runs."""

    def __init__(self, runs: Iterable[Run]) -> None:
        self._runs = [
            (run, decode_state(run.state))
            for run in sorted(runs, key=lambda run: run.created_at or 0.0, reverse=True)
            if isinstance(run.configuration, dict) and run.configuration.get("kind") == KIND and run.state
        ]

    def promoted(self, entity: str) -> list[EntityIndex]:
        """The indexes that were put under the alias of this entity, the latest first."""
        return [index for _, step, index in self._of(entity) if step in {SWAPPED, LAST_PASS}]

    def abandoned(self, entity: str) -> list[EntityIndex]:
        """The indexes of ended runs that were never put under the alias of this entity, the latest first."""
        promoted = {index.index for index in self.promoted(entity)}
        return [
            index
            for run, step, index in self._of(entity)
            if step in {COPYING, SWAPPING} and run.status in ENDED and index.index not in promoted
        ]

    def left_open(self, entity: str) -> list[str]:
        """The write aliases for this entity of runs that may have ended without closing them."""
        found = ((run, state.indexes.get(entity)) for run, state in self._runs)
        return [
            index.writes
            for run, index in found
            if index is not None and index.writes and run.status in ENDED - {RunStatus.COMPLETED}
        ]

    def up_to_date(self, entities: Iterable[str]) -> ReindexState | None:
        """The state of the latest COMPLETED run that covers all of these entities, in indexes that are not taken back.

        An index that was taken back has rows that the live one may lack.
        """
        wanted = set(entities)
        gone = {index.index for _, state in self._runs for index in state.indexes.values() if index.taken_back}
        for run, state in self._runs:
            written = {name for entity in wanted & set(state.indexes) for name in state.indexes[entity].written}
            if run.status is RunStatus.COMPLETED and wanted <= set(state.indexes) and not written & gone:
                return state
        return None

    def noted_at(self, mark: Json, entities: Iterable[str]) -> tuple[str, ...]:
        """Those of the entities that had tombstones at this mark; none if no run is known that has reached it."""
        found = [state for _, state in self._runs if state.oldest_mark == mark]
        of_each = {entity: [entity in state.noted for state in found if entity in state.indexes] for entity in entities}
        return tuple(entity for entity, noted in of_each.items() if noted and all(noted))

    def incomplete(self, entity: str) -> Run | None:
        """The run that has put an index without some rows under the alias of this entity; None if no rows are missing.

        The missing rows were in FAILED partitions. Only a later run that copies all rows adds them.
        """
        for run, state in self._runs:
            index, group = state.indexes.get(entity), run.groups.get(entity, GroupStats())
            if index is None or index.taken_back:
                continue
            is_complete = not (index.incomplete or group.failed_partitions)
            copies_all = run.configuration.get("changedSince") is None
            if is_complete and copies_all and run.status is RunStatus.COMPLETED:
                return None
            if not is_complete and not index.in_place and state.step in {SWAPPED, LAST_PASS}:
                return run
        return None

    def rates(self) -> dict[str, float]:
        """By entity, the rows per second of one slot in the latest run that has copied it and has measured them."""
        return {entity: rate for _, state in reversed(self._runs) for entity, rate in state.rates.items()}

    def _of(self, entity: str) -> list[tuple[Run, str, EntityIndex]]:
        return [
            (run, state.step, state.indexes[entity])
            for run, state in self._runs
            if entity in state.indexes and not state.indexes[entity].in_place
        ]
