"""Reindex runs that begin by themselves. The time at which a run is due is its id, so that any node may add it."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from holdfast.assemble import StoredPipeline
from holdfast.errors import PartitionNotFound, UsageError
from holdfast.flow.run import ENDED, Run
from holdfast.flow.runs import Runs
from holdfast.runs.reindex_configuration import ReindexConfiguration
from holdfast.runs.reindex_state import KIND, IndexHistory

GRACE = 3600.0
"""Seconds after its time in which a run is still started, for example when all nodes were being replaced."""
BY = "schedule"


def start_if_due(pipeline: StoredPipeline, runs: Runs, now: float) -> Run | None:
    """Add the run that is due by the schedule of the pipeline's source, if there is one and it does not exist yet.

    Any number of nodes may call this at a time. Nothing is added while an earlier run of the schedule goes on.
    """
    schedule: Any = getattr(pipeline.configured.source.config, "schedule", None)
    if schedule is None:
        return None
    due = schedule.due_at(now)
    run_id = f"{KIND}-{datetime.fromtimestamp(due, UTC):%Y%m%dt%H%M%Sz}"
    if now - due > GRACE or _exists(runs, run_id):
        return None
    if any(run.status not in ENDED and run.created_by == BY for run in runs.list()):
        return None
    configuration = _configuration(pipeline, schedule, runs).encode()
    try:
        return runs.add(run_id, configuration=configuration, created_by=BY)
    except UsageError:
        return None  # another node was faster


def _exists(runs: Runs, run_id: str) -> bool:
    try:
        runs.show(run_id)
    except PartitionNotFound:
        return False
    return True


def _configuration(pipeline: StoredPipeline, schedule: Any, runs: Runs) -> ReindexConfiguration:
    known = pipeline.configured.source.config.entities
    chosen = ReindexConfiguration(entities=schedule.entities, generation=pipeline.configured.generation).resolved(known)
    history = IndexHistory(runs.list())
    state = history.up_to_date(chosen.entities) if schedule.changed else None
    if state is None or any(history.incomplete(entity) for entity in chosen.entities):
        return chosen
    return chosen.model_copy(update={"recreate_index": False, "changed_since": state.oldest_mark})
