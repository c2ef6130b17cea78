"""Work on a run that another node has begun: beside it, or in its place if it is gone."""

from __future__ import annotations

from holdfast import assemble
from holdfast.config.models import Settings
from holdfast.errors import UsageError
from holdfast.flow.run import Run
from holdfast.leases.store import Store
from holdfast.runs import backfill, execution, letter_selection, redrive, rewind
from holdfast.runs.creation import check_digest

_JOBS = {
    rewind.KIND: rewind.job_of,
    backfill.KIND: backfill.job_of,
    letter_selection.KIND: redrive.job_of,
}


def join_run(settings: Settings, store: Store, pipeline: str, run_id: str, emit: assemble.Emit) -> Run:
    """Work on the run until it has ended or this process is asked to stop.

    Raises `UsageError` if it has ended, `Refused` if this file's parsing is not the run's.
    """
    told = execution.unended(assemble.runs(settings, store, pipeline), run_id).configuration
    if not isinstance(told, dict) or told.get("kind") not in _JOBS:
        raise UsageError(f"run {run_id} is neither a rewind, nor a backfill, nor a redrive")
    check_digest(settings, store, pipeline, told["generation"])
    run = execution.join(store, _JOBS[told["kind"]](settings, pipeline, told), run_id, emit)
    if told["kind"] == letter_selection.KIND:
        redrive.mark_sent(settings, store, pipeline, run_id)
    return run
