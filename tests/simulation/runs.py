"""A world of runs: nodes that add, drive, stop, resume and work off runs, beside the live pipeline.

The keys of a run's partitions are those of the live ones, so that whoever mixes them up is caught. Runs share some of
their locks, have two phases, and their drivers never list the same partitions twice.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence

from holdfast.errors import Interrupted, PartitionNotFound, Refused, UsageError
from holdfast.flow.run import ENDED, Run, RunStatus
from holdfast.flow.run_driver import End, Extend, Keep, RunDriver, Wait
from holdfast.flow.runs import Runs
from holdfast.leases.controls import Controls
from holdfast.leases.coordinator import ClaimPolicy, Coordinator
from holdfast.leases.lease import FINISHED, Json, Lease, Partition
from holdfast.leases.transitions import RetryLimits
from holdfast.runs.driving import Driving
from holdfast.runs.lock import LockTiming, RunLock
from tests.simulation.host import Host
from tests.simulation.oracle import PIPELINE
from tests.simulation.runs_oracle import LATE, REFUSED_TO, RunsOracle
from tests.simulation.session_rules import NODES
from tests.simulation.site import NoBatches, Running, Site
from tests.simulation.worker import Hands, Worker, session_of

MOST_RUNS = 4
LIVE_ITEMS = 3
LOCK_TTLS = 2.0
STOPS = 0.05
"""How likely somebody stops a run on a turn, or resumes one."""
REFUSALS = 0.04
"""How likely a driver is refused what it asks its database for."""
LOCKS = ((), ("a",), ("a", "b"), ("b", "c"))


class RunsSite(Site):
    """Nodes that are all alike: each one works on all runs, and drives those whose locks it can get."""

    oracle: RunsOracle

    def make_oracle(self) -> RunsOracle:
        dice = self.kernel.dice
        self.keys = [f"p{n}" for n in range(self.scenario.partitions)]
        self.items = {key: 1 + dice.randrange(self.scenario.items) for key in self.keys}
        self.bad = {key for key in self.keys if dice.random() < 0.2}
        self.ids = (f"r{n}" for n in itertools.count(1))
        self.variants = itertools.count(1)
        return RunsOracle(self.kernel, self.items, self.bad)

    def assemble(self, name: str, host: Host) -> Running:
        return Running(host, RunNode(self, name, host), NoBatches())

    @property
    def unfinished(self) -> object:
        live = [self.oracle.live(key) for key in self.keys]
        return [row for row in live if row is None or row.status not in FINISHED], self.oracle.going_on()

    @property
    def work_is_done(self) -> bool:
        return self.unfinished == ([], []) and not self.somebody_sleeps

    def items_of(self, lease: Lease) -> int:
        return self.items[lease.key.removeprefix(LATE)] if lease.run else LIVE_ITEMS


class TwoPhases(RunDriver):
    """Lists every key once per phase; each list is a variant of its own, so that a mixture of two is seen."""

    def __init__(self, site: RunsSite, host: Host) -> None:
        self._site = site
        self._host = host

    def locks(self, configuration: Json) -> Sequence[str]:
        return tuple(configuration["locks"])

    def prepare(self, run: Run) -> Json:
        return {"prepared": run.id}

    def partitions(self, run: Run) -> Iterable[Partition]:
        if run.state != {"prepared": run.id}:
            self._site.oracle.fail(f"{run.id} is listed with the state {run.state}")
        return self._listed("")

    def advance(self, run: Run, keep: Keep) -> Extend | Wait | End:
        if run.phase:
            return End(self._end_of(run))
        if self._site.kernel.random() < 0.3:
            return Wait(0.2)
        keep({"copied": run.id})
        return Extend(LATE, self._listed(LATE), {"extended": run.id})

    def _end_of(self, run: Run) -> RunStatus:
        failed = sum(group.failed_partitions for group in run.groups.values())
        return RunStatus.COMPLETED_WITH_ERRORS if failed else RunStatus.COMPLETED

    def _listed(self, prefix: str) -> list[Partition]:
        self._maybe_refuse()
        spec = {"variant": next(self._site.variants)}
        items = self._site.items.items()
        return [Partition(f"{prefix}{key}", "even", spec, estimated_count=number) for key, number in items]

    def _maybe_refuse(self) -> None:
        """Refuse the request after a delay, in which another node may have taken the run over."""
        host = self._host
        if host.faults.active and host.kernel.random() < REFUSALS:
            host.wait(self._site.knobs.ttl * 4 * host.kernel.random())
            raise Refused(f"{REFUSED_TO}{host.name}")


class RunNode(Worker):
    """Takes part in every run."""

    def __init__(self, site: RunsSite, name: str, host: Host) -> None:
        store = site.connect(host)
        super().__init__(host, session_of(name, host, store, site.knobs), site.knobs)
        policy = ClaimPolicy(limits=RetryLimits(max_takeovers=1 << 30))
        self._live = Coordinator(store, host.world, self.session, PIPELINE, policy=policy)
        self._site = site
        self._runs = Runs(self._live)
        self._controls = Controls(store, host.world.new_id, NODES)

    def begin(self) -> None:
        self._driven: dict[str, Driving] = {}
        self._stepping: set[str] = set()
        self._hands: dict[str, Hands] = {"": self._hands_on(self._live)}
        self._live.create(Partition(key) for key in self._site.keys)

    def turn(self) -> None:
        self._make()
        self._control()
        self._site.oracle.reads_controls(self.host)
        permitted = self._controls.permit(PIPELINE, self.session.name)
        self._site.oracle.is_permitted(self.host, permitted=permitted)
        for run in list(self._runs.list()):
            self._interfere(run)
            if run.status not in ENDED:
                self._drive(run.id)
                self._work_on(run.id, permitted=permitted)
        if permitted:
            self._hands[""].take(1)
            self._hands[""].step()
        else:
            self._hands[""].release_all()

    def end(self) -> None:
        for hands in self._hands.values():
            hands.release()
        for driving in self._driven.values():
            driving.release()

    # --- people ---------------------------------------------------------------------------------------------------

    def _make(self) -> None:
        """Add a run for whoever drives it, or begin one at once as a command does."""
        oracle, kernel = self._site.oracle, self.host.kernel
        if not self.host.faults.active or len(oracle.runs) >= MOST_RUNS:
            return
        run_id, configuration = next(self._site.ids), {"locks": list(kernel.dice.choice(LOCKS))}
        if kernel.random() < 0.7:
            try:
                self._runs.add(run_id, configuration=configuration, created_by="somebody")
            except UsageError:
                kernel.note(self.host.name, f"{run_id} was stopped before the response to adding it came")
            return
        self._mistake(run_id)
        driving = self._driving(run_id)
        try:
            driving.begin(configuration, "somebody")
        except (Refused, UsageError, PartitionNotFound):
            driving.release()

    def _mistake(self, run_id: str) -> None:
        """A transfer by a node that has no lock."""
        try:
            RunLock(self._live, self._runs).transfer("another", run_id)
        except Refused:
            return
        self._site.oracle.fail("a lock was passed on by a node that does not hold it")

    def _control(self) -> None:
        """Somebody pauses the pipeline or drains this node, and takes it back sooner or later."""
        kernel, name = self.host.kernel, self.session.name
        if self.host.faults.active and kernel.random() < STOPS:
            self._controls.pause(PIPELINE, "somebody") if kernel.random() < 0.5 else self._controls.drain(name, "she")
        elif not self.host.faults.active or kernel.random() < 4 * STOPS:
            self._controls.resume(PIPELINE)
            self._controls.undrain(name)

    def _interfere(self, run: Run) -> None:
        if not self.host.faults.active or self.host.kernel.random() >= STOPS:
            return
        try:
            if run.status is RunStatus.STOPPED:
                self._runs.resume(run.id)
            elif run.status not in ENDED:
                self._runs.stop(run.id)
        except UsageError:
            self.host.kernel.note(self.host.name, f"{run.id} is not what it was")

    # --- driving --------------------------------------------------------------------------------------------------

    def _driving(self, run_id: str) -> Driving:
        if run_id not in self._driven:
            timing = LockTiming(LOCK_TTLS * self.knobs.ttl, self.knobs.ttl / 2)
            self._driven[run_id] = Driving(self._live, run_id, TwoPhases(self._site, self.host), timing)
        return self._driven[run_id]

    def _drive(self, run_id: str) -> None:
        driving = self._driving(run_id)
        driving.keep()
        if run_id not in self._stepping:
            self._stepping.add(run_id)
            self.host.world.spawn(lambda: self._step(run_id, driving, self._stepping))

    def _step(self, run_id: str, driving: Driving, stepping: set[str]) -> None:
        self._site.oracle.sums_up(self.host, run_id)
        try:
            driving.step()
        except Interrupted:
            return
        finally:
            stepping.discard(run_id)

    # --- working --------------------------------------------------------------------------------------------------

    def _work_on(self, run_id: str, *, permitted: bool) -> None:
        """Partitions are taken only while the run is RUNNING, and let go as soon as it is seen not to be."""
        self._site.oracle.looks(self.host, run_id)
        running = self._runs.is_running(run_id) and permitted
        if run_id not in self._hands:
            self._hands[run_id] = self._hands_on(self._runs.coordinator(run_id))
        if running:
            self._site.oracle.takes(self.host, run_id)
            self._hands[run_id].take(1)
            self._hands[run_id].step()
        else:
            self._hands[run_id].release_all()

    def _hands_on(self, leases: Coordinator) -> Hands:
        return Hands(leases, self._site.items_of, self._site.oracle.works, self._site.bad if leases.run else ())
