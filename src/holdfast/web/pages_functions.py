"""The page of functions: which handler runs in which version, its trigger, its shards and the nodes that work."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from holdfast.assemble import StoredPipeline
from holdfast.config.plugins import NamedSink
from holdfast.errors import ConfigError
from holdfast.leases.controls import Controls
from holdfast.leases.lease import Lease
from holdfast.leases.query import Query
from holdfast.observe import insights, listings
from holdfast.observe.insights import NodeView, time_text
from holdfast.web.configuration_file import ConfigurationFile
from holdfast.web.dashboard import Dashboard
from holdfast.web.page import Data, Parameters
from holdfast.web.pages_fleet import head
from holdfast.web.trigger import trigger_fields

FUNCTION = "function"
MOST_SHARDS = 200
"""Shards that are shown of each function; the page of its pipeline has all."""


def show_functions(dashboard: Dashboard, _parameters: Parameters) -> Data:
    """Return the functions of the file with their shards and nodes."""
    return {"head": head(dashboard), "functions": all_functions(dashboard)}


def all_functions(dashboard: Dashboard) -> list[Data]:
    """Return the functions of the file. Lag and rate are what their nodes have measured. Raises `StoreUnavailable`."""
    drained = Controls(dashboard.store, str, dashboard.fleet).drained()
    found = [_function(dashboard, name, sink) for name, sink in functions_in(dashboard)]
    for node in (node for function in found for node in function["nodes"]):
        node["drained"] = node["name"] in drained
    return found


def functions_in(dashboard: Dashboard) -> Iterator[tuple[str, NamedSink]]:
    """Yield the pipelines of the file that have a function, each with its sink."""
    for name, configured in dashboard.settings.pipelines.items():
        for sink in configured.sinks:
            if sink.use.name == FUNCTION:
                yield name, sink


def _function(dashboard: Dashboard, name: str, sink: NamedSink) -> Data:
    identifier, config = dashboard.identifier(name), sink.use.config
    generations = listings.generation_rows(StoredPipeline(dashboard.settings, dashboard.store, name).generations())
    rows = dashboard.store.find(Query(identifier, limit=MOST_SHARDS + 1))
    nodes = dashboard.nodes([name])
    owners: dict[str | None, str] = {node.session: node.name for node in nodes}
    working = [node for node in nodes if not node.ended and identifier in node.pipelines]
    return {
        "pipeline": name,
        "handler": config.handler,
        "generation": next((_version(row) for row in generations if row["current"]), None),
        "configured": dashboard.settings.pipelines[name].generation,
        "trigger": _trigger(dashboard, name),
        "shards": [_shard(row, owners) for row in rows[:MOST_SHARDS]],
        "more": len(rows) > MOST_SHARDS,
        "nodes": [_node(node, identifier, config.workers) for node in working],
    }


def _trigger(dashboard: Dashboard, name: str) -> list[Data]:
    try:
        text = ConfigurationFile(dashboard.file).read().text
        return [] if text is None else [field.row() for field in trigger_fields(text, name)]
    except ConfigError:
        return []  # the page of the configuration says what is wrong with the file


def _version(row: Mapping[str, Any]) -> Data:
    return {"number": row["number"], "digest": row["digest"], "by": row["created_by"]} | {
        "time": time_text(row["created_at"])
    }


def _shard(row: Lease, owners: Mapping[str | None, str]) -> Data:
    fields = insights.partition(row)
    return {
        "key": row.key,
        "status": row.status.value,
        "owner": owners.get(row.owner, row.owner),
        "position": fields["position"],
        "acked": sum(end - start for start, end in row.progress.acked or ()),
        "counts": fields["counts"],
        "error": fields["halt_reason"] or fields["last_error"],
    }


def _node(node: NodeView, identifier: str, workers: int) -> Data:
    measured = node.measured.get(identifier, {})
    states = measured.get("workers")
    states = states if isinstance(states, dict) else None
    return {
        "name": node.name,
        "session": node.session,
        "alive": node.alive,
        "ended": node.ended,
        "draining": node.draining,
        "shards": node.shards,
        "workers": workers,
        "worker_states": states,
        "busy": None if states is None else states.get("busy", 0),
        "records_per_second": measured.get("records_per_second"),
        "lag_records": measured.get("lag_records"),
        "lag_seconds": measured.get("lag_seconds"),
    }
