"""Drives one run on this node: takes its locks, creates and starts it, sums it up, and asks its driver what follows.

Any node that works on a run tries to drive it; the locks decide which one does. A step does what can be done now, in a
thread beside the loop, because the driver's calls may take minutes. Each step begins with the run's row: a step that
another node has done already is not repeated, and one that was interrupted is.
"""

from __future__ import annotations

from dataclasses import replace

from holdfast.errors import HoldfastError, Interrupted, LeaseLost, PartitionNotFound, Refused, Unavailable, UsageError
from holdfast.events import Notice, Unreachable
from holdfast.flow.partition_list import LIMITS, PartitionLimits
from holdfast.flow.pipeline import describe
from holdfast.flow.run import ENDED, Run, RunStatus
from holdfast.flow.run_driver import End, Extend, RunDriver, Wait, is_finished
from holdfast.flow.runs import Runs
from holdfast.leases.coordinator import Coordinator
from holdfast.leases.lease import Json
from holdfast.runs.lock import LOCK_TIMING, LockTiming, RunLock

AGGREGATE_EVERY = 2.0
"""Seconds between two sums over the partitions of a run."""
RETRY_AFTER = 5.0
"""Seconds until a step is tried again that another run or an error has prevented."""


class Driving:
    """This node's part in driving one run. `keep` is called by the loop, the rest in a thread of its own."""

    def __init__(
        self,
        live: Coordinator,
        run_id: str,
        driver: RunDriver,
        timing: LockTiming = LOCK_TIMING,
        limits: PartitionLimits = LIMITS,
    ) -> None:
        """`live` has the leases of the live pipeline."""
        self._world = live.world
        self._runs = Runs(live, limits)
        self._id = run_id
        self._driver = driver
        self._lock = RunLock(live, self._runs, timeout=timing.timeout)
        self._refresh_every = timing.refresh
        self._refresh_at = 0.0
        self._token: int | None = None
        self._driven: int | None = None
        """The token under which this node drives the run, or has driven it; None if it never has."""

    @property
    def drives(self) -> bool:
        """Whether this node holds the locks of the run."""
        return self._token is not None

    def begin(self, configuration: Json, created_by: str) -> None:
        """Take the locks and add the run. Raises `Refused` if another run has a lock.

        A run whose node is gone loses its lock to this one, and is set to FAILED.
        """
        token = self._lock.acquire(self._id, self._driver.locks(configuration), instead=True)
        self._runs.add(self._id, configuration=configuration, created_by=created_by)
        try:
            self._confirm(token)
        except LeaseLost:
            self.release()  # another node drives it already

    def keep(self) -> None:
        """Renew the locks when it is time. Blocks only on the store."""
        now = self._world.clock.monotonic()
        if self._token is None or now < self._refresh_at:
            return
        self._refresh_at = now + self._refresh_every
        try:
            self._lock.refresh()
        except LeaseLost:
            self._token = None

    def release(self) -> None:
        """Give up the locks, so that another node may drive the run at once."""
        self._token = None
        self._lock.release()

    def step(self) -> float | None:
        """Do what can be done now. Returns after how many seconds to do the next step; None if the run has ended."""
        try:
            return self._step(self._runs.show(self._id))
        except LeaseLost:
            self.release()
            return self._world.jittered(RETRY_AFTER)
        except PartitionNotFound:
            return None
        except Unavailable as away:
            self._world.emit(Unreachable("run", str(away), RETRY_AFTER))
        except Interrupted:
            raise
        except (Refused, UsageError) as refused:
            return self._fail(str(refused))
        except Exception as error:  # noqa: BLE001 - drivers are foreign code
            self._world.emit(Notice(f"run {self._id}: {describe(error)}; it is tried again"))
        return self._world.jittered(RETRY_AFTER)

    def _step(self, run: Run) -> float | None:
        if run.status in ENDED:
            self.release()
            return None
        if self._token is None and not self._take_over(run):
            return self._world.jittered(RETRY_AFTER)
        token = self._token
        if token is None:
            return 0.0  # lost meanwhile
        if run.status is RunStatus.STOPPING:
            return self._pause_after(self._runs.settle_stop(self._id))
        if run.status is RunStatus.RUNNING:
            return self._go_on(run, token)
        self._create(run, token)
        self._runs.start(self._id, token)
        return 0.0

    def _take_over(self, run: Run) -> bool:
        """Become the driver of a run that nobody drives. Returns False if another node or another run has a lock."""
        try:
            token = self._lock.acquire(self._id, self._driver.locks(run.configuration))
        except Refused:
            return False
        return self._confirm(token)

    def _confirm(self, token: int) -> bool:
        """Note in the run's row that this node drives it. Returns False if a lock was lost before that was written.

        Only then does this node count as the driver: until the row says that the run keeps its locks, others take them.
        """
        self._runs.drive(self._id, token)
        try:
            self._lock.refresh()
        except LeaseLost:
            self._runs.unlock(self._id, token)
            return False
        self._refresh_at = self._world.clock.monotonic() + self._refresh_every
        self._token = self._driven = token
        return True

    def _held_token(self) -> int:
        if self._token is None:
            raise LeaseLost(f"the lock of run {self._id!r} was lost")
        return self._token

    def _create(self, run: Run, token: int) -> None:
        if run.status is RunStatus.INITIALIZING and not run.unlisted and run.pending is None:
            raise Refused("its node died while the run was created")
        if run.unlisted and run.state is None:
            state = self._driver.prepare(replace(run, driver_token=token))
            run = run if state is None else self._runs.keep(self._id, token, state)
        if run.status is RunStatus.READY:
            self._driver.resume(run)
        self._runs.create(self._id, token, self._driver.partitions(run) if run.unlisted else ())

    def _go_on(self, run: Run, token: int) -> float | None:
        run = self._runs.aggregate(self._id, token) if run.pending is None else self._runs.add_pending(run, token)
        if run.status is not RunStatus.RUNNING or run.pending is not None or not is_finished(run):
            return AGGREGATE_EVERY
        if any(group.failed_partitions for group in run.groups.values()) and self._runs.finish_splits(self._id):
            return AGGREGATE_EVERY
        decision = self._driver.advance(run, lambda state: self._runs.keep(self._id, self._held_token(), state))
        return self._carry_out(decision, token)

    def _carry_out(self, decision: Extend | Wait | End, token: int) -> float | None:
        match decision:
            case Wait(seconds):
                return seconds
            case Extend(phase, partitions, state):
                self._runs.extend(self._id, token, phase, partitions, state)
                return 0.0
            case End(status, error):
                return self._pause_after(self._runs.end(self._id, token, status, error))

    def _pause_after(self, run: Run) -> float | None:
        if run.status in ENDED:
            self.release()
            return None
        return AGGREGATE_EVERY

    def _fail(self, error: str) -> float:
        """End the run with an error, unless another node drives it now. Returns as `step` does."""
        try:
            self._runs.fail(self._id, error, self._driven)
        except LeaseLost:
            self.release()
        except HoldfastError as away:
            self._world.emit(Notice(f"run {self._id} cannot be failed now: {describe(away)}"))
        else:
            return 0.0
        return self._world.jittered(RETRY_AFTER)
