"""The single read side: nodes and partitions in the store, as plain data for every display.

Fields have the names of the source coordination format where it has one, and holdfast's names otherwise. Times are text
in UTC. Everything here raises `StoreUnavailable` when the store does not respond, instead of showing nothing.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from holdfast.leases.lease import Json, Lease, Status
from holdfast.leases.query import Query
from holdfast.leases.session import NodeInfo, node_info
from holdfast.leases.store import Store
from holdfast.leases.tenures import taken_over_from
from holdfast.observe.json_values import plain
from holdfast.observe.text import timestamp
from holdfast.observe.timeline import timeline

Row = dict[str, Any]
Numbered = tuple[str, int | None]
"""Group and number of a partition; None if it has no number."""
HeldBySession = Mapping[str | None, tuple[int, str]]
"""How many partitions each session holds, and their numbers as ranges."""


@dataclass(frozen=True, slots=True)
class NodeView:
    """A session of a node. `alive` is judged by the store's clock; `ended` means that the end is recorded and final."""

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
    """Numbers of the partitions that the node holds, as ranges; empty if they have no numbers."""
    measured: Json = field(default_factory=dict)
    """By pipeline, what the node has measured, see `holdfast.observe.measurements`."""
    file_digest: str | None = None
    """What tells the text of the node's configuration file from another one; None if it has not said."""

    def row(self) -> Row:
        """Return the session as JSON: first the fields that members of consumer groups have, then the rest."""
        member = {"member_id": self.name, "shards": self.shards, "last_heartbeat": self.last_heartbeat}
        return {**member, **asdict(self), "pipelines": list(self.pipelines)}


def nodes(store: Store, fleet: str, pipelines: Iterable[str]) -> list[NodeView]:
    """Return all sessions of a fleet in the store, by name and then age, with the leases of these pipelines."""
    held: dict[str | None, list[Numbered]] = defaultdict(list)
    for pipeline in pipelines:
        for row in store.find(Query(pipeline, run=None, statuses=(Status.ASSIGNED,))):
            held[row.owner].append((row.group, row.order.index))
    return nodes_holding(store, fleet, held_by_session(held))


def held_by_session(held: Mapping[str | None, Sequence[Numbered]]) -> HeldBySession:
    """Return how many partitions each session holds, and their numbers as ranges."""
    return {owner: (len(rows), shard_ranges(rows)) for owner, rows in held.items()}


def nodes_holding(store: Store, fleet: str, held: HeldBySession) -> list[NodeView]:
    """Return all sessions of a fleet in the store, by name and then age, with what they hold."""
    numbers = {owner: number for owner, (number, _) in held.items()}
    numbered = {owner: shards for owner, (_, shards) in held.items()}
    return node_views(store.find(Query(fleet)), numbers, store.now(), numbered)


def node_views(
    sessions: Iterable[Lease],
    held: Mapping[str | None, int],
    now: float,
    numbered: Mapping[str | None, str] | None = None,
) -> list[NodeView]:
    """Return these sessions by name and then age; `held` has the number of leases by session, `numbered` the shards."""
    views = [
        (_info(row), _view(row, _info(row), held.get(row.key, 0), (numbered or {}).get(row.key, ""), now))
        for row in sessions
    ]
    return [view for _, view in sorted(views, key=lambda pair: (pair[0].name, pair[0].last_heartbeat))]


def _view(row: Lease, info: NodeInfo, held: int, numbered: str, now: float) -> NodeView:
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
        leases=held,
        shards=numbered,
        measured=info.measured if isinstance(info.measured, dict) else {},
        file_digest=info.file_digest if isinstance(info.file_digest, str) else None,
    )


def _info(row: Lease) -> NodeInfo:
    try:
        return node_info(row)
    except (KeyError, TypeError):
        # Unreadable, or written by a later version; it is still a session that holds leases.
        return NodeInfo("?", row.key)


def counts(store: Store, pipeline: str, run: str = "") -> dict[str, int]:
    """Return the number of partitions for every status, including 0."""
    found = store.count(pipeline, run)
    return {status.value: found.get(status, 0) for status in Status}


def partition(lease: Lease) -> Row:
    """Return a partition's whole row as JSON, in a stable order."""
    return {**_source_coordination_item(lease), **_ownership(lease), **_progress(lease), **_history(lease)}


def _source_coordination_item(lease: Lease) -> Row:
    state, due_at = lease.progress.state, lease.ownership.due_at
    return {
        "sourceIdentifier": lease.pipeline,
        "sourcePartitionKey": lease.key,
        "partitionOwner": lease.owner,
        "partitionProgressState": None if state is None else json.dumps(plain(state)),
        "partitionOwnershipTimeout": time_text(due_at) if lease.status is Status.ASSIGNED else None,
        "sourcePartitionStatus": lease.status.value,
        "reOpenAt": time_text(due_at) if lease.status is Status.CLOSED else None,
        "closedCount": lease.history.closed_count,
    }


def _ownership(lease: Lease) -> Row:
    ownership, order = lease.ownership, lease.order
    waits = lease.status is Status.UNASSIGNED and ownership.due_at
    return {
        "run": lease.run,
        "group": lease.group,
        "spec": plain(lease.spec),
        "token": ownership.token,
        "version": ownership.version,
        "not_before": time_text(ownership.due_at) if waits else None,
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
        "created_at": time_text(past.created_at),
        "claimed_at": time_text(past.claimed_at),
        "started_at": time_text(past.started_at),
        "updated_at": time_text(past.updated_at),
        "completed_at": time_text(past.completed_at),
        "taken_over_from": taken_over_from(lease),
        "tenures": timeline(lease),
        "unreadable": lease.unreadable is not None,
    }


def time_text(seconds: float | None) -> str | None:
    """Return a time as text in UTC; None if there is none."""
    return None if seconds is None else timestamp(seconds)


def shards(leases: Iterable[Lease]) -> str:
    """Return the numbers of partitions as ranges, with the group's name in front if there are several groups."""
    return shard_ranges((lease.group, lease.order.index) for lease in leases)


def shard_ranges(numbered: Iterable[Numbered]) -> str:
    """Like `shards`, for groups and numbers instead of leases."""
    groups: dict[str, set[int]] = defaultdict(set)
    for group, index in numbered:
        if index is not None:
            groups[group].add(index)
    if len(groups) < 2:
        return "".join(map(ranges, groups.values()))
    return " ".join(f"{group}:{ranges(numbers)}" for group, numbers in sorted(groups.items()))


def ranges(numbers: Iterable[int]) -> str:
    """Return `0-3,7` for 0, 1, 2, 3 and 7."""
    spans: list[list[int]] = []
    for number in sorted(numbers):
        if spans and number == spans[-1][-1] + 1:
            spans[-1][1:] = [number]
        else:
            spans.append([number])
    return ",".join(map(_span, spans))


def _span(ends: Sequence[int]) -> str:
    return "-".join(map(str, ends))
