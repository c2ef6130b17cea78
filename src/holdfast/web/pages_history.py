"""Pages of what has happened: actions of people, and versions of the parsing."""

from __future__ import annotations

from dataclasses import asdict
from urllib.parse import quote

from holdfast.assemble import StoredPipeline, audit_log_of
from holdfast.observe.insights import time_text
from holdfast.web.dashboard import Dashboard
from holdfast.web.page import Data, Parameters
from holdfast.web.pages_fleet import head

_ENTRIES = 50


def show_audit(dashboard: Dashboard, parameters: Parameters) -> Data:
    """Return what people have done, the latest first, as `holdfast audit-log --json` lists it."""
    before = parameters.get("before", "")
    found = audit_log_of(dashboard.settings, dashboard.store).list(before or None, _ENTRIES + 1)
    rows = [{**row, "time": time_text(row.get("at"))} for row in (entry.row() for entry in found[:_ENTRIES])]
    following = f"/audit?before={quote(rows[-1]['id'], safe='')}" if len(found) > _ENTRIES else None
    return {"head": head(dashboard, before=before), "entries": {"rows": rows, "next": following}}


def show_generations(dashboard: Dashboard, _parameters: Parameters) -> Data:
    """Return the generations of each pipeline, the latest first, and which of them is current."""
    found = []
    for name, configured in dashboard.settings.pipelines.items():
        generations = StoredPipeline(dashboard.settings, dashboard.store, name).generations()
        registered = sorted(generations.list(), key=lambda generation: -generation.number)
        current = generations.current()[0] if registered else None
        rows = [
            {**asdict(each), "current": each.number == current, "time": time_text(each.created_at)}
            for each in registered
        ]
        found.append({"pipeline": name, "configured": configured.generation, "current": current, "rows": rows})
    return {"head": head(dashboard), "generations": found}
