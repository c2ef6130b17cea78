"""One pipeline on one node: acquire, plan, read and stage (the engine's part), commit, publish, and go on.

`turn` does what can be done now and never waits for a job. Every job of holdfast is this loop over leased partitions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from holdfast.errors import Halt, StoreUnavailable
from holdfast.events import BatchCancelled, NothingAcquired, PipelineFinished, Unreachable
from holdfast.flow.apart import call_apart, described, reported
from holdfast.flow.batch import Limits, Name
from holdfast.flow.capacity import Reach
from holdfast.flow.commit import Committer
from holdfast.flow.engine import Advanced, Engine, Report, Staged
from holdfast.flow.generations import FixedGeneration, NodeGeneration
from holdfast.flow.handoff import HandingOff
from holdfast.flow.holdings import Held, Holdings
from holdfast.flow.pipeline import Pipeline, ReportsEvents
from holdfast.flow.plan import Planner
from holdfast.flow.publish import Publisher
from holdfast.flow.rounds import Rounds
from holdfast.flow.sink import KeepsStaged, Witness
from holdfast.flow.source import CountsScans, HearsOfStaging, Source, UsesStoreClock
from holdfast.flow.steps import Steps
from holdfast.flow.watchdog import Watchdog
from holdfast.leases.coordinator import Coordinator
from holdfast.leases.discovery import Discovery
from holdfast.leases.duty import Duty
from holdfast.leases.lease import FINISHED, Lease, Status
from holdfast.leases.sharing import FairShare, Pull, Sharing

EAGER = 0.2
"""Part of a heartbeat after which a node looks again that waits for its share."""
NAMELESS = Name("", "")


@dataclass(frozen=True, slots=True)
class LoopSettings:
    """How much one node takes at a time."""

    limits: Limits = Limits()
    max_batches: int = 100
    """Batches in one round; where partitions are soon done, leases held, in two rounds. More while they are tiny."""
    generation: int = 1
    replicas: int = 0
    """For sources whose partitions live long: hold the share of so many nodes; 0 for those that are there."""
    step_limit: float = 60.0
    """Seconds that one part of a turn may take; a node that hangs for longer stops its heartbeat."""


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

        `generation` returns the number of the current one, on every pass; by default it is that of the settings.
        `duties` get a turn with every turn of the loop, until the node drains.
        """
        self._coordinator = coordinator
        self._world = coordinator.world
        self._source, self._sinks = source, sinks = pipeline.source, pipeline.sinks
        _give_clock(source, coordinator)
        self._engine = engine
        self._settings = settings
        self._holdings = Holdings()
        self._reach = Reach(source, settings.max_batches)
        self._watchdog = Watchdog(coordinator.world.clock, self._holdings, settings.limits.timeout)
        self._publisher = Publisher(coordinator, sinks, self._holdings)
        self._steps = Steps(settings.step_limit, sinks.values())
        self._own = generation or FixedGeneration(settings.generation)
        self._committer = Committer(coordinator, self._publisher, source, sinks, engine, self._holdings, self._own)
        self._planner = Planner(coordinator, source, self._committer, self._holdings, settings.limits)
        self._rounds = Rounds(coordinator, engine, self._holdings, self._watchdog)
        fair = FairShare(coordinator, settings.replicas)
        # A run is over some day and shares nothing with the live pipeline, so that its nodes pull.
        self._sharing: Sharing = fair if source.lives_long and not coordinator.run else Pull(coordinator)
        self._handing = HandingOff(coordinator, engine, self._holdings)
        self._may_claim = may_claim
        self._generation: int | None = None
        self._allowed = False
        self._discovery = _discovery(coordinator, source, self._look_soon)
        self._duties = duties
        self._next_look = 0.0
        self._next_pass = 0.0
        self._draining = False
        self.finished = False

    @property
    def pipeline(self) -> str:
        return self._coordinator.pipeline

    @property
    def busy(self) -> bool:
        """Whether a batch is out or a commit waits to be published."""
        return not all(held.at_rest for held in self._holdings)

    @property
    def discovering(self) -> bool:
        """Whether partitions are being looked for right now."""
        return self._discovery is not None and self._discovery.running

    def turn(self, reports: Sequence[Report], step: Callable[[str, float], None]) -> None:
        """Everything that can be done now. `step` is told the name and limit of each part before it begins.

        Also called when the pipeline is finished: what a late write gives to this node is handed back.
        """
        self._steps.watched_by(step)
        self._steps.begin("commit")
        self._hear(reports)
        self._committer.receive(reports)
        for sink in self._sinks.values():
            for event in sink.noticed() if isinstance(sink, ReportsEvents) else ():
                self._world.emit(event)
        self._publish()
        self._cancel_overdue()
        self._steps.begin("look")
        self._look()
        self._steps.begin("admit")
        self._admit_new()
        self._steps.begin("plan")
        self._handing.hand_off()
        self._plan()
        for duty in self._duties if not self._draining else ():
            duty.turn()

    def drain(self) -> None:
        """Take no more leases and start no more rounds; long-lived batches finish what is out."""
        self._draining = True
        self._engine.drain([held.batch.id for held in self._holdings if held.batch is not None])

    def hand_back(self) -> None:
        """Cancel what is out and give every lease back at once."""
        self._cancel([held for held in self._holdings if held.batch is not None])
        self._coordinator.release([held.lease for held in self._holdings])
        self._holdings.clear()

    def abandon(self) -> None:
        """The session is over: nothing here is ours any more, and nothing is written."""
        self._cancel([held for held in self._holdings if held.batch is not None])
        self._holdings.clear()
        self._next_look = self._next_pass = 0.0

    def release_former(self, session: str) -> None:
        """This process has joined anew: nobody need wait for, or be blamed for, what its former session still owns."""
        self._coordinator.release_former(session)

    # --- acquire -----------------------------------------------------------------------------------------------

    def _look(self) -> None:
        """One pass: what do I really own, who is dead, what is free."""
        now = self._world.clock.monotonic()
        if self._draining or now < self._next_look:
            return
        passing = self._pass_due(now)
        if passing:
            self._ask_whether_allowed()
            # Also where nothing may be claimed: a lost answer or a hand-off may have left leases with this node.
            self._reconcile()
        if not self._allowed:
            self._next_look = self._next_pass
            self.hand_back()
            return
        if passing:
            self._coordinator.sweep()
        idle = len(self._holdings.where(lambda held: held.at_rest))
        room = self._reach.room([held.lease for held in self._holdings], idle)
        if room <= 0 and not passing:
            return
        look = self._sharing.look(len(self._holdings), max(room, 0))
        self._hold(look.taken)
        self._handing.shed_to(look.shed_to)
        pause = self._coordinator.session.timing.heartbeat * (EAGER if look.short else 1.0)
        if not look.taken and room > 0:
            self._next_look = now + self._world.jittered(pause)
            self._nothing_acquired()
        if look.short:
            self._next_pass = min(self._next_pass, now + pause)

    def _ask_whether_allowed(self) -> None:
        """May this node work on the pipeline? While the store does not say, what it said last holds."""
        try:
            generation = None if self.finished else self._own.current()
            allowed = generation is not None and self._may_claim()
        except StoreUnavailable as away:
            self._world.emit(Unreachable("store", str(away), self._coordinator.session.timing.heartbeat))
            return
        self._generation, self._allowed = generation, allowed
        if not self._coordinator.run:
            self._coordinator.session.take_part(self.pipeline, taking=generation is not None)

    def _pass_due(self, now: float) -> bool:
        if now < self._next_pass:
            return False
        self._next_pass = now + self._world.jittered(self._coordinator.session.timing.heartbeat)
        return True

    def _reconcile(self) -> None:
        """Compare with the store: let go of what was taken away, and hold what a lost answer gave us."""
        rows = {row.key: row for row in self._coordinator.owned()}
        for held in self._holdings:
            row = rows.get(held.lease.key)
            if row is None or row.token != held.lease.token:
                self._cancel([held])
                self._holdings.drop(held)
            else:
                del rows[row.key]
        self._hold(self._coordinator.adopt(rows.values()))

    def _hold(self, leases: Sequence[Lease]) -> None:
        for lease in leases:
            if (earlier := self._holdings.get(lease.key)) is not None:
                self._cancel([earlier])
                self._holdings.drop(earlier)
            try:
                name = self._source.name(lease)
            except Exception as error:  # noqa: BLE001 - sources are foreign code
                self._committer.count_attempt(Held(lease, NAMELESS), f"it could not be named: {described(error)}")
            else:
                self._holdings.add(Held(lease, name, found_pending=lease.commit.receipts is not None))

    def _nothing_acquired(self) -> None:
        self._world.emit(NothingAcquired(self.pipeline))
        if self._discovery is None or (_may_end(self._source) and self._discovery.exhausted):
            if not len(self._holdings):
                self._check_finished()
        else:
            self._discovery.turn()

    def _look_soon(self) -> None:
        """Discovery may have added partitions."""
        self._next_look = 0.0

    def _check_finished(self) -> None:
        counts = self._coordinator.counts()
        if not any(number for status, number in counts.items() if status not in FINISHED):
            self.finished = True
            completed, failed = counts.get(Status.COMPLETED, 0), counts.get(Status.FAILED, 0)
            self._world.emit(PipelineFinished(self.pipeline, completed, failed))

    def _admit_new(self) -> None:
        """Before anything else happens under a lease: do the sinks know more of the partition than its row?"""
        new = self._ready(lambda held: not held.admitted)
        if not new:
            return
        taken = [(held.lease, held.name) for held in new]
        verdicts = [self._witnessed(sink, taken) for sink in self._sinks.values() if isinstance(sink, Witness)]
        for held, *told in zip(new, *verdicts, strict=True):
            trouble = [one for one in told if one is not None]
            halt = next((one for one in trouble if isinstance(one, Halt)), None)
            if halt is not None:
                self._coordinator.halt(held.lease, str(halt))
                self._holdings.drop(held)
            elif trouble:
                self._planner.put_off([held], "sink", trouble[0])
            else:
                held.admitted = True
        for name, sink in self._sinks.items():
            if isinstance(sink, KeepsStaged):
                with reported(self._world.emit, f"{self.pipeline}: `sweep` of sink {name!r}"):
                    sink.sweep([(held.lease, held.name) for held in new if held.admitted])

    def _witnessed(self, sink: Witness, taken: Sequence[tuple[Lease, Name]]) -> list[Exception | None]:
        return list(call_apart(sink.witness, taken))

    # --- plan --------------------------------------------------------------------------------------------------

    def _plan(self) -> None:
        if self._draining or self._engine.room() <= 0:
            return
        self._rebuild(self._ready(lambda held: held.admitted and bool(held.gone) and held.batch is None))
        idle = self._ready(lambda held: held.admitted and held.at_rest and held.hand_to is None)
        idle = [held for held in idle if self._planner.is_at(self._generation, held)]
        # What is beyond one round is planned again when there is room.
        most = self._reach.round_size
        self._rounds.send(self._planner.plan(idle)[:most], most)

    def _rebuild(self, gone: Sequence[Held]) -> None:
        """Stage pending commits anew whose data is gone."""
        ranges = ((held, self._committer.range_to_rebuild(held, self._generation)) for held in gone)
        self._rounds.send([(held, cut) for held, cut in ranges if cut is not None], self._reach.round_size)

    # --- publish and watch -------------------------------------------------------------------------------------

    def _publish(self) -> None:
        waiting = self._ready(lambda held: held.admitted and held.pending and not held.gone and held.batch is None)
        for portion in self._publisher.portions_for_a_while(waiting):
            self._steps.begin("publish")
            self._publisher.publish(portion)
            self._committer.tell_published([held.lease for held in portion if not held.pending])

    def _hear(self, reports: Sequence[Report]) -> None:
        """A sign of life puts off the watchdog; what was staged teaches the source."""
        for report in reports:
            held = self._holdings.carrying(report.batch_id)
            if held is None or held.batch is None:
                continue
            if isinstance(report, Advanced):
                held.cancel_at = self._watchdog.deadline()
            elif isinstance(report, Staged) and isinstance(self._source, HearsOfStaging):
                with reported(self._world.emit, f"{self.pipeline}: `staged` of the source"):
                    self._source.staged(held.batch, report.end, report.counts.processed, report.size)
        if reports and not self._source.lives_long:
            self._next_look = 0.0  # there is room again, whatever the last look has found

    def _cancel_overdue(self) -> None:
        if not self._coordinator.session.usable:
            return  # the node itself was held up; how long its batches took it cannot tell, and they are lost anyway
        for held in self._watchdog.overdue():
            self._cancel([held])
            self._world.emit(BatchCancelled(self.pipeline, held.lease.key, self._watchdog.reason))
            self._committer.count_attempt(held, self._watchdog.reason)

    def _cancel(self, helds: Sequence[Held]) -> None:
        self._engine.cancel([held.batch.id for held in helds if held.batch is not None])
        for held in helds:
            self._holdings.recall(held)

    def _ready(self, wanted: Callable[[Held], bool]) -> list[Held]:
        now = self._world.clock.monotonic()
        return self._holdings.where(lambda held: held.wait_until <= now and wanted(held))


def _discovery(coordinator: Coordinator, source: Source, added: Callable[[], None]) -> Discovery | None:
    """A run's partitions were made when it was created; only a live pipeline looks for more."""
    if coordinator.run:
        return None
    next_scan = source.next_scan_after if isinstance(source, CountsScans) else lambda _state: source.rediscover_after
    return Discovery(coordinator, source.discover, again_after=next_scan, added=added)


def _give_clock(source: Source, coordinator: Coordinator) -> None:
    if isinstance(source, UsesStoreClock):
        source.use_clock(lambda: coordinator.session.store_time)


def _may_end(source: Source) -> bool:
    """Whether there may be a last discovery."""
    return source.may_end if isinstance(source, CountsScans) else source.rediscover_after is None
