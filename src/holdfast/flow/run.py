"""A run: one bounded pass of a pipeline with a status of its own, such as a reindex job or a backfill.

A run's row is kept beside the pipeline's partitions and is changed by version. Its partitions carry the run's id, so
that they share neither keys nor positions with the live pipeline or another run. Partitions are claimed only while the
run is RUNNING.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum

from holdfast.leases.lease import Counts, Json, Lease, Ownership, Progress, Status
from holdfast.leases.sums import PartitionSum


class RunStatus(StrEnum):
    """The state of a run."""

    INITIALIZING = "INITIALIZING"
    """Its partitions are being created."""
    READY = "READY"
    """All its partitions exist; none is claimed yet."""
    RUNNING = "RUNNING"
    """Nodes claim its partitions."""
    STOPPING = "STOPPING"
    """A person has stopped it; its nodes are handing their partitions back."""
    STOPPED = "STOPPED"
    """The run was stopped, and no node holds a partition of it."""
    COMPLETED = "COMPLETED"
    """All its partitions are COMPLETED."""
    COMPLETED_WITH_ERRORS = "COMPLETED_WITH_ERRORS"
    """All its partitions are finished, and some of them, but not all, are FAILED."""
    FAILED = "FAILED"
    """All its partitions are FAILED, or the run itself has failed: it could not be created, or it lost its lock."""


ENDED = frozenset((RunStatus.STOPPED, RunStatus.COMPLETED, RunStatus.COMPLETED_WITH_ERRORS, RunStatus.FAILED))

NEXT: Mapping[RunStatus, frozenset[RunStatus]] = {
    RunStatus.READY: frozenset((RunStatus.INITIALIZING, RunStatus.STOPPED)),
    RunStatus.RUNNING: frozenset((RunStatus.READY,)),
    RunStatus.STOPPING: frozenset((RunStatus.INITIALIZING, RunStatus.RUNNING, RunStatus.READY)),
    RunStatus.STOPPED: frozenset((RunStatus.STOPPING,)),
    RunStatus.COMPLETED: frozenset((RunStatus.RUNNING,)),
    RunStatus.COMPLETED_WITH_ERRORS: frozenset((RunStatus.RUNNING,)),
    RunStatus.FAILED: frozenset((RunStatus.INITIALIZING, RunStatus.READY, RunStatus.RUNNING, RunStatus.STOPPING)),
}
"""By status, those from which a run may come to it."""


@dataclass(frozen=True, slots=True)
class GroupStats:
    """Progress of the partitions of one group."""

    partitions: int = 0
    total: int = 0
    completed: int = 0
    failed_partitions: int = 0
    processed: int = 0
    succeeded: int = 0
    failed: int = 0


@dataclass(frozen=True, slots=True)
class NodeStats:
    """Progress of the partitions that one session holds or has finished."""

    held: int = 0
    completed: int = 0
    failed_partitions: int = 0
    processed: int = 0
    failed: int = 0


@dataclass(frozen=True, slots=True)
class Run:
    """A run as stored in its row. Times are by the store's clock."""

    id: str
    status: RunStatus
    configuration: Json = None
    created_by: str = ""
    groups: Mapping[str, GroupStats] = field(default_factory=dict)
    created_at: float | None = None
    started_at: float | None = None
    completed_at: float | None = None
    updated_at: float | None = None
    error: str | None = None
    phase: str = ""
    """Name of the current phase; empty in the first one."""
    state: Json = None
    """State of the run's driver, see `holdfast.flow.run_driver`."""
    driver_token: int = 0
    """Token of the run's lock under which a driver last wrote; a driver with an older one cannot write any more."""
    locked: bool = False
    """Whether it has had all of its locks since it was created or resumed: until it ends, no other run takes them."""
    throttle: float | None = None
    """Records per second that all nodes together may read; None: no limit."""
    nodes: Mapping[str, NodeStats] = field(default_factory=dict)
    """Progress by session."""
    rate: float | None = None
    """Records per second of the last minute or so, by the driver."""
    units_left: int | None = None
    """Work units of the partitions that are not finished."""
    unlisted: bool = False
    """Whether the partitions of the first phase are not listed yet, see `holdfast.flow.partition_list`."""
    pending: Json = None
    """The list of partitions whose rows are being added; None if all rows exist."""

    @property
    def total(self) -> int:
        """Records that the run expects."""
        return sum(group.total for group in self.groups.values())

    @property
    def counts(self) -> Counts:
        groups = self.groups.values()
        return Counts(
            sum(group.processed for group in groups),
            sum(group.succeeded for group in groups),
            sum(group.failed for group in groups),
        )

    @property
    def seconds_left(self) -> float | None:
        """Estimated seconds until all expected records are processed; None if there is no rate yet."""
        return max(0, self.total - self.counts.processed) / self.rate if self.rate else None


_OPTIONAL = {
    name: default
    for name, default in asdict(Run("", RunStatus.READY)).items()
    if name not in ("id", "status", "configuration", "created_by", "groups", "error") and not name.endswith("_at")
}
"""Stored fields that nodes of earlier versions do not know, with their defaults: left out while they are not used."""


def runs_of(pipeline: str) -> str:
    """The pipeline name under which the rows of a pipeline's runs are kept."""
    return f"{pipeline}/$runs"


def new_row(pipeline: str, run: Run, write_id: str) -> Lease:
    """The row of a new run of that pipeline. It is never due, so that no node claims it."""
    never_due = Ownership(Status.UNASSIGNED, due_at=None, write_id=write_id)
    return Lease(runs_of(pipeline), run.id, ownership=never_due, progress=Progress(state=_state_of(run)))


def with_run(row: Lease, run: Run) -> Lease:
    """The row of a run that has changed."""
    return replace(row, progress=replace(row.progress, state=_state_of(run)))


def is_readable(row: Lease) -> bool:
    """Whether this version can read the run of the row: one of a later version may have another status."""
    state = row.progress.state
    return row.unreadable is None and isinstance(state, dict) and state.get("status") in set(RunStatus)


def run_of(row: Lease) -> Run:
    """The run of a row. Fields of a later version are ignored."""
    state = {name: value for name, value in row.progress.state.items() if name in Run.__dataclass_fields__}
    groups = {name: GroupStats(**stats) for name, stats in state["groups"].items()}
    nodes = {name: NodeStats(**stats) for name, stats in state.get("nodes", {}).items()}
    return Run(**{**state, "status": RunStatus(state["status"]), "groups": groups, "nodes": nodes})


def _state_of(run: Run) -> dict[str, Json]:
    state = asdict(run)
    return {name: value for name, value in state.items() if name not in _OPTIONAL or value != _OPTIONAL[name]}


def by_group(sums: Iterable[PartitionSum]) -> dict[str, GroupStats]:
    """Progress of each group."""
    groups: dict[str, GroupStats] = {}
    for found in sums:
        so_far, counts = groups.get(found.group, GroupStats()), found.counts
        groups[found.group] = GroupStats(
            so_far.partitions + found.partitions,
            so_far.total + found.expected,
            so_far.completed + found.partitions * (found.status is Status.COMPLETED),
            so_far.failed_partitions + found.partitions * (found.status is Status.FAILED),
            so_far.processed + counts.processed,
            so_far.succeeded + counts.succeeded,
            so_far.failed + counts.failed + counts.dead,
        )
    return groups


def by_node(sums: Iterable[PartitionSum]) -> dict[str, NodeStats]:
    """Progress of each session."""
    nodes: dict[str, NodeStats] = {}
    for found in sums:
        if found.session is None:
            continue
        so_far, counts = nodes.get(found.session, NodeStats()), found.counts
        nodes[found.session] = NodeStats(
            so_far.held + found.partitions * (found.status is Status.ASSIGNED),
            so_far.completed + found.partitions * (found.status is Status.COMPLETED),
            so_far.failed_partitions + found.partitions * (found.status is Status.FAILED),
            so_far.processed + counts.processed,
            so_far.failed + counts.failed + counts.dead,
        )
    return nodes
