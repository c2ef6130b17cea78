"""Discovery: the supplier of partitions, run by one node at a time under the `$discovery` lease.

The lease's state is the supplier's global state, shared by all nodes. After a run the lease sleeps until the
next one, or is complete when there is nothing more to find. A node that dies in the middle loses nothing: rows
that exist already are not added twice, and the next node runs the supplier again from the saved state.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any, TypeAlias

from holdfast.errors import Interrupted, SupplierFailed
from holdfast.events import DiscoveryFailed, DiscoveryFinished
from holdfast.leases import transitions
from holdfast.leases.coordinator import ClaimPolicy, Coordinator
from holdfast.leases.lease import Key, Lease, Partition, Status, new_lease
from holdfast.leases.query import Query
from holdfast.leases.transitions import RetryLimits
from holdfast.leases.writes import add_surely, until_answered

Supplier: TypeAlias = Callable[[dict[str, Any]], Iterable[Partition | None]]
"""Given the global state, which it may change, yields partitions in the order in which they should be taken.

None says that it goes on, where it finds nothing for minutes.
"""

PATIENCE = 600.0
"""A supplier that yields nothing for so long is believed to hang, and another node may run it."""
NEVER_GIVE_UP = RetryLimits(max_retries=1 << 31, max_takeovers=1 << 31)


class Discovery:
    """Finds partitions for one pipeline. `run` may be called by every node at any time."""

    def __init__(
        self,
        partitions: Coordinator,
        supplier: Supplier,
        *,
        again_after: float | Callable[[dict[str, Any]], float | None] | None,
        added: Callable[[], None] = lambda: None,
    ) -> None:
        """`again_after`: seconds until the supplier runs again, or what tells them by the state that a run has left;
        None if that run has found everything. `added` is called whenever some partitions are there, and not all yet.
        """
        self._partitions = partitions
        self._supplier = supplier
        self._again_after = again_after if callable(again_after) else lambda _state: again_after
        self._added = added
        self._key = discovery_of(partitions.pipeline, partitions.run)
        self._lock = Coordinator(
            partitions.store,
            partitions.world,
            partitions.session,
            self._key.pipeline,
            run=partitions.run,
            policy=ClaimPolicy(ownership_timeout=PATIENCE, limits=NEVER_GIVE_UP),
        )

    def run(self) -> bool:
        """Run the supplier if it is due and nobody else runs it. True if it ran. Blocks until it is done.

        An error of the supplier is reported and tried again later, by any node.
        """
        try:
            return self.run_or_raise()
        except SupplierFailed:
            return False

    def run_or_raise(self) -> bool:
        """As `run`. Raises `SupplierFailed` if the supplier fails, or has failed lately and is not due yet."""
        row = self._recent_row()
        if row is None:
            self._add_row()
        elif row.status is Status.COMPLETED:
            return False
        self._lock.sweep()
        lease = until_answered(self._lock.world, "store", self._lock.take_one)
        if lease is not None:
            try:
                self._run_under(lease)
            finally:
                self._lock.let_go(lease)
            return True
        if row is not None and row.status is Status.UNASSIGNED and row.history.last_error is not None:
            raise SupplierFailed(row.history.last_error)
        return False

    @property
    def exhausted(self) -> bool:
        """Whether everything has been found. Blocks until the store has answered."""
        row = self._row()
        return row is not None and row.status is Status.COMPLETED

    @property
    def has_run(self) -> bool:
        """Whether a run was ever completed, by any node. Blocks until the store has answered."""
        row = self._row()
        return row is not None and (row.history.closed_count > 0 or row.status is Status.COMPLETED)

    def _row(self) -> Lease | None:
        (row,) = until_answered(self._lock.world, "store", lambda: self._lock.store.get([self._key]))
        return row

    def _recent_row(self) -> Lease | None:
        # Nothing is decided by it: the lease is claimed by version.
        rows = until_answered(self._lock.world, "store", lambda: self._lock.recent.find(Query(*self._key[:2])))
        return rows[0] if rows else None

    def _add_row(self) -> None:
        lock = self._lock
        row = new_lease(lock.pipeline, Partition("$discovery"), lock.world.new_id(), run=lock.run, now=lock.now())
        add_surely(lock.store, lock.world, lambda: [row])

    def _run_under(self, lease: Lease) -> None:
        # A copy to the last depth: what a run changes before it fails must not be saved.
        state = copy.deepcopy(lease.progress.state or {})
        found = _Found(self._supplier, state, lambda: self._renew(lease), self._lock.world.clock.monotonic)
        try:
            created = self._create(found)
            again_after = self._again_after(state)
            self._finish(lease, state, again_after)
        except Interrupted:
            raise
        except Exception as failed:
            self._put_off(lease, str(failed))
            raise SupplierFailed(str(failed)) from failed
        exhausted = again_after is None
        self._lock.world.emit(DiscoveryFinished(self._partitions.pipeline, found.count, created, exhausted))

    def _create(self, found: _Found) -> int:
        created = self._partitions.create(found, self._added)
        if found.failure is not None:
            raise found.failure
        return created

    def _renew(self, lease: Lease) -> None:
        self._lock.write([lease], lambda row, now: transitions.save_state(row, row.progress.state, now, now + PATIENCE))

    def _finish(self, lease: Lease, state: dict[str, Any], again_after: float | None) -> None:
        def sleep(row: Lease, now: float) -> Lease:
            fresh = replace(row.history, attempts=0, takeovers=0, last_error=None)
            saved = replace(row, progress=replace(row.progress, state=state), history=fresh)
            if again_after is None:
                return transitions.complete(saved, now)
            return transitions.close(saved, now, now + again_after)

        self._lock.write([lease], sleep)

    def _put_off(self, lease: Lease, error: str) -> None:
        self._lock.world.emit(DiscoveryFailed(self._partitions.pipeline, error))
        self._lock.write([lease], lambda row, now: transitions.fail_attempt(row, error, NEVER_GIVE_UP, now))


class _Found:
    """What a supplier yields, counted; tells now and then that it goes on. Mere signs of life end here.

    An error of the supplier ends it and is kept, so that what was yielded before is added all the same.
    """

    def __init__(
        self,
        supplier: Supplier,
        state: dict[str, Any],
        goes_on: Callable[[], None],
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
        except Exception as failed:  # noqa: BLE001 - the supplier is foreign code; what it raises is its own affair
            self.failure = failed

    def _yielded(self) -> Iterator[Partition]:
        told_at = self._monotonic()
        for partition in self._supplier(self._state):
            self.count += partition is not None
            if (now := self._monotonic()) - told_at >= PATIENCE / 4:
                self._goes_on()
                told_at = now
            if partition is not None:
                yield partition


def discovery_of(pipeline: str, run: str = "") -> Key:
    """Where the pipeline's discovery lease is kept: beside its partitions, never among them."""
    return Key(f"{pipeline}/$discovery", run, "$discovery")
