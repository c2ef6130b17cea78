"""Pages of the whole fleet: what needs a person, the pipelines, and the nodes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any
from urllib.parse import quote

from holdfast.leases.controls import Controls
from holdfast.observe import insights
from holdfast.observe.measurements import ALERTS
from holdfast.web.configuration_file import ConfigurationFile
from holdfast.web.dashboard import Dashboard
from holdfast.web.page import Data, Parameters

Row = Mapping[str, Any]

_MOST_NEEDS = 8
"""Things that need a person and are named; of the rest the page has the number."""


def show_overview(dashboard: Dashboard, _parameters: Parameters) -> Data:
    """Return what `holdfast status --json` prints, with what needs a person as `needs`."""
    found = dashboard.overview()
    return {"head": head(dashboard), "needs": list(needs(found, dashboard.file.name)), **found}


def show_nodes(dashboard: Dashboard, _parameters: Parameters) -> Data:
    """Return the nodes with what they hold and have measured, those that are silent first."""
    names = {identifier: name for name, identifier in dashboard.pipelines.items()}
    found = dashboard.nodes(dashboard.pipelines)
    drained = Controls(dashboard.store, str, dashboard.fleet).drained()
    here = ConfigurationFile(dashboard.file).text_digest()
    rows = [
        {**node.row(), "drained": node.name in drained, "other_file": runs_another(node, here), **_work(node, names)}
        for node in found
        if not node.ended
    ]
    return {"head": head(dashboard), "nodes": sorted(rows, key=lambda row: (row["alive"], row["name"]))}


def runs_another(node: insights.NodeView, digest: str | None) -> bool:
    """Whether a node is known to run another file than the one with this digest."""
    return None not in {node.file_digest, digest} and node.file_digest != digest


def head(dashboard: Dashboard, **fixed: Any) -> Data:
    """Return what does not change while a page is open."""
    return {"file": dashboard.file.name, **fixed}


def node_names(dashboard: Dashboard) -> dict[str | None, str]:
    """Return the names of the nodes by their sessions."""
    return {node.session: node.name for node in insights.nodes(dashboard.store, dashboard.fleet, ())}


def page_of(pipeline: str) -> str:
    """Return the address of a pipeline's page."""
    return f"/pipelines/{pipeline}"


def source_of(dashboard: Dashboard, pipeline: str) -> str:
    """Return the kind of source that a pipeline reads."""
    return dashboard.settings.pipelines[pipeline].source.name


def needs(found: Row, file: str) -> Iterator[Data]:
    """Yield what needs a person, the most urgent first: a text, its style, and where to act.

    `found` is an overview; `file` is named in commands.
    """
    yield from _failed(found["pipelines"])
    silent = [node for node in found["nodes"] if not node["alive"]]
    for node in silent[:_MOST_NEEDS]:
        detail = f"holds {node['leases']} leases" if node["leases"] else "holds nothing"
        yield _need("silent", f"{node['name']} is silent", "/nodes", detail)
    if len(silent) > _MOST_NEEDS:
        yield _need("silent", f"{len(silent) - _MOST_NEEDS} more nodes are silent", "/nodes")
    yield from _failed_runs(found["runs"])
    for row in found["pipelines"]:
        page = page_of(row["pipeline"])
        if row["state"] == "paused":
            yield _need("CLOSED", f"{row['pipeline']} is paused", page)
        elif not row["nodes"] and _unfinished(row):
            yield _need("UNASSIGNED", f"no node works on {row['pipeline']}", page, command=f"holdfast run {file}")
        if row["counts"]["dead"]:
            detail = f"{row['counts']['dead']:,} records"
            where = f"/letters?pipeline={row['pipeline']}"
            yield _need("silent", f"{row['pipeline']} has dead letters", where, detail)


def _failed(pipelines: Iterable[Row]) -> Iterator[Data]:
    for row in pipelines:
        number = row["partitions"]["FAILED"]
        if number:
            words = "1 partition has" if number == 1 else f"{number:,} partitions have"
            where = f"{page_of(row['pipeline'])}?status=FAILED"
            yield _need("FAILED", f"{words} failed in {row['pipeline']}", where)


def _failed_runs(runs: Iterable[Row]) -> Iterator[Data]:
    for run in runs:
        if run["status"] in {"FAILED", "COMPLETED_WITH_ERRORS"}:
            where = f"/runs/{run['pipeline']}?run={quote(run['run'], safe='')}"
            words = "has failed" if run["status"] == "FAILED" else "is completed with errors"
            yield _need("FAILED", f"run {run['run']} {words}", where, run["error"] or "")


def _need(look: str, text: str, link: str, detail: str = "", command: str = "") -> Data:
    return {"look": look, "text": text, "link": link, "detail": detail, "command": command}


def _unfinished(row: Row) -> bool:
    partitions = row["partitions"]
    return bool(partitions["UNASSIGNED"] or partitions["ASSIGNED"])


def _work(node: insights.NodeView, names: Mapping[str, str]) -> Data:
    measured = [node.measured.get(identifier, {}) for identifier in node.pipelines]
    return {
        "pipeline_names": [names.get(identifier, identifier) for identifier in node.pipelines],
        "records_per_second": _total(measured, "records_per_second"),
        "lag_records": _total(measured, "lag_records"),
        "workers": _workers(measured),
        "alerts": len(node.measured.get(ALERTS, ())),
    }


def _workers(measured: Iterable[Row]) -> dict[str, int] | None:
    """The workers of all functions of a node by state; None if it has sent none."""
    found = [of_pipeline["workers"] for of_pipeline in measured if isinstance(of_pipeline.get("workers"), dict)]
    return dict(sum(map(Counter, found), Counter[str]())) if found else None


def _total(measured: Iterable[Row], name: str) -> Any:
    found = [of_pipeline[name] for of_pipeline in measured if of_pipeline.get(name) is not None]
    return sum(found) if found else None
