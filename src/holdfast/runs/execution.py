"""Carries out runs: bounded passes over past records, beside the live pipeline, by this node and any that joins.

A run has its own partitions, positions and lock, and ends when all its partitions have ended. The node that holds the
lock drives the run. When that node is gone, another node that works on the run, or joins later, drives it.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace

from holdfast.assemble import Emit, StoredPipeline, coordinator_of, engine_of, loop_settings_of, new_session
from holdfast.errors import LeaseLost, Refused, UsageError
from holdfast.flow.loop import LoopSettings, PipelineLoop
from holdfast.flow.node import Node
from holdfast.flow.pipeline import Pipeline
from holdfast.flow.run import ENDED, Run, Runs, RunStatus
from holdfast.flow.run_driver import RunDriver
from holdfast.leases.lease import Json, Partition
from holdfast.leases.world import HostClock, World, host_world
from holdfast.runs.lock import REFRESH_EVERY, RunLock
from holdfast.service import open_pipelines, stopped_by_signals


@dataclass(frozen=True)
class RunPipeline:
    """The pipeline of a run: with the source and the roots that the run uses, and its generation."""

    stored: StoredPipeline
    built: Pipeline
    generation: int
    any_letters: bool = False
    """Whether any number of its records may become dead letters: a redrive sends records that failed before."""
    driver: RunDriver | None = None
    """Decides how the run begins, goes on and ends; None for runs that the command which begins them drives itself."""

    def loop_settings(self) -> LoopSettings:
        settings = loop_settings_of(self.stored.settings, self.stored.name)
        tolerance = None if self.any_letters else settings.tolerance
        return replace(settings, generation=self.generation, tolerance=tolerance)


@dataclass(frozen=True)
class NewRun:
    """The data from which a run is created. Another node builds the same `RunPipeline` from `configuration`."""

    partitions: Iterable[Partition]
    """Iterated once, while the lock is held."""
    configuration: dict[str, Json]
    created_by: str


def begin(pipeline: RunPipeline, new: NewRun, emit: Emit) -> Run:
    """Create the run and work on it until it has ended or this process is asked to stop.

    Raises `Refused` if another run of the pipeline is going on.
    """
    return _carry_out(pipeline, f"{new.configuration['kind']}-{uuid.uuid4().hex[:12]}", new, emit)


def join(pipeline: RunPipeline, run_id: str, emit: Emit) -> Run:
    """Work on an existing run, beside its other nodes or instead of them."""
    return _carry_out(pipeline, run_id, None, emit)


def _carry_out(pipeline: RunPipeline, run_id: str, new: NewRun | None, emit: Emit) -> Run:
    driver = _Driver(pipeline, run_id, new, emit)
    with _opened(pipeline, driver.world):
        return driver.drive()


@contextmanager
def _opened(pipeline: RunPipeline, world: World) -> Iterator[None]:
    stored = pipeline.stored
    with ExitStack() as closing:
        closing.callback(pipeline.built.close)
        open_pipelines(stored.settings, stored.store, {stored.name: pipeline.built}, world)
        yield


class _Driver:
    """This process at work on one run."""

    def __init__(self, pipeline: RunPipeline, run_id: str, new: NewRun | None, emit: Emit) -> None:
        self._pipeline = pipeline
        self._id = run_id
        self._new = new
        self._clock = HostClock()
        self.world = host_world(emit, self._clock)
        stored = pipeline.stored
        # No share of the live pipeline: this node works for the run alone.
        self._session = new_session(stored.settings, stored.store, self.world, pipelines=())
        live = coordinator_of(stored, self.world, self._session)
        self._runs = Runs(live)
        self._lock = RunLock(live, self._runs)
        self._drives = False
        self._check_at = 0.0

    def drive(self) -> Run:
        stored, built = self._pipeline.stored, self._pipeline.built
        engine = engine_of(stored.settings, {stored.name: built}, self.world.emit, stored.store.max_receipt_bytes)
        limits = self._pipeline.loop_settings()
        coordinator = self._runs.coordinator(self._id)
        loop = PipelineLoop(coordinator, built, engine, settings=limits, may_claim=self._goes_on)
        self._node = Node(self._session, [loop], engine, self.world)
        with stopped_by_signals(self._node, self._clock):
            self._node.run()
        run = self._runs.aggregate(self._id)
        self._lock.release()
        return run

    def _goes_on(self) -> bool:
        """Called on every pass: keeps the lock and the sums, and returns whether partitions may be claimed."""
        now = self._clock.monotonic()
        if now >= self._check_at:
            # Not earlier: the lock belongs to this node's session, which starts with the node.
            self._check_at = now + REFRESH_EVERY
            self._check_lock()
        status = self._runs.aggregate(self._id).status
        if status in ENDED:
            self._node.stop()
        return status is RunStatus.RUNNING

    def _check_lock(self) -> None:
        if self._new is not None:
            self._create(self._new)
            self._new = None
        elif self._drives:
            self._keep()
        else:
            self._drive_if_idle()

    def _create(self, new: NewRun) -> None:
        self._lock.acquire(self._id)
        self._drives = True
        self._runs.create(self._id, new.partitions, configuration=new.configuration, created_by=new.created_by)
        self._runs.start(self._id)

    def _keep(self) -> None:
        try:
            self._lock.refresh()
        except LeaseLost:
            self._drives = False  # the run's row says whether it continues
            return
        self._start_if_ready()

    def _drive_if_idle(self) -> None:
        holder = self._lock.holder()
        if holder not in {None, self._id} and self._runs.show(str(holder)).status not in ENDED:
            return  # taking the lock now would end that run
        try:
            self._lock.acquire(self._id)
        except Refused:
            return
        self._drives = True
        self._start_if_ready()

    def _start_if_ready(self) -> None:
        """Start a run that is ready, and fail one whose creation was interrupted."""
        status = self._runs.show(self._id).status
        if status is RunStatus.READY:
            self._runs.start(self._id)
        elif status is RunStatus.INITIALIZING:
            self._runs.fail(self._id, "its node died while the run was created")


def unfinished(runs: Runs, run_id: str) -> Run:
    """Return that run. Raises `UsageError` if it has ended, `PartitionNotFound` if it does not exist."""
    run = runs.show(run_id)
    if run.status in ENDED:
        raise UsageError(f"run {run_id} is {run.status.value}; there is nothing left to do")
    return run
