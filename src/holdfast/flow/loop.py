"""One pipeline on one node: acquire, plan, read, process, stage, commit, publish.

`turn` does what can be done now and never waits for a job: the engine reads, processes and stages, and a later turn
gets its reports. Every job of holdfast is this loop over leased partitions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from holdfast.flow.acquire import Acquirer, Permission
from holdfast.flow.batch import Limits, Tolerance
from holdfast.flow.commit import Committer
from holdfast.flow.engine import Engine, Report, Staged
from holdfast.flow.foreign_acks import ForeignAcks
from holdfast.flow.generations import FixedGeneration, NodeGeneration
from holdfast.flow.holdings import Capacity, Holdings, Pace
from holdfast.flow.pipeline import Pipeline
from holdfast.flow.plan import Planner, Rounds
from holdfast.flow.publish import Publisher
from holdfast.flow.sink import PublishesFiles, Sink
from holdfast.leases.coordinator import Coordinator
from holdfast.leases.duty import Duty
from holdfast.leases.sharing import sharing_of

Declare = Callable[[str, float], None]
"""Takes the name of a step and the seconds that it may take."""


@dataclass(frozen=True, slots=True)
class LoopSettings:
    """Limits of the work that one node takes at a time."""

    limits: Limits = Limits()
    max_batches: int = 100
    """Batches in one round; for short-lived partitions, leases held in two rounds; more while they are tiny."""
    generation: int = 1
    replicas: int = 0
    """For sources whose partitions live long: hold the share of this many nodes; 0: of the running nodes."""
    step_limit: float = 60.0
    """Seconds that one step of a turn may take; a node that hangs for longer stops its heartbeat."""
    tolerance: Tolerance | None = Tolerance()
    """How many records may become dead letters; None: all of them."""
    pace: Pace | None = None
    """How fast records are read; None: as fast as possible."""


class PipelineLoop:
    """The loop of one pipeline. Called by one thread; blocks only on the store, the sinks' publishing and planning."""

    def __init__(
        self,
        coordinator: Coordinator,
        pipeline: Pipeline,
        engine: Engine,
        *,
        settings: LoopSettings,
        may_claim: Callable[[], bool] = lambda: True,
        generation: NodeGeneration | None = None,
        duties: Sequence[Duty] = (),
    ) -> None:
        """`may_claim` is called on every pass; while it returns False, everything is handed back.

        `generation` returns the number of the current generation, on every pass; by default it is that of the settings.
        `duties` get a turn with every turn of the loop, until the node drains.
        """
        self._coordinator, self._duties, self._holdings = coordinator, duties, Holdings(engine)
        generation, holdings = generation or FixedGeneration(settings.generation), self._holdings
        self._steps = Steps(settings.step_limit, pipeline.sinks.values())
        self._publisher = Publisher(coordinator, pipeline, holdings)
        self._committer = Committer(coordinator, pipeline, holdings, self._publisher, generation, settings.tolerance)
        self._rounds = Rounds(coordinator, engine, holdings, self._committer, timeout=settings.limits.timeout)
        self._pace = settings.pace or Pace(coordinator.world.clock)
        capacity = Capacity(pipeline.source, settings.max_batches, self._pace)
        self._planner = Planner(
            coordinator,
            pipeline.source,
            holdings,
            committer=self._committer,
            rounds=self._rounds,
            capacity=capacity,
            limits=settings.limits,
        )
        self._permission = Permission(coordinator, may_claim, generation)
        self._acquirer = Acquirer(
            coordinator,
            pipeline,
            holdings,
            committer=self._committer,
            capacity=capacity,
            sharing=sharing_of(coordinator, settings.replicas, lives_long=pipeline.source.lives_long),
            permission=self._permission,
        )
        self._foreign_acks = ForeignAcks(coordinator, pipeline.source, engine) if engine.endless else None

    def turn(self, reports: Sequence[Report], declare: Declare) -> None:
        """Do everything that can be done now. `declare` is called before each step, with its name and limit.

        Also called when the pipeline is finished, to hand back leases that a late write assigns to this node.
        """
        self._steps.declare_to(declare)
        self._steps.begin("commit")
        if reports:
            self._pace.learn(self._records_of(reports))
            self._planner.learn(reports)
            self._acquirer.learn()
        self._committer.commit(reports)
        self._publisher.publish_pending(lambda: self._steps.begin("publish"))
        self._rounds.cancel_overdue()
        if self._foreign_acks is not None:
            self._foreign_acks.turn()
        self._steps.begin("look")
        self._acquirer.look()
        if len(self._holdings):
            self._steps.begin("admit")
            self._acquirer.admit()
        self._steps.begin("plan")
        self._acquirer.hand_off()
        if not self._acquirer.draining:
            self._planner.plan_rounds(self._permission.generation)
            for duty in self._duties:
                duty.turn()

    def _records_of(self, reports: Sequence[Report]) -> int:
        """Records of staged batches.

        Call it before they are committed: after that, leases no longer know their batches.
        """
        staged = (report for report in reports if isinstance(report, Staged))
        return sum(report.counts.processed for report in staged if self._holdings.carrying(report.batch_id))

    @property
    def pipeline(self) -> str:
        return self._coordinator.pipeline

    @property
    def busy(self) -> bool:
        """Whether a batch is running or a commit waits to be published."""
        return not all(held.at_rest for held in self._holdings)

    @property
    def discovering(self) -> bool:
        """Whether partitions are being looked for right now."""
        return self._acquirer.discovering

    @property
    def eager(self) -> bool:
        """Whether the next turn should come soon.

        Endless batches wait for leases that other nodes are about to hand over; or leases were just taken, and the
        engine has room for a round of more.
        """
        if self._acquirer.draining:
            return False
        if self._holdings.endless:
            return self._acquirer.eager
        return self._acquirer.has_taken and self._rounds.has_room

    @property
    def hands_over(self) -> bool:
        """Whether endless batches are running that another node will continue."""
        return self._holdings.endless and self._acquirer.shared and self.busy

    @property
    def finished(self) -> bool:
        """Whether all partitions are finished and no more will be found."""
        return self._acquirer.finished

    def pass_soon(self) -> None:
        """Look for leases in the next turn: what may be claimed has just changed."""
        self._acquirer.pass_soon()

    def take_no_more(self) -> None:
        """Take no more leases and start no more rounds; what is running goes on. May be repeated."""
        self._acquirer.draining = True

    def drain(self) -> None:
        """Like `take_no_more`, and long-lived batches finish the records that they have read."""
        self.take_no_more()
        self._holdings.drain(list(self._holdings))

    def hand_back(self) -> None:
        """Cancel running batches and hand back every lease at once."""
        if self._foreign_acks is not None:
            self._foreign_acks.flush()
        self._acquirer.hand_back()

    def abandon(self) -> None:
        """Forget all leases, because the session has ended. Writes nothing."""
        self._acquirer.abandon()

    def accuse(self, reason: str) -> None:
        """Record in the rows of running batches that this node ends because of an error."""
        self._committer.accuse(reason)

    def release_former(self, session: str) -> None:
        """Hand back leases of an ended session of this process: the process lives, so no batch has killed it."""
        self._coordinator.release_former(session)


class Steps:
    """The steps of a turn. The keeper renews the session while the current step is within its limit."""

    def __init__(self, limit: float, sinks: Iterable[Sink]) -> None:
        """`limit`: seconds that a step may take, or each part of a step if a sink reports progress in between."""
        for sink in sinks:
            if isinstance(sink, PublishesFiles):
                sink.report_progress_to(self.progress)
        self._limit = limit
        self._name = ""
        self._declare: Declare = lambda _name, _limit: None

    def declare_to(self, declare: Declare) -> None:
        """Pass the name and limit of each step to this function from now on."""
        self._declare = declare

    def begin(self, name: str) -> None:
        self._name = name
        self._declare(name, self._limit)

    def progress(self) -> None:
        """Part of the current step is done; the next part may take up to the limit again. Any thread may call it."""
        self._declare(self._name, self._limit)
