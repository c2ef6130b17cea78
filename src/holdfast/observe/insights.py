"""The one read side: what the store says of nodes and partitions, as plain data for every display.

Rows carry the names of the source coordination format where it has one, and ours for the rest. Times are text in UTC.
Everything here raises `StoreUnavailable` when the store is away: that is never shown as nothing.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from holdfast.leases.lease import Lease, Status
from holdfast.leases.query import Query
from holdfast.leases.session import NodeInfo, node_info
from holdfast.leases.store import Store
from holdfast.observe.plain import plain
from holdfast.observe.shards import shards
from holdfast.observe.text import timestamp

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class NodeView:
    """A session of a node. `alive` by the store's clock; `ended` when that is also recorded, once and for all."""

    name: str
    session: str
    pipelines: tuple[str, ...]
    slots: int
    draining: bool
    alive: bool
    ended: bool
    last_heartbeat: str | None
    leases: int
    shards: str
    """Numbers of the partitions it holds, as ranges; empty if they have none."""

    def row(self) -> Row:
        """As JSON: first what consumer groups tell of a member, by the names it has there, then the rest."""
        member = {"member_id": self.name, "shards": self.shards, "last_heartbeat": self.last_heartbeat}
        return {**member, **asdict(self), "pipelines": list(self.pipelines)}


def nodes(store: Store, fleet: str, pipelines: Iterable[str]) -> list[NodeView]:
    """All sessions of a fleet that the store knows, by name and then age, with the leases of these pipelines."""
    sessions = store.find(Query(fleet))
    held: dict[str | None, list[Lease]] = defaultdict(list)
    for pipeline in pipelines:
        for row in store.find(Query(pipeline, run=None, statuses=(Status.ASSIGNED,))):
            held[row.owner].append(row)
    now = store.now()
    views = [(_info(row), _view(row, _info(row), held[row.key], now)) for row in sessions]
    return [view for _, view in sorted(views, key=lambda pair: (pair[0].name, pair[0].last_heartbeat))]


def _view(row: Lease, info: NodeInfo, held: list[Lease], now: float) -> NodeView:
    ended = row.status is not Status.ASSIGNED
    due_at = row.ownership.due_at
    return NodeView(
        name=info.name,
        session=row.key,
        pipelines=info.pipelines,
        slots=info.slots,
        draining=info.draining,
        alive=not ended and (due_at is None or due_at > now),
        ended=ended,
        last_heartbeat=timestamp(info.last_heartbeat) if info.last_heartbeat else None,
        leases=len(held),
        shards=shards(held),
    )


def _info(row: Lease) -> NodeInfo:
    try:
        return node_info(row)
    except (KeyError, TypeError):
        # Unreadable, or written by a later version: it is still a session that holds leases.
        return NodeInfo("?", row.key)


def counts(store: Store, pipeline: str, run: str = "") -> dict[str, int]:
    """Number of partitions for every status, also for those that have none."""
    found = store.count(pipeline, run)
    return {status.value: found.get(status, 0) for status in Status}


def partition(lease: Lease) -> Row:
    """All of a partition's row as JSON, in a stable order."""
    return {**_source_coordination_item(lease), **_ownership(lease), **_progress(lease), **_history(lease)}


def _source_coordination_item(lease: Lease) -> Row:
    state, due_at = lease.progress.state, lease.ownership.due_at
    return {
        "sourceIdentifier": lease.pipeline,
        "sourcePartitionKey": lease.key,
        "partitionOwner": lease.owner,
        "partitionProgressState": None if state is None else json.dumps(plain(state)),
        "partitionOwnershipTimeout": _time(due_at) if lease.status is Status.ASSIGNED else None,
        "sourcePartitionStatus": lease.status.value,
        "reOpenAt": _time(due_at) if lease.status is Status.CLOSED else None,
        "closedCount": lease.history.closed_count,
    }


def _ownership(lease: Lease) -> Row:
    own, order = lease.ownership, lease.order
    waits = lease.status is Status.UNASSIGNED and own.due_at
    return {
        "run": lease.run,
        "group": lease.group,
        "spec": plain(lease.spec),
        "token": own.token,
        "version": own.version,
        "not_before": _time(own.due_at) if waits else None,
        "priority": order.priority,
        "ordinal": order.ordinal,
        "work_units": order.work_units,
        "range_start": order.range_start,
        "range_end": order.range_end,
        "estimated_count": order.estimated_count,
        "index": order.index,
    }


def _progress(lease: Lease) -> Row:
    progress, commit = lease.progress, lease.commit
    return {
        "position": plain(progress.position),
        "acked": plain(progress.acked),
        "counts": asdict(progress.counts),
        "sequence": commit.sequence,
        "generation": commit.generation,
        "incarnation": commit.incarnation,
        "commit_id": commit.commit_id,
        "receipts": plain(commit.receipts),
    }


def _history(lease: Lease) -> Row:
    past = lease.history
    return {
        "attempts": past.attempts,
        "takeovers": past.takeovers,
        "last_error": past.last_error,
        "halt_reason": past.halt_reason,
        "created_at": _time(past.created_at),
        "claimed_at": _time(past.claimed_at),
        "started_at": _time(past.started_at),
        "updated_at": _time(past.updated_at),
        "completed_at": _time(past.completed_at),
        "unreadable": lease.unreadable is not None,
    }


def _time(seconds: float | None) -> str | None:
    return None if seconds is None else timestamp(seconds)
