"""Bounded jobs: a run of a pipeline over a part of the past, by this node and any that joins it, beside the live one.

A run has partitions, positions and a lock of its own; it ends when all its partitions have. The node that holds the
lock drives the run; when it is gone, any other that works on the run drives it, or one that joins later.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace

from holdfast import assemble, service
from holdfast.config.models import Settings
from holdfast.errors import LeaseLost, Refused, UsageError
from holdfast.flow.loop import PipelineLoop
from holdfast.flow.node import Node
from holdfast.flow.pipeline import Pipeline
from holdfast.flow.run import ENDED, Run, Runs, RunStatus
from holdfast.leases.lease import Json, Partition
from holdfast.leases.store import Store
from holdfast.leases.world import HostClock, World, host_world
from holdfast.runs.lock import REFRESH_EVERY, RunLock


@dataclass(frozen=True)
class Job:
    """How a run is worked on: the parts of a pipeline, with the source and the roots of this job."""

    settings: Settings
    pipeline: str
    built: Pipeline
    generation: int


@dataclass(frozen=True)
class NewRun:
    """What a run is made of. `told` is enough for another node to make the same job."""

    partitions: Iterable[Partition]
    """Taken when the lock is held, once."""
    told: dict[str, Json]
    created_by: str


def begin(store: Store, job: Job, new: NewRun, emit: assemble.Emit) -> Run:
    """Make the run and work on it until it has ended or this process is asked to stop.

    Raises `Refused` if another run of the pipeline goes on.
    """
    return _carry_out(store, job, f"{new.told['kind']}-{uuid.uuid4().hex[:12]}", new, emit)


def join(store: Store, job: Job, run_id: str, emit: assemble.Emit) -> Run:
    """Work on a run that was made before, beside its other nodes or in their place."""
    return _carry_out(store, job, run_id, None, emit)


def _carry_out(store: Store, job: Job, run_id: str, new: NewRun | None, emit: assemble.Emit) -> Run:
    driver = _Driver(store, job, run_id, new, emit)
    with _opened(store, job, driver.world):
        return driver.drive()


@contextmanager
def _opened(store: Store, job: Job, world: World) -> Iterator[None]:
    with ExitStack() as closing:
        closing.callback(job.built.close)
        service.open_pipelines(job.settings, store, {job.pipeline: job.built}, world)
        yield


class _Driver:
    """This process at work on one run."""

    def __init__(self, store: Store, job: Job, run_id: str, new: NewRun | None, emit: assemble.Emit) -> None:
        self._store = store
        self._job = job
        self._id = run_id
        self._new = new
        self._clock = HostClock()
        self.world = host_world(emit, self._clock)
        # No share of the live pipeline: this node works for the run alone.
        self._session = assemble.new_session(job.settings, store, self.world, [])
        live = assemble.coordinator_of(job.settings, store, self.world, self._session, job.pipeline)
        self._runs = Runs(live)
        self._lock = RunLock(live, self._runs)
        self._drives = False
        self._look_at = 0.0

    def drive(self) -> Run:
        job = self._job
        parts = {job.pipeline: job.built}
        engine = assemble.engine_of(job.settings, parts, self.world.emit, self._store.max_receipt_bytes)
        limits = replace(assemble.loop_settings_of(job.settings, job.pipeline), generation=job.generation)
        coordinator = self._runs.coordinator(self._id)
        loop = PipelineLoop(coordinator, job.built, engine, settings=limits, may_claim=self._goes_on)
        self._node = Node(self._session, [loop], engine, self.world)
        with service.stopped_by_signals(self._node, self._clock):
            self._node.run()
        run = self._runs.aggregate(self._id)
        self._lock.release()
        return run

    def _goes_on(self) -> bool:
        """Asked on every pass: keeps the lock and the sums, and tells whether partitions may be claimed."""
        now = self._clock.monotonic()
        if now >= self._look_at:
            # The first time now and not before: the lock is held by this node's session, which begins with the node.
            self._look_at = now + REFRESH_EVERY
            self._look_after_lock()
        status = self._runs.aggregate(self._id).status
        if status in ENDED:
            self._node.stop()
        return status is RunStatus.RUNNING

    def _look_after_lock(self) -> None:
        if self._new is not None:
            self._create(self._new)
            self._new = None
        elif self._drives:
            self._keep()
        else:
            self._drive_if_nobody_does()

    def _create(self, new: NewRun) -> None:
        self._lock.acquire(self._id)
        self._drives = True
        self._runs.create(self._id, new.partitions, configuration=new.told, created_by=new.created_by)
        self._runs.start(self._id)

    def _keep(self) -> None:
        try:
            self._lock.refresh()
        except LeaseLost:
            self._drives = False  # whether the run goes on is in its row
            return
        self._set_going()

    def _drive_if_nobody_does(self) -> None:
        holder = self._lock.holder()
        if holder not in {None, self._id} and self._runs.show(str(holder)).status not in ENDED:
            return  # to take the lock now would end that run
        try:
            self._lock.acquire(self._id)
        except Refused:
            return
        self._drives = True
        self._set_going()

    def _set_going(self) -> None:
        """Start a run that was made, and fail one that was left half made; looked at again while this node drives."""
        status = self._runs.show(self._id).status
        if status is RunStatus.READY:
            self._runs.start(self._id)
        elif status is RunStatus.INITIALIZING:
            self._runs.fail(self._id, "its node died while the run was made")


def unended(runs: Runs, run_id: str) -> Run:
    """That run. Raises `UsageError` if it has ended, `PartitionNotFound` if there is none."""
    run = runs.show(run_id)
    if run.status in ENDED:
        raise UsageError(f"run {run_id} is {run.status.value}; there is nothing left to do")
    return run
