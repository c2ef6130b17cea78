"""What a person may do with reindex runs: start one, look at what it would do, promote it later, and take it back."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from holdfast.assemble import StoredPipeline
from holdfast.errors import UsageError
from holdfast.flow.run import ENDED, Run, RunStatus
from holdfast.flow.search_index import AliasState
from holdfast.flow.tables import Sizing
from holdfast.leases.lease import Json
from holdfast.runs.promotion import Promotion
from holdfast.runs.reindex_configuration import ReindexConfiguration, decode_configuration
from holdfast.runs.reindex_pipeline import driver_of, opened_promotion, promotion_of
from holdfast.runs.reindex_state import KIND, EntityIndex, IndexHistory, decode_state


def reindex_runs(pipeline: StoredPipeline) -> list[Run]:
    """The reindex runs of the pipeline, the latest first."""
    found = [run for run in pipeline.runs().list() if _is_reindex(run)]
    return sorted(found, key=lambda run: run.created_at or 0.0, reverse=True)


def _is_reindex(run: Run) -> bool:
    return isinstance(run.configuration, dict) and run.configuration.get("kind") == KIND


def start(pipeline: StoredPipeline, configuration: ReindexConfiguration, *, changed: bool = False, by: str) -> Run:
    """Add a run, which the nodes of the pipeline pick up by themselves. Raises `UsageError`."""
    entities = promotion_of(pipeline.identifier, pipeline.build()).tables.entities()
    chosen = configuration.resolved(entities).model_copy(update={"generation": pipeline.configured.generation})
    if changed:
        chosen = chosen.model_copy(update={"recreate_index": False, "changed_since": _last_mark(pipeline, chosen)})
    return pipeline.runs().add(f"{KIND}-{uuid.uuid4().hex[:12]}", configuration=chosen.encode(), created_by=by)


def _last_mark(pipeline: StoredPipeline, configuration: ReindexConfiguration) -> Any:
    history = IndexHistory(reindex_runs(pipeline))
    for entity in configuration.entities:
        if (run := history.incomplete(entity)) is not None:
            raise UsageError(
                f"run {run.id} has promoted an index of {entity} without the rows of FAILED partitions, which would "
                "stay missing; start without --changed"
            )
    state = history.up_to_date(configuration.entities)
    if state is None:
        names = ", ".join(configuration.entities)
        raise UsageError(
            f"no COMPLETED run covers {names}, so that it is not known what changed; start without --changed"
        )
    return state.oldest_mark


@dataclass(frozen=True)
class Estimate:
    """What a run would do for one entity."""

    entity: str
    index: str
    partitions: int
    rows: int
    seconds: float | None
    """By the speed of the latest run that has copied the entity, on the nodes that run now; None if there is none."""


def estimates(pipeline: StoredPipeline, configuration: ReindexConfiguration) -> list[Estimate]:
    """What a run of this configuration would do. Changes nothing."""
    with opened_promotion(pipeline) as promotion:
        chosen = configuration.resolved(promotion.tables.entities())
        found: dict[str, list[int]] = {entity: [] for entity in chosen.entities}
        sizing = driver_of(pipeline, promotion).sizing(chosen)
        for partition in promotion.tables.copy_partitions(chosen.entities, sizing):
            found[partition.group].append(partition.estimated_count or 0)
        aliases = {name: entity.index for name, entity in promotion.tables.entities().items()}
    return [
        Estimate(entity, aliases[entity], len(rows), sum(rows), _seconds(sum(rows), sizing, entity))
        for entity, rows in found.items()
    ]


def _seconds(rows: int, sizing: Sizing, entity: str) -> float | None:
    rate = sizing.rates.get(entity)
    return round(rows / (rate * sizing.slots), 1) if rate else None


def promote(pipeline: StoredPipeline, run: Run, *, min_ratio: float | None, by: str) -> Run:
    """Add a run that brings the staged indexes of an ended run up to date and promotes them. Raises `UsageError`."""
    if run.status not in ENDED or run.status is RunStatus.COMPLETED:
        raise UsageError(
            f"run {run.id} is {run.status.value}; only a run that ended without a promotion can be promoted"
        )
    if run.status is RunStatus.STOPPED:
        raise UsageError(
            f"run {run.id} is STOPPED and has not copied all rows; `holdfast reindex resume` continues and promotes it"
        )
    former = decode_configuration(run.configuration)
    if run.state is None or not former.recreate_index:
        raise UsageError(f"run {run.id} has no staged indexes")
    groups = run.groups.values()
    if left := sum(group.partitions - group.completed - group.failed_partitions for group in groups):
        raise UsageError(f"run {run.id} has ended before {left} of its partitions were copied; start a new run")
    changes: dict[str, Any] = {"continues": run.id, "promote_with_errors": True, "changed_since": None}
    changes |= {} if min_ratio is None else {"min_ratio": min_ratio}
    return start(pipeline, former.model_copy(update=changes), by=by)


def rollback(pipeline: StoredPipeline, entities: tuple[str, ...], *, keep: bool = False) -> Mapping[str, EntityIndex]:
    """Put the former indexes under their aliases again, and delete the others unless `keep`.

    Returns the indexes that were taken back. Raises `UsageError` if a run of these entities has not ended, or nothing
    can be taken back.
    """
    runs = reindex_runs(pipeline)
    with opened_promotion(pipeline) as promotion:
        chosen = ReindexConfiguration(entities=entities).resolved(promotion.tables.entities()).entities
        for run in runs:
            if run.status not in ENDED and set(chosen) & set(decode_configuration(run.configuration).entities):
                raise UsageError(f"run {run.id} is {run.status.value}; stop it first")
        latest = {entity: _latest(promotion, IndexHistory(runs), entity) for entity in chosen}
        for entity, target in latest.items():
            # Noted first: if this process dies, a run of what changed reads too much, and misses nothing.
            _note(pipeline, runs, entity, target, taken_back=True)
            try:
                _take_back(promotion, target)
            except UsageError:
                _note(pipeline, runs, entity, target, taken_back=False)
                raise
            if not keep:
                promotion.remove(target)
    return latest


def _latest(promotion: Promotion, history: IndexHistory, entity: str) -> EntityIndex:
    """The index that is under the alias of the entity now. Raises `UsageError` if it has no former index."""
    for target in history.promoted(entity):
        if promotion.indexes.alias(target.alias).indexes == (target.index,):
            if target.former is None or target.former.concrete or not target.former.indexes:
                raise UsageError(f"{entity}: there was no former index that the alias {target.alias} could name again")
            return target
    raise UsageError(f"{entity}: its alias names no index of a run, so that there is nothing to take back")


def _note(pipeline: StoredPipeline, runs: Iterable[Run], entity: str, target: EntityIndex, *, taken_back: bool) -> None:
    """Note in all runs that have written the index whether it is taken back."""

    def noted(stored: Json) -> Json:
        state = decode_state(stored)
        index = replace(state.indexes[entity], taken_back=taken_back)
        return replace(state, indexes={**state.indexes, entity: index}).encode()

    for run in runs:
        found = None if run.state is None else decode_state(run.state).indexes.get(entity)
        if found is not None and found.index == target.index:
            pipeline.runs().amend(run.id, noted)


def _take_back(promotion: Promotion, target: EntityIndex) -> None:
    former = target.former or AliasState()
    current = promotion.indexes.alias(target.alias)
    if len(former.indexes) != 1 or not promotion.indexes.swap(target.alias, current, former.indexes[0]):
        names = ", ".join(former.indexes)
        raise UsageError(f"the alias {target.alias} cannot name {names} again: it was changed, or the index is gone")
