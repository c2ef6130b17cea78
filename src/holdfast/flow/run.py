"""A run: one bounded pass of a pipeline with a status of its own, such as a reindex job or a backfill.

A run's row is kept beside the pipeline's partitions and is changed by version; its partitions carry the run's id, so
that they share neither keys nor positions with the live pipeline or another run. Partitions are claimed only while the
run is RUNNING. `RunLock` decides which run may continue.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from typing import Any

from holdfast.errors import Refused, UsageError
from holdfast.leases import transitions
from holdfast.leases.coordinator import Coordinator
from holdfast.leases.lease import Counts, Json, Lease, Ownership, Partition, Progress, Status
from holdfast.leases.operator import Operator
from holdfast.leases.store import Swap
from holdfast.leases.transitions import claimable, stamped
from holdfast.leases.writes import ensure_rows

MAX_PARTITIONS_PER_GROUP = 10_000
MAX_PARTITIONS = 50_000


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

_NEXT = {
    RunStatus.READY: {RunStatus.INITIALIZING},
    RunStatus.RUNNING: {RunStatus.READY},
    RunStatus.STOPPING: {RunStatus.RUNNING, RunStatus.READY},
    RunStatus.STOPPED: {RunStatus.STOPPING},
    RunStatus.COMPLETED: {RunStatus.RUNNING},
    RunStatus.COMPLETED_WITH_ERRORS: {RunStatus.RUNNING},
    RunStatus.FAILED: {RunStatus.INITIALIZING, RunStatus.READY, RunStatus.RUNNING, RunStatus.STOPPING},
}


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
    """Token of the run's lock under which a driver last wrote; a driver with another one cannot write any more."""
    throttle: float | None = None
    """Records per second that all nodes together may read; None: no limit."""

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


_OPTIONAL: Mapping[str, Json] = {"phase": "", "state": None, "driver_token": 0, "throttle": None}
"""Stored fields that nodes of earlier versions do not know, with their defaults."""


def runs_of(pipeline: str) -> str:
    """The pipeline name under which the rows of a pipeline's runs are kept."""
    return f"{pipeline}/$runs"


class Runs:
    """The runs of one pipeline. Raises `StoreUnavailable` at once; every call may be repeated."""

    def __init__(self, coordinator: Coordinator) -> None:
        """`coordinator` is that of the live pipeline; `Runs.coordinator` makes one for each run."""
        self._live = coordinator
        self._rows = Operator(coordinator.store, coordinator.world.new_id, runs_of(coordinator.pipeline))

    def create(self, run_id: str, partitions: Iterable[Partition], *, configuration: Json, created_by: str) -> Run:
        """Create a READY run with these partitions. Raises `Refused` if there are too many; the run is then FAILED."""
        now = self._live.now()
        run = Run(run_id, RunStatus.INITIALIZING, configuration, created_by, created_at=now, updated_at=now)
        self._add(run)
        groups: Counter[str] = Counter()
        expected: Counter[str] = Counter()
        try:
            self.coordinator(run_id).create(_bounded(partitions, groups, expected))
        except Refused as refused:
            self.fail(run_id, str(refused))
            raise
        stats = {group: GroupStats(number, expected[group]) for group, number in groups.items()}
        return self._change(run_id, RunStatus.READY, groups=stats)

    def start(self, run_id: str) -> Run:
        """Set a READY run to RUNNING; from now on its partitions are claimed."""
        return self._change(run_id, RunStatus.RUNNING, started_at=self._live.now())

    def stop(self, run_id: str) -> Run:
        """Stop the run: every node hands back its partitions in its next pass."""
        return self._change(run_id, RunStatus.STOPPING)

    def fail(self, run_id: str, error: str) -> Run:
        """End the run by an error. A run that has ended already stays as it is."""
        if (run := self.show(run_id)).status in ENDED:
            return run
        return self._change(run_id, RunStatus.FAILED, error=error, completed_at=self._live.now())

    def show(self, run_id: str) -> Run:
        """The run as it was last aggregated. Raises `PartitionNotFound`."""
        return _run(self._rows.show(run_id))

    def list(self) -> Iterator[Run]:
        return (_run(row) for row in self._rows.rows())

    def coordinator(self, run_id: str) -> Coordinator:
        """Leases of that run's partitions for this node."""
        live = self._live
        return Coordinator(live.store, live.world, live.session, live.pipeline, run=run_id, policy=live.policy)

    def aggregate(self, run_id: str) -> Run:
        """Sum the counts of the partitions, and end the run when all partitions are finished.

        May be called by several nodes at a time. If the status of the run changes meanwhile, the run is not ended.
        """
        run = self.show(run_id)
        if run.status in ENDED:
            return run
        if run.status is RunStatus.STOPPING:
            self._free_orphans(run_id)
        leases = list(self._partitions(run_id).rows())
        groups, ending = _summed(leases, run.groups), _ending(run.status, leases)

        def change(row: Lease, now: float) -> Lease:
            current = _run(row)
            if current.status in ENDED:
                return row
            if ending is None or current.status is not run.status:
                return _with_run(row, replace(current, groups=groups, updated_at=now))
            return _with_run(row, replace(current, status=ending, groups=groups, updated_at=now, completed_at=now))

        return _run(self._rows.change(run_id, change))

    def is_running(self, run_id: str) -> bool:
        """Whether partitions of the run may be claimed."""
        return self.show(run_id).status is RunStatus.RUNNING

    def _partitions(self, run_id: str) -> Operator:
        return Operator(self._live.store, self._live.world.new_id, self._live.pipeline, run_id)

    def _free_orphans(self, run_id: str) -> None:
        """Free partitions whose owners are gone: the run waits for them, and no node claims them while it stops."""
        leases = self.coordinator(run_id)
        leases.sweep()
        now, new_id = leases.now(), self._live.world.new_id
        orphans = [row for row in self._partitions(run_id).rows((Status.ASSIGNED,)) if claimable(row, now)]
        if orphans:
            # A partition that changes meanwhile is freed on the next pass.
            self._live.store.swap(
                [Swap(row.version, stamped(row, transitions.release(row, now), new_id())) for row in orphans]
            )

    def _add(self, run: Run) -> None:
        never_due = Ownership(Status.UNASSIGNED, due_at=None, write_id=self._live.world.new_id())
        row = Lease(runs_of(self._live.pipeline), run.id, ownership=never_due, progress=Progress(state=_state_of(run)))
        if not ensure_rows(self._live.store, self._live.world, lambda: [row]):
            raise UsageError(f"run {run.id!r} exists already")

    def _change(self, run_id: str, status: RunStatus, **changes: Any) -> Run:
        def change(row: Lease, now: float) -> Lease:
            run = _run(row)
            if status is not run.status and run.status not in _NEXT[status]:
                raise UsageError(f"run {run_id!r} is {run.status} and cannot become {status}")
            return _with_run(row, replace(run, status=status, updated_at=now, **changes))

        return _run(self._rows.change(run_id, change))


def _bounded(partitions: Iterable[Partition], groups: Counter[str], expected: Counter[str]) -> Iterator[Partition]:
    for partition in partitions:
        groups[partition.group] += 1
        expected[partition.group] += partition.estimated_count or 0
        if groups[partition.group] > MAX_PARTITIONS_PER_GROUP:
            raise Refused(
                f"group {partition.group!r} has more than {MAX_PARTITIONS_PER_GROUP} partitions; make them larger"
            )
        if groups.total() > MAX_PARTITIONS:
            raise Refused(f"the run has more than {MAX_PARTITIONS} partitions; make them larger")
        yield partition


def _summed(leases: list[Lease], before: Mapping[str, GroupStats]) -> dict[str, GroupStats]:
    groups = {name: GroupStats(total=stats.total) for name, stats in before.items()}
    for lease in leases:
        so_far, counts = groups.get(lease.group, GroupStats()), lease.progress.counts
        groups[lease.group] = GroupStats(
            so_far.partitions + 1,
            so_far.total,
            so_far.completed + (lease.status is Status.COMPLETED),
            so_far.failed_partitions + (lease.status is Status.FAILED),
            so_far.processed + counts.processed,
            so_far.succeeded + counts.succeeded,
            so_far.failed + counts.failed + counts.dead,
        )
    return groups


def _ending(status: RunStatus, leases: list[Lease]) -> RunStatus | None:
    """The final status of the run; None if it continues."""
    states = Counter(lease.status for lease in leases)
    if status is RunStatus.STOPPING:
        return None if states[Status.ASSIGNED] else RunStatus.STOPPED
    if status is not RunStatus.RUNNING or states[Status.COMPLETED] + states[Status.FAILED] < len(leases):
        return None
    if leases and states[Status.FAILED] == len(leases):
        return RunStatus.FAILED
    return RunStatus.COMPLETED_WITH_ERRORS if states[Status.FAILED] else RunStatus.COMPLETED


def _with_run(row: Lease, run: Run) -> Lease:
    return replace(row, progress=replace(row.progress, state=_state_of(run)))


def _state_of(run: Run) -> dict[str, Json]:
    """The run as JSON; fields that nodes of earlier versions do not know are left out while they are not used."""
    state = asdict(run)
    return {name: value for name, value in state.items() if name not in _OPTIONAL or value != _OPTIONAL[name]}


def _run(row: Lease) -> Run:
    state = {name: value for name, value in row.progress.state.items() if name in Run.__dataclass_fields__}
    groups = {name: GroupStats(**stats) for name, stats in state["groups"].items()}
    return Run(**{**state, "status": RunStatus(state["status"]), "groups": groups})
