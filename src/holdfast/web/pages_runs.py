"""Pages of runs: all of them, the progress of one by group and node, and what a rewind or a backfill would do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict

from holdfast.assemble import StoredPipeline
from holdfast.errors import HoldfastError, NotFound
from holdfast.flow.run import Run, run_of, runs_of
from holdfast.leases.lease import Key
from holdfast.observe.insights import time_text
from holdfast.runs import backfill, rewind
from holdfast.runs.backfill import Backfill
from holdfast.runs.execution import RunPreview
from holdfast.runs.next_generation import FILES
from holdfast.runs.rewind import Rewind
from holdfast.web.dashboard import Dashboard
from holdfast.web.page import Data, Parameters
from holdfast.web.pages_fleet import head, node_names


def show_runs(dashboard: Dashboard, _parameters: Parameters) -> Data:
    """Return the runs of all pipelines, the latest first; of those that have ended, the last five of each pipeline."""
    found = dashboard.overview()["runs"]
    return {"head": head(dashboard), "runs": sorted(found, key=lambda run: run["created_at"] or "", reverse=True)}


def show_run(dashboard: Dashboard, parameters: Parameters) -> Data:
    """Return a run and its progress. Raises `NotFound`."""
    name, wanted = parameters["pipeline"], parameters.get("run", "")
    run = _run(dashboard, dashboard.identifier(name), wanted)
    names = node_names(dashboard)
    return {
        "head": head(dashboard, pipeline=name, run=wanted),
        "run": _shown(run),
        "groups": [{"name": group, **asdict(stats)} for group, stats in sorted(run.groups.items())],
        "nodes": [{"name": names.get(session, session), **asdict(stats)} for session, stats in run.nodes.items()],
    }


def show_rewind(dashboard: Dashboard, parameters: Parameters) -> Data:
    """Return what a rewind of a partition would do now: nothing is changed. Raises `NotFound`."""
    name, key, to = parameters["pipeline"], parameters.get("key", ""), parameters.get("to", "").strip()
    stored = _stored(dashboard, name)
    found = _preview(lambda: rewind.look(stored, Rewind.of_key(key, to))) if to else _NOTHING
    return {"head": head(dashboard, pipeline=name, key=key, to=to), "preview": found}


def show_backfill(dashboard: Dashboard, parameters: Parameters) -> Data:
    """Return what a backfill would do now: nothing is changed. Raises `NotFound`."""
    name, stored = parameters["pipeline"], _stored(dashboard, parameters["pipeline"])
    given = {field: parameters.get(field, "").strip() for field in ("backup", "between", "topics", "names")}
    topics = tuple(topic for topic in given["topics"].replace(",", " ").split())
    wanted = Backfill(given["backup"], given["between"] or "..", topics, given["names"] or None)
    found = _preview(lambda: backfill.look(stored, wanted)) if given["backup"] else _NOTHING
    return {"head": head(dashboard, pipeline=name, wanted=given, backups=backups(dashboard)), "preview": found}


def backups(dashboard: Dashboard) -> list[str]:
    """Return the pipelines whose files can be read again: those of Kafka with a sink `files`."""
    return [
        name
        for name, chosen in dashboard.settings.pipelines.items()
        if chosen.source.name == "kafka" and any(named.use.name == FILES for named in chosen.sinks)
    ]


_NOTHING: Data = {"wanted": False, "problem": None, "run": None}


def _preview(look: Callable[[], RunPreview]) -> Data:
    try:
        return {"wanted": True, "problem": None, "run": look().row()}
    except HoldfastError as error:
        return {"wanted": True, "problem": str(error), "run": None}


def _stored(dashboard: Dashboard, pipeline: str) -> StoredPipeline:
    dashboard.identifier(pipeline)
    return StoredPipeline(dashboard.settings, dashboard.store, pipeline)


def _run(dashboard: Dashboard, identifier: str, run_id: str) -> Run:
    (row,) = dashboard.store.get([Key(runs_of(identifier), "", run_id)])
    if row is None or row.unreadable is not None:
        raise NotFound(f"there is no run {run_id!r}; `holdfast runs list {dashboard.file.name}` shows all")
    return run_of(row)


def _shown(run: Run) -> Data:
    """A run as JSON, without the parts that are regions of their own and without its driver's state."""
    left_out = {"groups", "nodes", "state", "pending"}
    fields = {field: value for field, value in asdict(run).items() if field not in left_out}
    times = {field: time_text(value) for field, value in fields.items() if field.endswith("_at")}
    counts, ended = asdict(run.counts), run.completed_at is not None
    left = None if ended else run.seconds_left
    return {**fields, **times, "status": run.status.value, "counts": counts, "total": run.total, "seconds_left": left}
