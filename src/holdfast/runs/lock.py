"""The locks of runs: leases with a deadline of their own, one for each name that a run's driver gives.

A run takes all of its locks or none, in the order of their names, so that no two runs wait for each other. A lock names
its run until the run has ended: when its node dies, the next driver of the same run takes it over. Another run takes it
only when it is begun by a command that says so, and the former run has then FAILED.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from holdfast.errors import LeaseLost, PartitionNotFound, Refused
from holdfast.flow.run import ENDED, RunStatus
from holdfast.flow.runs import Runs
from holdfast.leases import transitions
from holdfast.leases.coordinator import ClaimPolicy, Coordinator
from holdfast.leases.duty import NEVER_GIVE_UP
from holdfast.leases.lease import Key, Lease, Partition, new_lease
from holdfast.leases.store import ClaimRequest, Outcome, Swap
from holdfast.leases.writes import ensure_rows, until_answered

PIPELINE_LOCK = "$run"
"""The lock of runs that name none."""


class LockTiming(NamedTuple):
    """After how many seconds a lock that is not renewed may be taken over, and how often its holder renews it."""

    timeout: float = 300.0
    refresh: float = 60.0


LOCK_TIMING = LockTiming()


class RunLock:
    """The locks of one run as this node holds them. Call `refresh` once a minute.

    `refresh` may be called by another thread than the rest.
    """

    def __init__(self, live: Coordinator, runs: Runs, *, timeout: float = LOCK_TIMING.timeout) -> None:
        self._timeout = timeout
        self._runs = runs
        policy = ClaimPolicy(ownership_timeout=timeout, limits=NEVER_GIVE_UP)
        self._lock = Coordinator(live.store, live.world, live.session, f"{live.pipeline}/$run", policy=policy)
        self._leases: tuple[Lease, ...] = ()

    @property
    def held(self) -> bool:
        return bool(self._leases)

    def acquire(self, run_id: str, names: Sequence[str] = (), *, instead: bool = False) -> int:
        """Take these locks for that run, all or none, and return the token under which the run is driven.

        Raises `Refused` when another run has one of them. With `instead`, a run that has not ended and whose node is
        gone is failed, and loses its lock to this one.
        """
        ordered = sorted(set(names)) or [PIPELINE_LOCK]
        self._add_rows(ordered)
        self._lock.sweep()
        taken: list[Lease] = []
        try:
            for name in ordered:
                taken.append(self._take(name, run_id, instead=instead))  # noqa: PERF401 - an error leaves the others
        except Refused:
            self._give_back(taken, run_id)
            raise
        self._leases = tuple(taken)
        return taken[0].token

    def holder(self, name: str = PIPELINE_LOCK) -> str | None:
        """Return the run for which the lock was last taken, whether or not it has ended."""
        row = self._row(name)
        return None if row is None else _run_named(row)

    def refresh(self) -> None:
        """Renew the locks. Does nothing if none is held.

        Raises `LeaseLost` when one is lost: all have to be acquired again.
        """
        if not (held := self._leases):
            return
        try:
            renewed = self._name(held, str(_run_named(held[0])))
        except LeaseLost:
            self._leases = ()
            self._lock.release(held)
            raise
        if self._leases is held:
            self._leases = renewed

    def transfer(self, expected: str, run_id: str) -> None:
        """Pass the locks on to another run, each in one write, only if they still belong to the expected one."""
        if not self._leases:
            raise Refused("this node does not hold the lock")
        if (named := _run_named(self._leases[0])) != expected:
            raise Refused(f"the lock belongs to run {named!r}, not to {expected!r}")
        self._leases = self._name(self._leases, run_id)

    def release(self) -> None:
        """Release the locks. Does nothing if none is held."""
        held, self._leases = self._leases, ()
        self._lock.release(held)

    def _add_rows(self, names: Sequence[str]) -> None:
        lock = self._lock
        now, write_id = lock.now(), lock.world.new_id()
        rows = [new_lease(lock.pipeline, Partition(name), write_id, now=now) for name in names]
        ensure_rows(lock.store, lock.world, lambda: rows)

    def _take(self, name: str, run_id: str, *, instead: bool) -> Lease:
        row = self._row(name)
        if row is None:
            raise Refused(f"the lock {name!r} is gone")
        former = _run_named(row)
        if row.owner == self._lock.session.id and former == run_id:
            return row  # taken by a write of this node whose response was lost
        if not transitions.claimable(row, self._lock.now()):
            raise Refused(f"run {former!r} is going on; stop it first, or wait until it has ended")
        if former in (None, run_id) or not self._keeps_locks(str(former)):
            return self._swapped(row, run_id, run_id)
        if not instead:
            raise Refused(f"run {former!r} has not ended; stop it first, or wait until it has ended")
        # It fails before another run has its lock, and only when no other node can take it over any more.
        lease = self._swapped(row, str(former), run_id)
        self._runs.fail(str(former), f"the lock was lost to run {run_id!r}")
        try:
            return self._name((lease,), run_id)[0]
        except LeaseLost as lost:
            raise Refused(f"the lock was lost immediately: {lost}") from lost

    def _swapped(self, row: Lease, named: str, run_id: str) -> Lease:
        """The row as this node has taken it. Raises `Refused` if another node was faster."""
        lock = self._lock
        claim = ClaimRequest(
            lock.pipeline, lock.session.id, lock.world.new_id(), ownership_timeout=self._timeout, run=lock.run
        )
        wanted = _naming(claim.take(row, lock.now()), named)
        if until_answered(lock.world, "store", lambda: lock.store.swap([Swap(row.version, wanted)])) == [Outcome.OK]:
            return wanted
        found = self._row(row.key)
        if found is None or found.ownership.write_id != claim.write_id:
            raise Refused(f"another node has taken the lock {row.key!r} before run {run_id!r} could")
        return found

    def _name(self, leases: Sequence[Lease], run_id: str) -> tuple[Lease, ...]:
        """Write the run's name into the locks and renew them. Raises `LeaseLost` if one of them is lost."""
        state = {"run": run_id}
        written: list[Lease] = []
        for result in self._lock.write(
            leases, lambda row, now: transitions.save_state(row, state, now, now + self._timeout)
        ):
            if isinstance(result, LeaseLost):
                raise result
            written.append(result)
        return tuple(written)

    def _give_back(self, leases: Sequence[Lease], run_id: str) -> None:
        """Release the locks of a run that did not get all; they keep its name only if no other run may take them."""
        named = run_id if leases and self._keeps_locks(run_id) else None
        self._lock.write(leases, lambda row, now: transitions.release(_naming(row, named), now))

    def _keeps_locks(self, run_id: str) -> bool:
        """Whether no other run may take the locks that name this run."""
        try:
            run = self._runs.show(run_id)
        except PartitionNotFound:
            return False  # its node died before it added the run
        # A run of an earlier version has no mark, and had its lock if it was started.
        return run.status not in ENDED and (run.locked or run.status in (RunStatus.RUNNING, RunStatus.STOPPING))

    def _row(self, name: str) -> Lease | None:
        lock = self._lock
        (row,) = until_answered(lock.world, "store", lambda: lock.store.get([Key(lock.pipeline, lock.run, name)]))
        return row


def _run_named(row: Lease) -> str | None:
    state = row.progress.state
    return None if state is None or state["run"] is None else str(state["run"])


def _naming(row: Lease, run_id: str | None) -> Lease:
    return replace(row, progress=replace(row.progress, state={"run": run_id}))
