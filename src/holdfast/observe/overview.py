"""Everything about a fleet at a glance, as JSON: pipelines, nodes, runs and failures.

`holdfast status`, pages and REST show the same. The store sums partitions up where it can (`holdfast.leases.sums`), so
that a look costs about the same with ten partitions and with ten thousand. What nobody has measured is None, never 0.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from holdfast.flow.run import ENDED, Run, run_of, runs_of
from holdfast.leases.controls import Controls
from holdfast.leases.lease import Counts, Lease, Status
from holdfast.leases.query import Query
from holdfast.leases.store import Store
from holdfast.leases.sums import PartitionSum
from holdfast.leases.sums import sums as sums_in
from holdfast.observe.insights import NodeView, Row, node_views, time_text

SumPartitions = Callable[[str, str], Sequence[PartitionSum]]
"""Returns sums over the partitions of a pipeline and run."""
MOST_FAILURES = 20
"""Failed partitions that are shown of each pipeline and run."""
MOST_ENDED_RUNS = 5
"""Runs that have ended and are shown of each pipeline, the latest ones."""


@dataclass(frozen=True, slots=True)
class _Look:
    """One pipeline as the store has it at this moment."""

    name: str
    identifier: str
    sums: Sequence[PartitionSum]
    """Of the live partitions."""
    runs: Sequence[Run]
    held: Counter[str | None]
    """Leases by session, those of runs included."""
    failures: Sequence[Lease]

    @property
    def partitions(self) -> dict[str, int]:
        found = {status.value: 0 for status in Status}
        for part in self.sums:
            found[part.status.value] += part.partitions
        return found

    @property
    def counts(self) -> Counts:
        return sum((part.counts for part in self.sums), Counts())


def overview(store: Store, fleet: str, pipelines: Mapping[str, str], sums: SumPartitions | None = None) -> Row:
    """Return the state of a fleet. `pipelines` maps names to identifiers in the store. Raises `StoreUnavailable`.

    `sums` returns sums that were made before; without it the store makes them.
    """
    now = store.now()
    summed = sums or partial(sums_in, store)
    looks = [_look(store, summed, name, identifier) for name, identifier in pipelines.items()]
    held = sum((look.held for look in looks), Counter[str | None]())
    nodes = node_views(store.find(Query(fleet)), held, now)
    controls = Controls(store, str, fleet)
    paused, drained = controls.paused(), controls.drained()
    return {
        "at": time_text(now),
        "pipelines": [_pipeline(look, nodes, paused=look.identifier in paused) for look in looks],
        "nodes": [{**node.row(), "drained": node.name in drained} for node in nodes if not node.ended],
        "runs": [_run(look.name, run) for look in looks for run in look.runs],
        "failures": [_failure(look.name, row) for look in looks for row in look.failures],
    }


def _look(store: Store, sums: SumPartitions, name: str, identifier: str) -> _Look:
    live = sums(identifier, "")
    runs = _shown_runs(store, identifier)
    of_runs = {run.id: sums(identifier, run.id) for run in runs if run.status not in ENDED}
    every = [*live, *(part for parts in of_runs.values() for part in parts)]
    held = Counter[str | None]()
    for part in every:
        if part.status is Status.ASSIGNED:
            held[part.session] += part.partitions
    failed = [run for run, parts in {"": live, **of_runs}.items() if _any_failed(parts)]
    failures = [row for run in failed for row in _failures(store, identifier, run)]
    return _Look(name, identifier, live, runs, held, failures)


def _shown_runs(store: Store, identifier: str) -> list[Run]:
    rows = store.find(Query(runs_of(identifier)))
    found = sorted((run_of(row) for row in rows if row.unreadable is None), key=lambda run: -(run.created_at or 0.0))
    ended = [run.id for run in found if run.status in ENDED][MOST_ENDED_RUNS:]
    return [run for run in found if run.id not in ended]


def _any_failed(parts: Iterable[PartitionSum]) -> bool:
    return any(part.status is Status.FAILED for part in parts)


def _failures(store: Store, identifier: str, run: str) -> list[Lease]:
    return store.find(Query(identifier, run, (Status.FAILED,), limit=MOST_FAILURES))


def _pipeline(look: _Look, nodes: Iterable[NodeView], *, paused: bool) -> Row:
    alive = [node for node in nodes if node.alive and look.identifier in node.pipelines]
    measured = [node.measured.get(look.identifier, {}) for node in alive]
    return {
        "pipeline": look.name,
        "state": "paused" if paused else "active",
        "nodes": len(alive),
        "partitions": look.partitions,
        "counts": {name: number for name, number in asdict(look.counts).items() if name != "dropped"},
        "lag_records": _total(measured, "lag_records"),
        "lag_seconds": max(_numbers(measured, "lag_seconds"), default=None),
        "records_per_second": _total(measured, "records_per_second"),
    }


def _total(measured: Iterable[Mapping[str, Any]], name: str) -> Any:
    found = _numbers(measured, name)
    return sum(found) if found else None


def _numbers(measured: Iterable[Mapping[str, Any]], name: str) -> list[Any]:
    return [of_node[name] for of_node in measured if of_node.get(name) is not None]


def _run(pipeline: str, run: Run) -> Row:
    groups = run.groups.values()
    return {
        "pipeline": pipeline,
        "run": run.id,
        "status": run.status.value,
        "phase": run.phase,
        "partitions": sum(group.partitions for group in groups),
        "completed": sum(group.completed for group in groups),
        "failed_partitions": sum(group.failed_partitions for group in groups),
        "records": run.counts.processed,
        "total": run.total,
        "records_per_second": run.rate,
        "seconds_left": None if run.status in ENDED else run.seconds_left,
        "created_at": time_text(run.created_at),
        "completed_at": time_text(run.completed_at),
        "error": run.error,
    }


def _failure(pipeline: str, row: Lease) -> Row:
    past = row.history
    unreadable = "its row cannot be read" if row.unreadable is not None else None
    return {
        "pipeline": pipeline,
        "run": row.run,
        "key": row.key,
        "error": unreadable or past.halt_reason or past.last_error,
        "attempts": past.attempts,
        "takeovers": past.takeovers,
        "failed_at": time_text(past.completed_at or past.updated_at),
    }
