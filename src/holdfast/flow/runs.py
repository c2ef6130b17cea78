"""The runs of one pipeline: creating, stopping and resuming them, and the writes of a run's driver.

Writes of a driver name the token of the run's lock. The run's row keeps the newest token that was written, so that a
former driver, however late, changes nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from holdfast.errors import LeaseLost, UsageError, storable
from holdfast.flow.partition_list import LIMITS, PartitionLimits, PartitionList
from holdfast.flow.run import (
    ENDED,
    NEXT,
    Run,
    RunStatus,
    by_group,
    by_node,
    is_readable,
    new_row,
    run_of,
    runs_of,
    with_run,
)
from holdfast.leases import transitions
from holdfast.leases.coordinator import Coordinator
from holdfast.leases.lease import FINISHED, Json, Partition, Status
from holdfast.leases.operator import Operator
from holdfast.leases.split import unfinished_split
from holdfast.leases.store import Swap
from holdfast.leases.sums import PartitionSum, sums
from holdfast.leases.transitions import claimable, stamped
from holdfast.leases.writes import ensure_rows

SMOOTHING = 30.0
"""Seconds over which the rate of a run is averaged."""


class Runs:
    """The runs of one pipeline. Raises `StoreUnavailable` at once; every call may be repeated."""

    def __init__(self, coordinator: Coordinator, limits: PartitionLimits = LIMITS) -> None:
        """`coordinator` is that of the live pipeline; `Runs.coordinator` makes one for each run."""
        self._live = coordinator
        self._limits = limits
        self._rows = Operator(coordinator.store, coordinator.world.new_id, runs_of(coordinator.pipeline))

    # --- what anyone may do --------------------------------------------------------------------------------------

    def add(self, run_id: str, *, configuration: Json, created_by: str) -> Run:
        """Add an INITIALIZING run without partitions; its driver lists and adds them. Raises `UsageError`."""
        now = self._live.now()
        run = Run(
            run_id, RunStatus.INITIALIZING, configuration, created_by, created_at=now, updated_at=now, unlisted=True
        )
        row = new_row(self._live.pipeline, run, self._live.world.new_id())
        if not ensure_rows(self._live.store, self._live.world, lambda: [row]):
            raise UsageError(f"run {run.id!r} exists already")
        return run

    def stop(self, run_id: str) -> Run:
        """Stop the run: every node hands back its partitions in its next pass."""
        return self._change(run_id, RunStatus.STOPPING)

    def resume(self, run_id: str) -> Run:
        """Let a STOPPED run continue where it was. Raises `UsageError` if it is not STOPPED."""

        def resumed(run: Run, now: float) -> Run:
            ready = _become(run, RunStatus.READY, now, {"completed_at": None, "error": None})
            # Another run may have its locks now: a driver of before must take them again.
            return replace(ready, driver_token=run.driver_token + 1, locked=False)

        return self._write(run_id, resumed)

    def settle_stop(self, run_id: str) -> Run:
        """Set a STOPPING run to STOPPED if no node holds a partition of it; partitions of dead nodes are freed."""
        run = self.show(run_id)
        if run.status is not RunStatus.STOPPING:
            return run
        self._free_orphans(run_id)
        found = self._sums(run_id)
        held = any(part.status is Status.ASSIGNED for part in found)

        def settled(current: Run, now: float) -> Run:
            # Of a run that has changed since, nothing is known; the next call looks anew.
            if held or current.status is not RunStatus.STOPPING or current.updated_at != run.updated_at:
                return current
            return replace(_if_allowed(current, RunStatus.STOPPED, now, {"completed_at": now}), groups=by_group(found))

        return self._write(run_id, settled)

    def fail(self, run_id: str, error: str, token: int | None = None) -> Run:
        """End the run with an error. A run that has ended already stays as it is.

        With the `token` of a driver, raises `LeaseLost` if another one drives the run now.
        """
        if (run := self.show(run_id)).status in ENDED:
            return run

        def failed(run: Run, now: float) -> Run:
            return _become(run, RunStatus.FAILED, now, {"error": storable(error), "completed_at": now})

        return self._write(run_id, failed) if token is None else self._fenced(run_id, token, failed)

    def throttle(self, run_id: str, rate: float | None) -> Run:
        """Limit the run to that many records per second over all nodes; None: no limit."""
        return self._write(run_id, lambda run, now: replace(run, throttle=rate, updated_at=now))

    def amend(self, run_id: str, change: Callable[[Json], Json]) -> Run:
        """Change the state that the driver of an ended run has left. Raises `UsageError` if the run has not ended."""

        def amended(run: Run, now: float) -> Run:
            if run.status not in ENDED:
                raise UsageError(f"run {run_id!r} is {run.status}; stop it first")
            return replace(run, state=change(run.state), updated_at=now)

        return self._write(run_id, amended)

    def show(self, run_id: str) -> Run:
        """The run as it was last aggregated. Raises `PartitionNotFound`."""
        return run_of(self._rows.show(run_id))

    def list(self, left_out: Callable[[str], object] = lambda _id: None) -> Iterator[Run]:
        """The runs by id. `left_out` is called with the ids of those that this version cannot read."""
        for row in self._rows.rows():
            if is_readable(row):
                yield run_of(row)
            else:
                left_out(row.key)

    def coordinator(self, run_id: str) -> Coordinator:
        """The coordinator of that run's leases on this node."""
        live = self._live
        return Coordinator(live.store, live.world, live.session, live.pipeline, run=run_id, policy=live.policy)

    def is_running(self, run_id: str) -> bool:
        """Whether partitions of the run may be claimed."""
        return self.show(run_id).status is RunStatus.RUNNING

    # --- what the driver does ------------------------------------------------------------------------------------

    def drive(self, run_id: str, token: int) -> Run:
        """Begin to drive the run under that token; from now on no driver with an older token can write.

        The run counts as `locked`; if a lock was lost meanwhile, `unlock` has to follow.
        """
        return self._fenced(run_id, token, lambda run, _now: replace(run, locked=True))

    def unlock(self, run_id: str, token: int) -> Run:
        """Leave the locks of the run to other runs, because its driver did not get all of them."""
        return self._fenced(run_id, token, lambda run, _now: replace(run, locked=False))

    def keep(self, run_id: str, token: int, state: Json) -> Run:
        """Store the state of the driver."""
        return self._fenced(run_id, token, lambda run, now: replace(run, state=state, updated_at=now))

    def create(self, run_id: str, token: int, partitions: Iterable[Partition]) -> Run:
        """List the partitions of the first phase, unless they are listed, and add their rows; the run is then READY.

        Raises `Refused` if there are too many.
        """
        run = self.show(run_id)
        if run.unlisted:
            pending = self._list(run_id).write(partitions, token, Counter())
            run = self._fenced(run_id, token, lambda run, _: replace(run, unlisted=False, pending=pending))
        return self.add_pending(run, token)

    def start(self, run_id: str, token: int) -> Run:
        """Set a READY run to RUNNING; from now on its partitions are claimed."""

        def started(run: Run, now: float) -> Run:
            begun = now if run.started_at is None else run.started_at
            return _if_allowed(run, RunStatus.RUNNING, now, {"started_at": begun})

        return self._fenced(run_id, token, started)

    def extend(self, run_id: str, token: int, phase: str, partitions: Iterable[Partition], state: Json) -> Run:
        """Begin a phase: list its partitions, store phase and state with the list, and add the rows.

        No earlier phase may have partitions with the same keys. Raises `Refused` if there are too many partitions.
        """
        groups = self.show(run_id).groups
        existing = Counter({name: group.partitions for name, group in groups.items()})
        pending = self._list(run_id).write(partitions, token, existing)

        def extended(run: Run, now: float) -> Run:
            return replace(run, phase=phase, state=state, pending=pending, updated_at=now)

        return self.add_pending(self._fenced(run_id, token, extended), token)

    def add_pending(self, run: Run, token: int) -> Run:
        """Add the rows of the list that the run's row names, if any: another driver may have died before doing so."""
        if (pending := run.pending) is None:
            return run
        partitions = self._list(run.id)
        partitions.add_rows(pending)
        groups = by_group(self._sums(run.id))

        def added(run: Run, now: float) -> Run:
            if run.pending != pending:
                return run
            status = RunStatus.READY if run.status is RunStatus.INITIALIZING else run.status
            return replace(run, status=status, pending=None, groups=groups, updated_at=now)

        changed = self._fenced(run.id, token, added)
        partitions.remove(pending)
        return changed

    def aggregate(self, run_id: str, token: int) -> Run:
        """Sum the partitions into the run's row, with one read where the store can sum. Returns the run."""
        found = self._sums(run_id)
        groups, nodes = by_group(found), by_node(found)
        left = sum(part.work_units for part in found if part.status not in FINISHED)

        def summed(run: Run, now: float) -> Run:
            rate = _rate(run, sum(group.processed for group in groups.values()), now)
            return replace(run, groups=groups, nodes=nodes, rate=rate, units_left=left, updated_at=now)

        return self._fenced(run_id, token, summed)

    def finish_splits(self, run_id: str) -> bool:
        """Add the partitions of splits that nobody else finishes, because their partition has FAILED since.

        Returns whether there were any. May be repeated.
        """
        partitions = Operator(self._live.store, self._live.world.new_id, self._live.pipeline, run_id)
        children = [child for row in partitions.rows((Status.FAILED,)) for child in unfinished_split(row)]
        return bool(self.coordinator(run_id).create(children)) if children else False

    def end(self, run_id: str, token: int, status: RunStatus, error: str | None = None) -> Run:
        """End a RUNNING run. A run that a person has stopped meanwhile stays STOPPING."""

        def ended(run: Run, now: float) -> Run:
            kept = None if error is None else storable(error)
            return _if_allowed(run, status, now, {"error": kept, "completed_at": now})

        return self._fenced(run_id, token, ended)

    # --- rows ----------------------------------------------------------------------------------------------------

    def _list(self, run_id: str) -> PartitionList:
        return PartitionList(self.coordinator(run_id), self._limits)

    def _sums(self, run_id: str) -> Sequence[PartitionSum]:
        return sums(self._live.store, self._live.pipeline, run_id)

    def _free_orphans(self, run_id: str) -> None:
        """Free partitions whose owners are gone: the run waits for them, and no node claims them while it stops."""
        leases = self.coordinator(run_id)
        leases.sweep()
        now, new_id = leases.now(), self._live.world.new_id
        partitions = Operator(self._live.store, new_id, self._live.pipeline, run_id)
        orphans = [row for row in partitions.rows((Status.ASSIGNED,)) if claimable(row, now)]
        if orphans:
            # A partition that changes meanwhile is freed on the next pass.
            self._live.store.swap(
                [Swap(row.version, stamped(row, transitions.release(row, now), new_id())) for row in orphans]
            )

    def _fenced(self, run_id: str, token: int, change: Callable[[Run, float], Run]) -> Run:
        """Apply a driver's change. Raises `LeaseLost` for a former driver, and if the run has ended."""

        def fenced(run: Run, now: float) -> Run:
            if run.driver_token > token:
                raise LeaseLost(
                    f"another node drives run {run_id!r} under token {run.driver_token}; this node had {token}"
                )
            if run.status in ENDED:
                raise LeaseLost(f"run {run_id!r} is {run.status}; there is nothing left to drive")
            return replace(change(run, now), driver_token=token)

        return self._write(run_id, fenced)

    def _change(self, run_id: str, status: RunStatus, **changes: Any) -> Run:
        return self._write(run_id, lambda run, now: _become(run, status, now, changes))

    def _write(self, run_id: str, change: Callable[[Run, float], Run]) -> Run:
        return run_of(self._rows.change(run_id, lambda row, now: with_run(row, change(run_of(row), now))))


def _become(run: Run, status: RunStatus, now: float, changes: dict[str, Any]) -> Run:
    if status is not run.status and run.status not in NEXT[status]:
        raise UsageError(f"run {run.id!r} is {run.status} and cannot become {status}")
    return replace(run, status=status, updated_at=now, **changes)


def _if_allowed(run: Run, status: RunStatus, now: float, changes: dict[str, Any]) -> Run:
    """The run with that status, or unchanged if a person or another driver has decided otherwise meanwhile."""
    return _become(run, status, now, changes) if run.status in NEXT[status] else run


def _rate(run: Run, processed: int, now: float) -> float | None:
    """Records per second, averaged so that older sums count less."""
    since = run.updated_at if run.status is RunStatus.RUNNING else None
    if since is None or now <= since:
        return run.rate
    latest = max(0, processed - run.counts.processed) / (now - since)
    weight = min(1.0, (now - since) / SMOOTHING)
    return latest if run.rate is None else run.rate + weight * (latest - run.rate)
