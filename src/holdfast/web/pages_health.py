"""Pages of what is wrong and what is proven: alerts with their runbooks, and the last verification of each pipeline."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import asdict
from typing import Any

from holdfast.assemble import StoredPipeline
from holdfast.leases.lease import Key, Lease
from holdfast.observe.alert_kinds import FAILED, HALTED, KINDS, LAGGING, NODE_LOST, AlertKind, runbook
from holdfast.observe.insights import time_text
from holdfast.observe.measurements import ALERTS
from holdfast.runs.verification import Verification
from holdfast.web.dashboard import Dashboard
from holdfast.web.page import Data, Parameters
from holdfast.web.pages_fleet import head, page_of

Row = Mapping[str, Any]
_SEEN = (FAILED, HALTED, NODE_LOST, LAGGING)
"""Kinds of alerts whose cause can be read from the store."""


def show_alerts(dashboard: Dashboard, _parameters: Parameters) -> Data:
    """Return the open alerts, and all kinds with their runbooks."""
    kinds = [{"kind": kind.name, **_described(kind), "seen": kind in _SEEN} for kind in KINDS.values()]
    return {"head": head(dashboard), "alerts": open_alerts(dashboard), "kinds": kinds}


def open_alerts(dashboard: Dashboard) -> list[Data]:
    """Return the alerts whose cause is in the store, and those that nodes have sent with their heartbeats.

    Raises `StoreUnavailable`.
    """
    found = dashboard.overview()
    seen = [*_failed(dashboard, found), *_silent(found["nodes"]), *_lagging(dashboard, found["pipelines"])]
    return [*seen, *_sent(dashboard, found["nodes"], {(each["kind"], each["pipeline"], each["key"]) for each in seen})]


def show_proof(dashboard: Dashboard, _parameters: Parameters) -> Data:
    """Return what the last verification that was started here has found in each pipeline; None without one."""
    return {"head": head(dashboard), "proofs": [_proof(dashboard, name) for name in dashboard.pipelines]}


def _failed(dashboard: Dashboard, found: Row) -> Iterator[Data]:
    """The FAILED partitions that an overview names, and the number of the others."""
    shown = dict.fromkeys(dashboard.pipelines, 0)
    keys = [Key(dashboard.identifier(row["pipeline"]), row["run"], row["key"]) for row in found["failures"]]
    for failure, row in zip(found["failures"], dashboard.store.get(keys), strict=True):
        name = failure["pipeline"]
        shown[name] += not failure["run"]
        subject = {"pipeline": name, "key": failure["key"], "run": failure["run"]}
        yield _alert(_kind(row), failure["error"] or "", failure["failed_at"], **subject)
    for row_of in found["pipelines"]:
        name = row_of["pipeline"]
        more = row_of["partitions"]["FAILED"] - shown[name]
        if more > 0:
            yield _alert(
                FAILED, f"{more:,} more are FAILED", None, pipeline=name, link=f"{page_of(name)}?status=FAILED"
            )


def _kind(row: Lease | None) -> AlertKind:
    return HALTED if row is not None and row.history.halt_reason else FAILED


def _silent(nodes: Iterable[Row]) -> Iterator[Data]:
    for node in nodes:
        if not node["alive"]:
            message = f"{node['name']} is silent and holds {node['leases']:,} leases"
            yield _alert(NODE_LOST, message, node["last_heartbeat"], look="silent", link="/nodes")


def _lagging(dashboard: Dashboard, pipelines: Iterable[Row]) -> Iterator[Data]:
    limit = dashboard.settings.alerts.lag_seconds
    for row in pipelines:
        lag = row["lag_seconds"]
        if limit is not None and lag is not None and lag > limit:
            name = row["pipeline"]
            message = f"{lag:.0f} seconds behind, more than {limit}"
            yield _alert(LAGGING, message, None, look="silent", pipeline=name, link=page_of(name))


def _sent(dashboard: Dashboard, nodes: Iterable[Row], seen: Container[Any]) -> Iterator[Data]:
    """The alerts that live nodes have sent, each once, without those that the store shows anyway."""
    names = {identifier: name for name, identifier in dashboard.pipelines.items()}
    found: dict[tuple[Any, ...], Data] = {}
    for node in nodes:
        for sent in node["measured"].get(ALERTS, ()) if node["alive"] else ():
            pipeline = names.get(sent["pipeline"], sent["pipeline"])
            at = (sent["kind"], pipeline, sent["key"])
            # A node of another version may know other kinds.
            if at not in seen and (kind := KINDS.get(sent["kind"])) is not None:
                where = {"pipeline": pipeline, "key": sent["key"], "link": pipeline and page_of(pipeline)}
                alert = _alert(kind, sent["message"], time_text(sent["since"]), look="silent", nodes=[], **where)
                found.setdefault(at, alert)["nodes"].append(node["name"])
    yield from found.values()


def _alert(kind: AlertKind, message: str, since: str | None, **fields: Any) -> Data:
    subject = {"nodes": None, "pipeline": None, "key": None, "run": "", "link": None, "look": "FAILED"}
    return {"kind": kind.name, **_described(kind), "message": message, "since": since, **subject, **fields}


def _described(kind: AlertKind) -> Data:
    return {"meaning": kind.meaning, "runbook": runbook(kind.name)}


def _proof(dashboard: Dashboard, name: str) -> Data:
    found = Verification(StoredPipeline(dashboard.settings, dashboard.store, name)).latest()
    if found is None:
        return {"pipeline": name, "verdict": None}
    ended = found.ended_at
    taken = None if ended is None else ended - found.started_at
    times = {"started": time_text(found.started_at), "ended": time_text(ended), "seconds": taken}
    return {"pipeline": name, **asdict(found), **times}
