"""Picks up runs: a node that runs a pipeline works on all runs of the pipeline, beside the live one.

Runs are looked for once per heartbeat, the first time when the node starts, which also finds runs whose nodes are gone.
Building and opening the pipeline of a run connects to servers; that happens in a thread of its own, never in the loop.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

from holdfast.assemble import StoredPipeline
from holdfast.errors import HoldfastError, Interrupted, PartitionNotFound, Refused, UsageError
from holdfast.events import Notice
from holdfast.flow.engine import Engine, Engines
from holdfast.flow.loop import PipelineLoop
from holdfast.flow.node import Companion
from holdfast.flow.pipeline import Pipeline, describe
from holdfast.flow.run import ENDED, Run
from holdfast.flow.runs import Runs
from holdfast.flow.tables import LiveTables
from holdfast.leases.coordinator import Coordinator
from holdfast.runs.execution import RunPipeline, RunWork, engine_beside
from holdfast.runs.kinds import run_pipeline_of
from holdfast.runs.reindex_configuration import ReindexConfiguration
from holdfast.runs.reindex_state import KIND, IndexHistory
from holdfast.service import open_pipelines

GRACE = 3600.0
"""Seconds after its time in which a run is still started, for example when all nodes were being replaced."""
BY = "schedule"


class _Opened(NamedTuple):
    work: RunWork
    built: Pipeline
    engine: Engine


class RunPickup(Companion):
    """The runs of one pipeline on one node."""

    def __init__(self, stored: StoredPipeline, live: Coordinator, pipeline: Pipeline, engines: Engines) -> None:
        """`live` has the leases of the live pipeline; engines of runs are added to `engines`."""
        self._stored = stored
        self._live = live
        self._world = live.world
        self._engines = engines
        self._only_runs = isinstance(pipeline.source, LiveTables)
        self._runs = Runs(live)
        self._open: list[_Opened] = []
        self._arrived: list[_Opened] = []
        self._left_alone: set[str] = set()
        """Runs that this node cannot carry out; each is reported once."""
        self._looking = False
        self._look_at = 0.0

    @property
    def loops(self) -> Sequence[PipelineLoop]:
        return [opened.work.loop for opened in self._open]

    @property
    def finished(self) -> bool:
        return not self._only_runs and not self._open and not self._looking

    @property
    def eager(self) -> bool:
        return any(opened.work.eager for opened in self._open)

    def turn(self) -> None:
        """Give every run a turn, and start looking for others if it is time."""
        while self._arrived:
            opened = self._arrived[0]
            self._engines.add(opened.engine)
            # It is always in one of the lists: a run that is picked up twice would have two drivers under one token.
            self._open.append(opened)
            del self._arrived[0]
        for opened in list(self._open):
            opened.work.turn()
            if opened.work.ended:
                self._part_with(opened)
        now = self._world.clock.monotonic()
        if not self._looking and now >= self._look_at:
            self._looking = True
            self._look_at = now + self._world.jittered(self._live.session.timing.heartbeat)
            self._world.spawn(self._look)

    def leave(self) -> None:
        for opened in [*self._open, *self._arrived]:
            opened.work.leave()
            opened.engine.close()
            opened.built.close()

    def _part_with(self, opened: _Opened) -> None:
        self._open.remove(opened)
        opened.work.loop.hand_back()
        self._engines.remove(opened.engine)
        self._world.spawn(lambda: _close(opened))

    # --- beside the loop -----------------------------------------------------------------------------------------

    def _look(self) -> None:
        try:
            start_if_due(self._stored, self._runs, self._live.now())
            open_runs = {opened.work.run_id for opened in [*self._arrived, *self._open]} | self._left_alone
            for run in self._runs.list(self._leave_alone):
                if run.status not in ENDED and run.id not in open_runs:
                    self._pick_up(run)
        except Interrupted:
            return
        except HoldfastError as error:
            self._world.emit(Notice(f"pipeline {self._stored.name}: runs cannot be looked for: {describe(error)}"))
        finally:
            self._looking = False

    def _pick_up(self, run: Run) -> None:
        try:
            pipeline = self._opened(run)
        except Interrupted:
            raise
        except (UsageError, Refused) as refused:
            self._leave_alone(run.id, str(refused))
            return
        except Exception as error:  # noqa: BLE001 - plugins are foreign code
            self._world.emit(Notice(f"run {run.id} cannot be picked up now: {describe(error)}"))
            return
        engine = engine_beside(pipeline)
        work = RunWork(self._live, run.id, pipeline, engine)
        self._world.emit(Notice(f"run {run.id} is picked up"))
        self._arrived.append(_Opened(work, pipeline.built, engine))

    def _leave_alone(self, run_id: str, why: str = "this version of holdfast cannot read it") -> None:
        if run_id not in self._left_alone:
            self._left_alone.add(run_id)
            self._world.emit(Notice(f"run {run_id} is left to other nodes: {why}"))

    def _opened(self, run: Run) -> RunPipeline:
        stored = self._stored
        pipeline = run_pipeline_of(stored, run.configuration)
        try:
            open_pipelines(stored.settings, stored.store, {stored.name: pipeline.built}, self._world)
        except BaseException:
            pipeline.built.close()
            raise
        return pipeline


def _close(opened: _Opened) -> None:
    opened.engine.close()
    opened.built.close()


def start_if_due(pipeline: StoredPipeline, runs: Runs, now: float) -> Run | None:
    """Add the run that is due by the schedule of the pipeline's source, if there is one and it does not exist yet.

    Any number of nodes may call this at a time. Nothing is added while an earlier run of the schedule goes on.
    """
    schedule: Any = getattr(pipeline.configured.source.config, "schedule", None)
    if schedule is None:
        return None
    due = schedule.due_at(now)
    run_id = f"{KIND}-{datetime.fromtimestamp(due, UTC):%Y%m%dt%H%M%Sz}"
    if now - due > GRACE or _exists(runs, run_id):
        return None
    if any(run.status not in ENDED and run.created_by == BY for run in runs.list()):
        return None
    configuration = _configuration(pipeline, schedule, runs).encode()
    try:
        return runs.add(run_id, configuration=configuration, created_by=BY)
    except UsageError:
        return None  # another node was faster


def _exists(runs: Runs, run_id: str) -> bool:
    try:
        runs.show(run_id)
    except PartitionNotFound:
        return False
    return True


def _configuration(pipeline: StoredPipeline, schedule: Any, runs: Runs) -> ReindexConfiguration:
    entities = pipeline.configured.source.config.entities
    chosen = ReindexConfiguration(entities=schedule.entities, generation=pipeline.configured.generation).resolved(
        entities
    )
    history = IndexHistory(runs.list())
    state = history.up_to_date(chosen.entities) if schedule.changed else None
    if state is None or any(history.incomplete(entity) for entity in chosen.entities):
        return chosen
    return chosen.model_copy(update={"recreate_index": False, "changed_since": state.oldest_mark})
