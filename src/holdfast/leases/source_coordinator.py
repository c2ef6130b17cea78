"""The API for source authors: all that a pull-based source needs to share its work among nodes.

It speaks of keys, raises three errors (not found, not owned, update failed) and gives each lease a deadline of its
own: set when the lease is acquired, renewed by `save_state`. When it passes, other nodes may take the partition even
while this one lives, and this one learns it by `PartitionNotOwned`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from holdfast.errors import (
    HoldfastError,
    LeaseLost,
    LeaseMissing,
    PartitionError,
    PartitionNotFound,
    PartitionNotOwned,
    PartitionUpdateFailed,
)
from holdfast.events import Action, NothingAcquired, PartitionClosed, PartitionCompleted, PartitionErrorRaised
from holdfast.leases import transitions
from holdfast.leases.coordinator import ClaimPolicy, Coordinator
from holdfast.leases.discovery import Discovery, Supplier
from holdfast.leases.lease import Json, Lease, Partition, Status
from holdfast.leases.session import Session
from holdfast.leases.store import Store
from holdfast.leases.world import World
from holdfast.leases.writes import FencedWrites

OWNERSHIP_TIMEOUT = 600.0
UPDATE_PATIENCE = 30.0


class SourceCoordinator:
    """Partitions of one pipeline for one node. Not safe to call from several threads at once."""

    def __init__(
        self,
        store: Store,
        world: World,
        session: Session,
        pipeline: str,
        *,
        ownership_timeout: float = OWNERSHIP_TIMEOUT,
        closed_last: bool = False,
        patience: float = UPDATE_PATIENCE,
    ) -> None:
        policy = ClaimPolicy(closed_last=closed_last, ownership_timeout=ownership_timeout)
        self._leases = Coordinator(store, world, session, pipeline, policy=policy)
        self._writes = FencedWrites(store, world, patience)
        self._timeout = ownership_timeout
        self._held: dict[str, Lease] = {}

    def acquire_next(self, supplier: Supplier | None = None) -> Lease | None:
        """The next free partition: one whose owner is gone, else a closed one that is due, else an unassigned one.

        If there is none, the supplier makes new partitions (one node at a time, with the shared global state) and
        all are looked at again. None if there is still nothing; the caller should wait before it asks again.
        """
        lease = self._acquire()
        if lease is None and supplier is not None:
            Discovery(self._leases, supplier, again_after=0.0).run()
            lease = self._acquire()
        if lease is None:
            self._leases.world.emit(NothingAcquired(self._leases.pipeline))
        return lease

    def create_partitions(self, partitions: Iterable[Partition]) -> int:
        """Add partitions that are not there yet; answers how many were new. Streams; may be repeated."""
        return self._leases.create(partitions)

    def save_state(self, key: str, state: Json) -> None:
        """Keep the source's progress in the partition's row and renew the lease."""
        self._update(key, "saveState", lambda row, now: transitions.save_state(row, state, now, now + self._timeout))

    def renew(self, key: str, for_seconds: float | None = None) -> None:
        """Keep the lease for longer without touching its state, for example while waiting for acknowledgements."""
        span = self._timeout if for_seconds is None else for_seconds
        self._update(
            key,
            "saveState",
            lambda row, now: transitions.save_state(row, row.progress.state, now, now + span),
        )

    def close(self, key: str, reopen_after: float, max_closed_count: int) -> None:
        """Let the partition sleep, with its state; it is COMPLETED when it has been closed that many times."""
        lease = self._update(
            key,
            "close",
            lambda row, now: transitions.close(row, now, now + reopen_after, max_closed_count),
        )
        self._held.pop(key, None)
        pipeline, processed = lease.pipeline, lease.progress.counts.processed
        if lease.status is Status.COMPLETED:
            self._leases.world.emit(PartitionCompleted(pipeline, key, processed))
        else:
            self._leases.world.emit(PartitionClosed(pipeline, key, lease.ownership.due_at or 0.0))

    def complete(self, key: str) -> None:
        """The partition is done and is never acquired again."""
        lease = self._update(key, "complete", transitions.complete)
        self._held.pop(key, None)
        self._leases.world.emit(PartitionCompleted(lease.pipeline, key, lease.progress.counts.processed))

    def give_up(self, key: str) -> None:
        """Hand the partition back at once, with its state."""
        self._update(key, "giveUp", transitions.release)
        self._held.pop(key, None)

    def give_up_all(self) -> None:
        """Hand back everything this node holds. Partitions that are lost already are passed over."""
        self._leases.release(list(self._held.values()))
        self._held.clear()

    def _acquire(self) -> Lease | None:
        self._leases.sweep()
        # A claim whose answer was lost has left its lease with this node, and only this node can tell.
        unknown = (row for row in self._leases.owned() if row.key not in self._held)
        for lease in self._leases.claim(1) or self._leases.adopt(unknown):
            self._held[lease.key] = lease
            return lease
        return None

    def _update(self, key: str, action: Action, change: Callable[[Lease, float], Lease]) -> Lease:
        try:
            written = self._write(key, change)
        except PartitionError as error:
            self._report(error, action)
            raise
        self._held[key] = written
        return written

    def _write(self, key: str, change: Callable[[Lease, float], Lease]) -> Lease:
        lease = self._held.get(key)
        if lease is None:
            raise PartitionNotOwned(key, "this node has not acquired it")
        try:
            now = self._leases.store.now()
            (result,) = self._writes.apply([(lease, lambda row: change(row, now))])
        except HoldfastError as failed:
            raise PartitionUpdateFailed(key, str(failed)) from failed
        if isinstance(result, Lease):
            return result
        self._held.pop(key, None)
        raise _error_for(key, result) from result

    def _report(self, error: PartitionError, action: Action) -> None:
        kind: Any = {PartitionNotFound: "not_found", PartitionNotOwned: "not_owned"}.get(type(error), "update")
        self._leases.world.emit(PartitionErrorRaised(self._leases.pipeline, error.key, kind, action))


def _error_for(key: str, lost: LeaseLost) -> PartitionError:
    if isinstance(lost, LeaseMissing):
        return PartitionNotFound(key, "its row is gone")
    return PartitionNotOwned(key, str(lost))
