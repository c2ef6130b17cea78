"""Discovery: runs the supplier of partitions, on one node at a time, under the `$discovery` lease.

The state of the lease is the supplier's global state, shared by all nodes. After a run the lease is closed until the
next run is due, or is complete when there is nothing more to find. A node that dies in the middle loses nothing: rows
that exist are not added twice, and the next node runs the supplier from the saved state.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any, TypeAlias

from holdfast.errors import Interrupted, SupplierFailed
from holdfast.events import DiscoveryFailed, DiscoveryFinished
from holdfast.leases import transitions
from holdfast.leases.coordinator import Coordinator
from holdfast.leases.duty import NEVER_GIVE_UP, Duty
from holdfast.leases.lease import Key, Lease, Partition, Status

Supplier: TypeAlias = Callable[[dict[str, Any]], Iterable[Partition | None]]
"""Given the global state, which it may change, yields partitions in the order in which they should be taken.

A search that finds nothing for minutes yields None as a sign of life.
"""

PATIENCE = 600.0
"""Seconds after which a supplier that yields nothing is taken to hang, and another node may run it."""


class Discovery(Duty):
    """Finds partitions for one pipeline."""

    def __init__(
        self,
        partitions: Coordinator,
        supplier: Supplier,
        *,
        rerun_after: float | Callable[[dict[str, Any]], float | None] | None,
        added: Callable[[], None] = lambda: None,
    ) -> None:
        """`rerun_after`: seconds until the supplier runs again, or a function that returns them for the state that a
        run has left; None if that run has found everything. `added` is called when there may be new partitions:
        periodically while the supplier runs, and after each run of this node.
        """
        super().__init__(partitions, discovery_of(partitions.pipeline, partitions.run), patience=PATIENCE)
        self._partitions = partitions
        self._supplier = supplier
        self._rerun_after = rerun_after if callable(rerun_after) else lambda _state: rerun_after
        self._added = added

    def run(self) -> bool:
        """Run the supplier if it is due and no other node runs it. Returns whether it ran. Blocks until it is done.

        An error of the supplier is reported, and the supplier is run again later, by any node.
        """
        try:
            ran = self.run_or_raise()
        except SupplierFailed:
            return False
        if ran:
            self._added()
        return ran

    def run_or_raise(self) -> bool:
        """Like `run`, but raises `SupplierFailed` if the supplier fails, or has failed before and is not due yet."""
        row = self.recent_row()
        if row is None:
            self.add_row()
        elif row.status is Status.COMPLETED:
            return False
        if self.under_lease(self._run_under):
            return True
        if row is not None and row.status is Status.UNASSIGNED and row.history.last_error is not None:
            raise SupplierFailed(row.history.last_error)
        return False

    def report(self, error: Exception) -> None:
        self.world.emit(DiscoveryFailed(self.pipeline, str(error) or repr(error)))

    @property
    def exhausted(self) -> bool:
        """Whether everything has been found. Blocks until the store has responded."""
        row = self.row()
        return row is not None and row.status is Status.COMPLETED

    @property
    def has_run(self) -> bool:
        """Whether a run was ever completed, by any node. Blocks until the store has responded."""
        row = self.row()
        return row is not None and (row.history.closed_count > 0 or row.status is Status.COMPLETED)

    def _run_under(self, lease: Lease) -> None:
        # A deep copy: what a run changes before it fails must not be saved.
        state = copy.deepcopy(lease.progress.state or {})
        found = _Found(self._supplier, state, lambda: self.renew(lease), self.world.clock.monotonic)
        try:
            created = self._create(found)
            rerun_after = self._rerun_after(state)
            self._finish(lease, state, rerun_after)
        except Interrupted:
            raise
        except Exception as failed:
            self._put_off(lease, str(failed))
            raise SupplierFailed(str(failed)) from failed
        exhausted = rerun_after is None
        self.world.emit(DiscoveryFinished(self.pipeline, found.count, created, exhausted))

    def _create(self, found: _Found) -> int:
        created = self._partitions.create(found, self._added)
        if found.failure is not None:
            raise found.failure
        return created

    def _finish(self, lease: Lease, state: dict[str, Any], rerun_after: float | None) -> None:
        def sleep(row: Lease, now: float) -> Lease:
            fresh = replace(row.history, attempts=0, takeovers=0, last_error=None)
            saved = replace(row, progress=replace(row.progress, state=state), history=fresh)
            if rerun_after is None:
                return transitions.complete(saved, now)
            return transitions.close(saved, now, now + rerun_after)

        self.lock.write([lease], sleep)

    def _put_off(self, lease: Lease, error: str) -> None:
        self.world.emit(DiscoveryFailed(self.pipeline, error))
        self.lock.write([lease], lambda row, now: transitions.fail_attempt(row, error, NEVER_GIVE_UP, now))


class _Found:
    """The partitions that a supplier yields, counted; calls `goes_on` periodically. Signs of life are left out.

    An error of the supplier ends the iteration and is kept, so that what was yielded before is added.
    """

    def __init__(
        self,
        supplier: Supplier,
        state: dict[str, Any],
        goes_on: Callable[[], object],
        monotonic: Callable[[], float],
    ) -> None:
        self._supplier = supplier
        self._state = state
        self._goes_on = goes_on
        self._monotonic = monotonic
        self.count = 0
        self.failure: Exception | None = None

    def __iter__(self) -> Iterator[Partition]:
        try:
            yield from self._yielded()
        except Interrupted:
            raise
        except Exception as failed:  # noqa: BLE001 - the supplier is foreign code
            self.failure = failed

    def _yielded(self) -> Iterator[Partition]:
        renewed_at = self._monotonic()
        for partition in self._supplier(self._state):
            self.count += partition is not None
            if (now := self._monotonic()) - renewed_at >= PATIENCE / 4:
                self._goes_on()
                renewed_at = now
            if partition is not None:
                yield partition


def discovery_of(pipeline: str, run: str = "") -> Key:
    """The key of the pipeline's discovery lease, which is not one of its partitions."""
    return Key(f"{pipeline}/$discovery", run, "$discovery")
