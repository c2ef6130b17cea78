"""The lock that allows one run of a pipeline at a time: the `$run` lease, which has its own deadline.

Its holder renews it every minute. A run whose lock is lost has FAILED: another run may have begun.
"""

from __future__ import annotations

from typing import Literal

from holdfast.errors import LeaseLost, PartitionNotFound, Refused
from holdfast.flow.run import ENDED, Run, Runs, RunStatus
from holdfast.leases import transitions
from holdfast.leases.coordinator import ClaimPolicy, Coordinator
from holdfast.leases.lease import Key, Lease, Partition, new_lease
from holdfast.leases.writes import ensure_rows

LOCK_TIMEOUT = 300.0
REFRESH_EVERY = 60.0


class RunLock:
    """The lock of a pipeline's runs as this node holds it. Call `refresh` once a minute during a run."""

    def __init__(self, live: Coordinator, runs: Runs, *, timeout: float = LOCK_TIMEOUT) -> None:
        policy = ClaimPolicy(ownership_timeout=timeout)
        self._timeout = timeout
        self._runs = runs
        self._lock = Coordinator(live.store, live.world, live.session, f"{live.pipeline}/$run", policy=policy)
        self._lease: Lease | None = None

    def acquire(self, run_id: str) -> None:
        """Take the lock for that run. Raises `Refused` when another run has it.

        A previous run that has not ended has lost the lock together with its node: it is failed before this one begins.
        """
        lock = self._lock
        row = new_lease(lock.pipeline, Partition("$run"), lock.world.new_id(), now=lock.now())
        ensure_rows(lock.store, lock.world, lambda: [row])
        lock.sweep()
        for lease in lock.claim(1):
            self._lease = lease
            self._fail_former(lease, run_id)
            try:
                self._write(run_id)
            except LeaseLost as lost:
                raise Refused(f"the lock was lost immediately: {lost}") from lost
            return
        raise Refused(f"run {self.holder()!r} is going on; stop it first, or wait until it has ended")

    def holder(self) -> str | None:
        """Return the run for which the lock was last taken, whether or not it has ended."""
        (row,) = self._lock.store.get([self._lock_key()])
        return None if row is None or row.progress.state is None else str(row.progress.state["run"])

    def refresh(self) -> None:
        """Renew the lock. Raises `LeaseLost` when it is lost; the run is failed unless another node drives it."""
        run_id = self._held_run()
        try:
            self._write(run_id)
        except LeaseLost as lost:
            self._lease = None
            if self.holder() != run_id:
                self._runs.fail(run_id, f"the lock was lost: {lost}")
            raise

    def transfer(self, expected: str, run_id: str) -> None:
        """Pass the lock on to another run, in one write, only if it still belongs to the expected one."""
        if self._held_run() != expected:
            raise Refused(f"the lock belongs to run {self._held_run()!r}, not to {expected!r}")
        self._write(run_id)

    def release(self) -> None:
        """Release the lock. Does nothing if it is not held."""
        if self._lease is not None:
            self._lock.release([self._lease])
            self._lease = None

    def recover(self, policy: Literal["recover", "fail"]) -> list[Run]:
        """At start-up: recover or fail runs that no node drives. Returns those that continue on this node.

        Raises nothing when another node drives them.
        """
        if not (orphans := self._unended()):
            return []
        try:
            # For the run that had it, so that none is failed before this node has listed them.
            self.acquire(self.holder() or orphans[0].id)
            return self._settle(self._unended(), policy)
        except (Refused, LeaseLost):
            return []

    def _settle(self, orphans: list[Run], policy: Literal["recover", "fail"]) -> list[Run]:
        resumed = [run for run in orphans if policy == "recover" and run.status is not RunStatus.INITIALIZING][:1]
        for run in orphans:
            if run not in resumed:
                self._runs.fail(run.id, "its node died, and it was not recovered")
        if resumed:
            self._write(resumed[0].id)
        else:
            self.release()
        return resumed

    def _unended(self) -> list[Run]:
        return [run for run in self._runs.list() if run.status not in ENDED]

    def _fail_former(self, lock: Lease, run_id: str) -> None:
        former = None if lock.progress.state is None else str(lock.progress.state["run"])
        if former is None or former == run_id:
            return
        try:
            self._runs.fail(former, f"the lock was lost to run {run_id!r}")
        except PartitionNotFound:
            return  # its node died before it created the run

    def _held_run(self) -> str:
        if self._lease is None:
            raise Refused("this node does not hold the lock")
        return str(self._lease.progress.state["run"])

    def _write(self, run_id: str) -> None:
        if self._lease is None:
            raise Refused("this node does not hold the lock")
        state = {"run": run_id}
        (result,) = self._lock.write(
            [self._lease], lambda row, now: transitions.save_state(row, state, now, now + self._timeout)
        )
        if isinstance(result, LeaseLost):
            raise result
        self._lease = result

    def _lock_key(self) -> Key:
        return Key(self._lock.pipeline, self._lock.run, "$run")
