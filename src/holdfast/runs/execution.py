"""Carries out runs: bounded passes over past records, beside the live pipeline, by this node and any that joins.

A run has its own partitions, positions and lock, and ends when all its partitions have ended. The node that holds the
lock drives the run. When that node is gone, another node that works on the run, or joins later, drives it.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import NamedTuple

from holdfast.assemble import Emit, StoredPipeline, coordinator_of, loop_settings_of, new_session
from holdfast.config.models import RunSettings
from holdfast.engines import engine_of
from holdfast.errors import Interrupted, PartitionNotFound, UsageError
from holdfast.flow.engine import Engine
from holdfast.flow.holdings import Pace
from holdfast.flow.loop import LoopSettings, PipelineLoop
from holdfast.flow.node import Companion, Node
from holdfast.flow.partition_list import PartitionLimits
from holdfast.flow.pipeline import Pipeline
from holdfast.flow.run import ENDED, Run, RunStatus
from holdfast.flow.run_driver import RunDriver
from holdfast.flow.runs import Runs
from holdfast.leases.coordinator import Coordinator
from holdfast.leases.lease import Json
from holdfast.leases.world import HostClock, World, host_world
from holdfast.runs.driving import Driving
from holdfast.runs.lock import LockTiming
from holdfast.service import open_pipelines, permission_of, stopped_by_signals


@dataclass(frozen=True)
class RunPipeline:
    """The pipeline of a run: with the source and the roots that the run uses, and its generation."""

    stored: StoredPipeline
    built: Pipeline
    generation: int
    driver: RunDriver
    any_letters: bool = False
    """Whether any number of its records may become dead letters: a redrive sends records that failed before."""
    one_node: bool = False
    """Whether only the node that drives the run works on its partitions."""

    @property
    def lock_timing(self) -> LockTiming:
        chosen = self.stored.configured.runs
        return LockTiming(chosen.lock_timeout, chosen.lock_refresh)

    @property
    def limits(self) -> PartitionLimits:
        return partition_limits(self.stored.configured.runs)

    def loop_settings(self) -> LoopSettings:
        settings = loop_settings_of(self.stored.settings, self.stored.name)
        tolerance = None if self.any_letters else settings.tolerance
        return replace(settings, generation=self.generation, tolerance=tolerance)


def partition_limits(chosen: RunSettings) -> PartitionLimits:
    return PartitionLimits(chosen.max_partitions_per_group, chosen.max_partitions)


GUIDE = 4
"""A node holds at most 1 / GUIDE of its share of the partitions that are left, so that all nodes end together."""
GUIDE_SECONDS = 8.0
"""Seconds of work that a node holds at most, at the rate of the run so far."""
LEAST_LEASES = 4
"""Partitions that a node holds however few are left: it reads several at a time."""


class RunPreview(NamedTuple):
    """What a run would do if it were begun now."""

    configuration: dict[str, Json]
    partitions: int
    records: int
    """At most: offsets without a record are counted, too."""

    def row(self) -> dict[str, Json]:
        """Return the preview as JSON."""
        return {**self.configuration, "partitions": self.partitions, "records": self.records}


class NewRun(NamedTuple):
    """The data from which a run is created. Another node builds the same `RunPipeline` from `configuration`."""

    configuration: dict[str, Json]
    created_by: str
    detached: bool = False
    """Whether the run is left to the nodes that run the pipeline."""

    def new_id(self) -> str:
        return f"{self.configuration['kind']}-{uuid.uuid4().hex[:12]}"


def begin(pipeline: RunPipeline, new: NewRun, emit: Emit) -> Run:
    """Create the run and work on it until it has ended or this process is asked to stop; a detached run is only added.

    Raises `Refused` if another run of the pipeline is going on; a detached run waits until that one has ended.
    """
    if new.detached:
        pipeline.built.close()
        runs = pipeline.stored.runs(emit)
        return runs.add(new.new_id(), configuration=new.configuration, created_by=new.created_by)
    return _carry_out(pipeline, new.new_id(), new, emit)


def join(pipeline: RunPipeline, run_id: str, emit: Emit) -> Run:
    """Work on an existing run, beside its other nodes or instead of them."""
    return _carry_out(pipeline, run_id, None, emit)


def _carry_out(pipeline: RunPipeline, run_id: str, new: NewRun | None, emit: Emit) -> Run:
    clock = HostClock()
    world = host_world(emit, clock)
    stored, built = pipeline.stored, pipeline.built
    with _opened(pipeline, world):
        # No share of the live pipeline: this node works for the run alone.
        session = new_session(stored.settings, stored.store, world, pipelines=())
        live = coordinator_of(stored, world, session)
        engine = engine_of(stored.settings, {stored.name: built}, world.emit, stored.store.max_receipt_bytes)
        work = RunCommand(live, run_id, pipeline, engine)
        work.new = new
        node = Node(session, (), engine, world, companions=[work])
        with stopped_by_signals(node, clock):
            node.run()
        return Runs(live).show(run_id)


@contextmanager
def _opened(pipeline: RunPipeline, world: World) -> Iterator[None]:
    stored = pipeline.stored
    with ExitStack() as closing:
        closing.callback(pipeline.built.close)
        open_pipelines(stored.settings, stored.store, {stored.name: pipeline.built}, world)
        yield


def most_leases(run: Run, nodes: int, rate: float) -> int:
    """How many partitions a node holds at most, when `nodes` work on the run and this one reads `rate` records/s.

    Each node takes a part of what is left, and no more than it reads in a few seconds: then no node is left with much
    work when the others have none. The largest partitions are taken first, so that those that are left at the end are
    small.
    """
    groups = run.groups.values()
    left = sum(group.partitions - group.completed - group.failed_partitions for group in groups)
    share = left // (GUIDE * nodes) if nodes > 1 else left
    expected = max(0, run.total - run.counts.processed) / left if left else 0
    soon = int(GUIDE_SECONDS * rate / expected) if rate and expected else share
    return max(LEAST_LEASES, min(share, soon))


class RunWork(Companion):
    """One run on this node: the loop over its partitions, and a thread that drives it if this node holds its locks."""

    def __init__(self, live: Coordinator, run_id: str, pipeline: RunPipeline, engine: Engine) -> None:
        """`live` has the leases of the live pipeline."""
        self.run_id = run_id
        self._world = live.world
        self._runs = runs = Runs(live)
        self._permitted = permission_of(live)
        self._idle = False
        """Whether this node must not work on the pipeline: another one drives the run."""
        self._pace = Pace(live.world.clock)
        self._one_node = pipeline.one_node
        self.driving = Driving(live, run_id, pipeline.driver, pipeline.lock_timing, pipeline.limits)
        self.loop = PipelineLoop(
            runs.coordinator(run_id),
            pipeline.built,
            engine,
            settings=replace(pipeline.loop_settings(), pace=self._pace),
            may_claim=self._may_claim,
        )
        self.ended = False
        """Whether the run has ended; nothing is left to do for it."""
        self._stepping = False
        self._next_step = 0.0
        self._claimable = False
        """Whether the last step has seen that partitions may be claimed, and the loop has not looked since."""

    def _may_claim(self) -> bool:
        """Called on every pass: read the run's row, which also limits how fast the run reads."""
        try:
            run = self._runs.show(self.run_id)
        except PartitionNotFound:
            return False  # its row was removed; the next step finds that out, too, and the run ends here
        nodes = max(1, sum(node.held > 0 for node in run.nodes.values()))
        self._pace.limit = None if run.throttle is None else run.throttle / nodes
        self._pace.most_leases = most_leases(run, nodes, self._pace.rate)
        self._idle = not self._permitted()
        permitted = not self._idle and (self.driving.drives or not self._one_node)
        return run.status is RunStatus.RUNNING and permitted

    @property
    def loops(self) -> Sequence[PipelineLoop]:
        return (self.loop,)

    @property
    def finished(self) -> bool:
        return self.ended

    @property
    def eager(self) -> bool:
        return self.loop.eager or (self._stepping and not self.loop.busy)

    @property
    def _may_step(self) -> bool:
        return not (self._stepping or self._idle or self.ended) and self._world.clock.monotonic() >= self._next_step

    def turn(self) -> None:
        """Keep the locks, and start a step of the driver in a thread of its own if it is time."""
        self.driving.keep()
        if self._claimable:
            self._claimable = False
            self.loop.pass_soon()
        if self._idle and self.driving.drives and not self._stepping:
            self.driving.release()
        if self._may_step:
            self._stepping = True
            self._world.spawn(self._step)

    def _step(self) -> None:
        try:
            wait = self.driving.step()
            self.ended = wait is None
            # Without this, partitions would wait for the next pass, up to a heartbeat.
            self._claimable = wait == 0.0
            self._next_step = self._world.clock.monotonic() + (wait or 0.0)
        except Interrupted:
            return
        finally:
            self._stepping = False

    def leave(self) -> None:
        self.driving.release()


class RunCommand(RunWork):
    """A command that begins or joins one run, and ends with it."""

    new: NewRun | None = None

    def turn(self) -> None:
        if self.new is not None:
            # Not earlier: the locks belong to this node's session, which starts with the node.
            self.driving.begin(self.new.configuration, self.new.created_by)
            self.new = None
        super().turn()


def engine_beside(pipeline: RunPipeline) -> Engine:
    """Return an engine for a run on the Spark session that this process has."""
    from pyspark.sql import SparkSession

    from holdfast.spark.engine import SparkEngine

    stored = pipeline.stored
    built = replace(pipeline.built, max_receipt_bytes=stored.store.max_receipt_bytes)
    return SparkEngine(SparkSession.builder.getOrCreate(), {stored.identifier: built})


def unfinished(runs: Runs, run_id: str) -> Run:
    """Return that run. Raises `UsageError` if it has ended, `PartitionNotFound` if it does not exist."""
    run = runs.show(run_id)
    if run.status in ENDED:
        raise UsageError(f"run {run_id} is {run.status.value}; there is nothing left to do")
    return run
