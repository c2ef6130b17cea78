"""A world of runs: nodes that begin, drive, stop, recover and work off runs, beside the live pipeline.

The keys of a run's partitions are those of the live ones, so that whoever mixes them up is caught.
"""

from __future__ import annotations

import itertools
from typing import Literal

from holdfast.errors import LeaseLost, PartitionNotFound, Refused, UsageError
from holdfast.flow.run import ENDED, Run, Runs, RunStatus
from holdfast.leases.coordinator import ClaimPolicy, Coordinator
from holdfast.leases.lease import FINISHED, Lease, Partition
from holdfast.leases.transitions import RetryLimits
from holdfast.runs.lock import RunLock
from tests.simulation.host import Host
from tests.simulation.oracle import PIPELINE
from tests.simulation.runs_oracle import RunsOracle
from tests.simulation.site import NoBatches, Running, Site
from tests.simulation.worker import Hands, Worker, session_of

MOST_RUNS = 3
LIVE_ITEMS = 3
LOCK_TTLS = 2.0
STOPS = 0.15
"""How likely a driver stops its run on a turn."""


class RunsSite(Site):
    """Nodes that are all alike: each one works, and drives a run when it can get the lock."""

    oracle: RunsOracle

    def make_oracle(self) -> RunsOracle:
        dice = self.kernel.dice
        self.keys = [f"p{n}" for n in range(self.scenario.partitions)]
        self.items = {key: 1 + dice.randrange(self.scenario.items) for key in self.keys}
        self.bad = {key for key in self.keys if dice.random() < 0.2}
        self.policy: Literal["recover", "fail"] = dice.choice(("recover", "fail"))
        self.ids = (f"r{n}" for n in itertools.count(1))
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
        return self.items[lease.key] if lease.run else LIVE_ITEMS


class RunNode(Worker):
    """Drives at most one run, and works on whatever runs."""

    def __init__(self, site: RunsSite, name: str, host: Host) -> None:
        store = site.connect(host)
        super().__init__(host, session_of(name, host, store, site.knobs), site.knobs)
        policy = ClaimPolicy(limits=RetryLimits(max_takeovers=1 << 30))
        self._live = Coordinator(store, host.world, self.session, PIPELINE, policy=policy)
        self._site = site
        self._runs = Runs(self._live)

    def begin(self) -> None:
        self._lock = RunLock(self._live, self._runs, timeout=LOCK_TTLS * self.knobs.ttl)
        self._driving: str | None = None
        self._hands: dict[str, Hands] = {"": self._hands_on(self._live)}
        self._live.create(Partition(key) for key in self._site.keys)

    def turn(self) -> None:
        if self._driving is None:
            self._seek()
        else:
            self._drive(self._driving)
        self._work()

    def end(self) -> None:
        for hands in self._hands.values():
            hands.release()
        self._lock.release()

    # --- driving --------------------------------------------------------------------------------------------------

    def _seek(self) -> None:
        """Look after runs that nobody drives, or begin one."""
        if self.host.kernel.random() < 0.5:
            for run in self._lock.recover(self._site.policy):
                self._driving = run.id
        elif self._more_wanted():
            run_id = next(self._site.ids)
            try:
                self._lock.acquire(run_id)
            except (Refused, LeaseLost):
                return
            self._make(run_id)

    def _more_wanted(self) -> bool:
        return self.host.faults.active and len(self._site.oracle.runs) < MOST_RUNS

    def _make(self, run_id: str) -> None:
        self._driving = run_id
        partitions = [Partition(key, "even", estimated_count=items) for key, items in self._site.items.items()]
        try:
            self._runs.create(run_id, partitions, configuration=None, created_by="somebody")
        except UsageError:
            self.host.kernel.note(self.host.name, f"{run_id} was failed by another node before it was made")

    def _drive(self, run_id: str) -> None:
        try:
            self._lock.refresh()
            self._go_on(run_id)
        except (LeaseLost, Refused, PartitionNotFound):
            self._driving = None

    def _go_on(self, run_id: str) -> None:
        self._site.oracle.sums_up(self.host, run_id)
        run = self._runs.aggregate(run_id)
        if run.status in ENDED:
            self._finish(run_id)
        elif run.status is RunStatus.INITIALIZING:
            self._runs.fail(run_id, "it was left half made")
        else:
            self._change(run)

    def _change(self, run: Run) -> None:
        """Start it, or stop it in between. Somebody else may have been faster."""
        try:
            if run.status is RunStatus.READY:
                self._runs.start(run.id)
            elif self.host.faults.active and self.host.kernel.random() < STOPS:
                self._runs.stop(run.id)
        except UsageError:
            self.host.kernel.note(self.host.name, f"{run.id} is not what it was")

    def _finish(self, run_id: str) -> None:
        self._driving = None
        if not self._more_wanted():
            self._lock.release()
            return
        following = next(self._site.ids)
        self._mistake(run_id, following)
        self._lock.transfer(run_id, following)
        self._make(following)

    def _mistake(self, run_id: str, following: str) -> None:
        """A transfer from another run than the one that has the lock."""
        try:
            self._lock.transfer(f"not-{run_id}", following)
        except Refused:
            return
        self._site.oracle.fail(f"the lock of {run_id} was passed on as if it were that of another run")

    # --- working --------------------------------------------------------------------------------------------------

    def _work(self) -> None:
        for run in list(self._runs.list()):
            if run.status not in ENDED:
                self._work_on(run.id)
        self._hands[""].take(1)
        self._hands[""].step()

    def _work_on(self, run_id: str) -> None:
        """Partitions are taken only while the run is RUNNING, and let go as soon as it is seen not to be."""
        self._site.oracle.looks(self.host, run_id)
        running = self._runs.is_running(run_id)
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
