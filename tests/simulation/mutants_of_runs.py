"""Mutants of runs and their lock."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from holdfast.flow import run as run_module
from holdfast.flow.run import Runs, RunStatus
from holdfast.leases.lease import Lease, Status
from holdfast.runs.lock import RunLock
from tests.simulation.mutation import Put, mutant


@mutant("runs")
def a_run_that_is_being_stopped_still_counts_as_running(put: Put) -> None:
    going_on = (RunStatus.RUNNING, RunStatus.STOPPING)
    put(Runs, "is_running", lambda self, run_id: self.show(run_id).status in going_on)


@mutant("runs")
def a_run_that_is_ready_counts_as_running(put: Put) -> None:
    going_on = (RunStatus.READY, RunStatus.RUNNING)
    put(Runs, "is_running", lambda self, run_id: self.show(run_id).status in going_on)


@mutant("runs")
def a_run_shares_its_partitions_with_the_live_pipeline(put: Put) -> None:
    put(Runs, "coordinator", lambda self, run_id: self._live)


@mutant("runs")
def a_run_is_stopped_while_partitions_are_held(put: Put) -> None:
    original = run_module._ending

    def ending(status: RunStatus, leases: list[Lease]) -> RunStatus | None:
        return RunStatus.STOPPED if status is RunStatus.STOPPING else original(status, leases)

    put(run_module, "_ending", ending)


@mutant("runs", start=504)
def a_run_that_stops_waits_for_dead_owners(put: Put) -> None:
    put(Runs, "_free_orphans", lambda self, run_id: None)


@mutant("runs")
def a_run_ends_with_its_first_partition(put: Put) -> None:
    original = run_module._ending

    def ending(status: RunStatus, leases: list[Lease]) -> RunStatus | None:
        some = [lease for lease in leases if lease.status in (Status.COMPLETED, Status.FAILED)]
        return original(status, some) if some and status is RunStatus.RUNNING else original(status, leases)

    put(run_module, "_ending", ending)


@mutant("runs")
def failed_partitions_do_not_show_in_the_run(put: Put) -> None:
    original = run_module._ending

    def ending(status: RunStatus, leases: list[Lease]) -> RunStatus | None:
        ended = original(status, leases)
        return RunStatus.COMPLETED if ended is RunStatus.COMPLETED_WITH_ERRORS else ended

    put(run_module, "_ending", ending)


@mutant("runs")
def a_run_may_become_anything(put: Put) -> None:
    anything = {status: set(RunStatus) for status in RunStatus}
    put(run_module, "_NEXT", anything)


@mutant("runs")
def a_new_holder_of_the_lock_leaves_the_former_run_alone(put: Put) -> None:
    put(RunLock, "_fail_former", lambda self, lock, run_id: None)


@mutant("runs")
def recovery_needs_no_lock(put: Put) -> None:
    original = RunLock.recover

    def recover(self: RunLock, policy: Any) -> Any:
        if self._lease is None and (orphans := self._unended()):
            return orphans[:1]
        return original(self, policy)

    put(RunLock, "recover", recover)


@mutant("runs")
def the_lock_is_passed_on_from_any_run(put: Put) -> None:
    put(RunLock, "transfer", lambda self, expected, run_id: self._write(run_id))


@mutant("runs", start=639)
def the_former_run_is_failed_after_the_lock_is_written(put: Put) -> None:
    fail_former = RunLock._fail_former

    def acquire(self: RunLock, run_id: str) -> None:
        before = self._lock.store.get([self._lock_key()])[0]
        original(self, run_id)
        if before is not None:
            fail_former(self, before, run_id)

    original = RunLock.acquire
    put(RunLock, "_fail_former", lambda self, lock, run_id: None)
    put(RunLock, "acquire", acquire)


@mutant("runs", start=307)
def a_run_that_has_ended_is_failed(put: Put) -> None:
    def fail(self: Runs, run_id: str, error: str) -> Any:
        def change(row: Lease, now: float) -> Lease:
            failed = replace(run_module._run(row), status=RunStatus.FAILED, error=error, completed_at=now)
            return run_module._with_run(row, failed)

        return run_module._run(self._rows.change(run_id, change))

    put(Runs, "fail", fail)
