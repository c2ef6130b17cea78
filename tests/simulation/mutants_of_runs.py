"""Mutants of runs, their drivers and their locks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from holdfast.errors import Refused
from holdfast.flow import run as run_module
from holdfast.flow import runs as runs_module
from holdfast.flow.partition_list import PartitionList
from holdfast.flow.run import Run, RunStatus
from holdfast.flow.runs import Runs
from holdfast.leases.controls import Controls
from holdfast.leases.lease import Lease, Ownership, Progress
from holdfast.runs import driving as driving_module
from holdfast.runs.driving import Driving
from holdfast.runs.lock import PIPELINE_LOCK, RunLock
from tests.simulation.mutation import Put, mutant, mutant_of_test


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
    original = Runs.settle_stop

    def settle_stop(self: Runs, run_id: str) -> Run:
        sums, self._sums = self._sums, lambda _run: ()  # type: ignore[method-assign,assignment]
        try:
            return original(self, run_id)
        finally:
            self._sums = sums  # type: ignore[method-assign]

    put(Runs, "settle_stop", settle_stop)


@mutant("runs", start=167)
def a_run_that_stops_waits_for_dead_owners(put: Put) -> None:
    put(Runs, "_free_orphans", lambda self, run_id: None)


@mutant("runs")
def a_phase_ends_with_its_first_partition(put: Put) -> None:
    def is_finished(run: Run) -> bool:
        return any(group.completed + group.failed_partitions for group in run.groups.values())

    put(driving_module, "is_finished", is_finished)


@mutant("runs", start=20)
def a_run_may_become_anything(put: Put) -> None:
    anything = {status: frozenset(RunStatus) for status in RunStatus}
    put(run_module, "NEXT", anything)
    put(runs_module, "NEXT", anything)


@mutant("runs")
def a_former_driver_may_still_write(put: Put) -> None:
    def fenced(self: Runs, run_id: str, token: int, change: Callable[[Run, float], Run]) -> Run:
        return self._write(run_id, lambda run, now: replace(change(run, now), driver_token=token))

    put(Runs, "_fenced", fenced)


@mutant_of_test("tests/unit/flow/test_runs.py", "two partitions are added in one write, so that lists are never mixed")
def rows_are_added_before_their_list_is_named_in_the_run(put: Put) -> None:
    original = PartitionList.write

    def write(self: PartitionList, partitions: Any, token: int, existing: Any) -> Any:
        listed = list(partitions)
        self._coordinator.create(listed)
        return original(self, listed, token, existing)

    put(PartitionList, "write", write)


@mutant("runs")
def an_extension_that_was_interrupted_is_not_finished(put: Put) -> None:
    def add_pending(self: Runs, run: Run, token: int) -> Run:
        if run.phase and run.status is RunStatus.RUNNING:
            return self._fenced(run.id, token, lambda run, _now: replace(run, pending=None))
        return original(self, run, token)

    original = Runs.add_pending
    put(Runs, "add_pending", add_pending)


@mutant("runs")
def a_run_takes_the_locks_that_it_can_get(put: Put) -> None:
    def acquire(self: RunLock, run_id: str, names: Sequence[str] = (), *, instead: bool = False) -> int:
        ordered = sorted(set(names)) or [PIPELINE_LOCK]
        self._add_rows(ordered)
        self._lock.sweep()
        taken: list[Lease] = []
        for name in ordered:
            try:
                taken.append(self._take(name, run_id, instead=instead))
            except Refused:
                continue
        if not taken:
            raise Refused("none is free")
        self._leases = tuple(taken)
        return taken[0].token

    put(RunLock, "acquire", acquire)


@mutant("runs")
def a_lock_may_be_taken_from_a_run_whose_node_is_gone(put: Put) -> None:
    put(RunLock, "_keeps_locks", lambda self, run_id: False)


@mutant_of_test("tests/unit/flow/test_runs.py", "a driver must sleep through a stop, another run and a resumption")
def a_run_that_is_resumed_keeps_its_former_driver(put: Put) -> None:
    put(Runs, "resume", lambda self, run_id: self._change(run_id, RunStatus.READY, completed_at=None, error=None))


@mutant("runs", start=60)
def a_driver_that_was_replaced_fails_the_run(put: Put) -> None:
    original = Runs.fail
    put(Runs, "fail", lambda self, run_id, error, token=None: original(self, run_id, error))


@mutant("runs")
def runs_are_driven_without_a_lock(put: Put) -> None:
    def take_over(self: Driving, run: Run) -> bool:
        self._token = run.driver_token + 1
        return True

    put(Driving, "_take_over", take_over)


@mutant("runs", start=359)
def a_driver_goes_on_before_its_run_keeps_its_locks(put: Put) -> None:
    original = Driving._confirm

    def confirm(self: Driving, token: int) -> bool:
        self._token = token
        return original(self, token)

    put(Driving, "_confirm", confirm)


@mutant("runs", start=21)
def a_drained_node_works_on(put: Put) -> None:
    put(Controls, "permit", lambda self, pipeline, node: pipeline not in self.paused())


@mutant("runs", start=23)
def a_paused_pipeline_is_worked_on(put: Put) -> None:
    put(Controls, "permit", lambda self, pipeline, node: node not in self.drained())


@mutant("runs")
def a_pipeline_is_paused_once(put: Put) -> None:
    def written(self: Controls, name: str, state: Any) -> None:
        row = Lease(self._pipeline, name, ownership=Ownership(due_at=None), progress=Progress(state=state))
        self.store.add([row])

    put(Controls, "_write", written)


@mutant_of_test("tests/unit/flow/test_controls.py", "its nodes read the controls themselves, without the loop")
def the_loop_reads_no_controls(put: Put) -> None:
    put(Controls, "permit", lambda self, pipeline, node: True)
