"""The API for source authors, with which a pull-based source shares its work among nodes.

Its methods take a partition's key, or the lease that `acquire_next` returned, and raise one of three errors (not found,
not owned, update failed). Each lease has a deadline: set when it is acquired, renewed by `save_state`. After the
deadline other nodes and threads may take the partition even while this node lives; its next call then raises
`PartitionNotOwned`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

from holdfast.errors import (
    HoldfastError,
    LeaseLost,
    LeaseMissing,
    PartitionError,
    PartitionNotFound,
    PartitionNotOwned,
    PartitionUpdateFailed,
    SessionExpired,
    SupplierFailed,
)
from holdfast.events import Action, NothingAcquired, PartitionClosed, PartitionCompleted, PartitionErrorRaised
from holdfast.leases import transitions
from holdfast.leases.coordinator import ClaimPolicy, Coordinator
from holdfast.leases.discovery import Discovery, Supplier
from holdfast.leases.lease import Json, Lease, Partition, Status
from holdfast.leases.operator import Operator
from holdfast.leases.session import Session
from holdfast.leases.store import Store
from holdfast.leases.world import World
from holdfast.leases.writes import FencedWrites, until_answered

Acquired: TypeAlias = str | Lease
"""A partition's key, or the lease that `acquire_next` returned. A thread that shares its coordinator with others gives
the lease: after its deadline another thread may have acquired the same key under a later token."""
OWNERSHIP_TIMEOUT = 600.0
UPDATE_PATIENCE = 30.0


class SourceCoordinator:
    """Partitions of one pipeline for one node. Thread-safe; a session may have several coordinators."""

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
        self._operator = Operator(store, world.new_id, pipeline)
        self._timeout = ownership_timeout
        self._patience = patience
        self._held = _HeldLeases(world)

    def acquire_next(self, supplier: Supplier | None = None, *, force_supplier: bool = False) -> Lease | None:
        """The next free partition: one whose owner is gone, else a closed one that is due, else an unassigned one.

        If there is none, the supplier makes new partitions (one caller at a time, with the shared global state) and a
        free partition is looked for once more; `force_supplier` runs it first, even if partitions are free. Returns
        None if there is nothing now; the caller should wait before it calls again. Raises `SupplierFailed` if there is
        nothing and the supplier failed, here or before on another node, `StoreUnavailable` if the store does not
        respond, and `SessionExpired` if the session has not joined or could not be renewed in time.
        """
        if not self._leases.session.usable:
            raise SessionExpired("the session has not joined, or could not be renewed in time; join again")
        lease = None if force_supplier else self._acquire()
        failure: SupplierFailed | None = None
        if lease is None and supplier is not None:
            try:
                self._discovery(supplier).run_or_raise()
            except SupplierFailed as failed:
                failure = failed
            lease = self._acquire()
        if lease is None and failure is not None:
            raise failure
        if lease is None:
            self._leases.world.emit(NothingAcquired(self._leases.pipeline))
        return lease

    def supplied(self) -> bool:
        """Whether any node has completed a run of the supplier: before that, there may be more partitions to find.

        Blocks while the store does not respond.
        """
        return self._discovery(lambda _state: ()).has_run

    def create_partitions(self, partitions: Iterable[Partition]) -> int:
        """Add partitions that do not exist yet; returns how many were new. Streams; may be repeated."""
        return self._leases.create(partitions)

    def save_state(self, partition: Acquired, state: Json) -> None:
        """Keep the source's progress in the partition's row and renew the lease."""
        self._update(
            partition, "saveState", lambda row, now: transitions.save_state(row, state, now, now + self._timeout)
        )

    def renew(self, partition: Acquired, for_seconds: float | None = None) -> None:
        """Renew the lease without changing its state, for example while waiting for acknowledgements."""
        span = self._timeout if for_seconds is None else for_seconds
        self._update(
            partition,
            "saveState",
            lambda row, now: transitions.save_state(row, row.progress.state, now, now + span),
        )

    def close(self, partition: Acquired, reopen_after: float, max_closed_count: int) -> None:
        """Close the partition and save its state; it is COMPLETED when it has been closed `max_closed_count` times."""
        lease = self._end(
            partition,
            "close",
            lambda row, now: transitions.close(row, now, now + reopen_after, max_closed_count),
        )
        if lease.status is Status.COMPLETED:
            self._emit_completed(lease)
        else:
            self._leases.world.emit(PartitionClosed(lease.pipeline, lease.key, lease.ownership.due_at or 0.0))

    def complete(self, partition: Acquired) -> None:
        """Mark the partition as done; it is never acquired again."""
        self._emit_completed(self._end(partition, "complete", transitions.complete))

    def delete(self, partition: Acquired) -> None:
        """Mark the partition as done and keep only its key and token, below the token floor.

        `create_partitions` does not create it again before its row is forgotten, see `Operator.forget`. If the store
        stops responding in the middle, the partition is COMPLETED, and purging does the rest.
        """
        lease = self._end(partition, "delete", transitions.complete)
        self._emit_completed(lease)
        try:
            until_answered(self._leases.world, "store", lambda: self._operator.purge([lease]), self._patience)
        except HoldfastError as failed:
            error = PartitionUpdateFailed(lease.key, f"it is COMPLETED and not purged yet: {failed}")
            self._report(error, "delete")
            raise error from failed

    def give_up(self, partition: Acquired, priority: int | None = None) -> None:
        """Hand the partition back at once, with its state; `priority`, if given, replaces its priority."""
        self._end(partition, "giveUp", lambda row, now: transitions.release(row, now, priority=priority))

    def give_up_all(self) -> None:
        """Hand back everything this coordinator holds. Partitions that are lost already are left out."""
        leases = self._held.take_all()
        self._leases.release(leases)
        for lease in leases:
            self._leases.check_in(lease)

    def _discovery(self, supplier: Supplier) -> Discovery:
        return Discovery(self._leases, supplier, rerun_after=0.0)

    def _acquire(self) -> Lease | None:
        self._leases.sweep()
        lease = until_answered(self._leases.world, "store", self._leases.check_out, self._patience)
        if lease is not None:
            self._held.put(lease)
        return lease

    def _update(self, partition: Acquired, action: Action, change: Callable[[Lease, float], Lease]) -> Lease:
        try:
            written = self._write(partition, change)
        except PartitionError as error:
            self._report(error, action)
            raise
        self._held.renew(written)
        return written

    def _end(self, partition: Acquired, action: Action, change: Callable[[Lease, float], Lease]) -> Lease:
        written = self._update(partition, action, change)
        self._drop(written)
        return written

    def _drop(self, lease: Lease) -> None:
        self._held.drop(lease)
        self._leases.check_in(lease)

    def _write(self, partition: Acquired, change: Callable[[Lease, float], Lease]) -> Lease:
        lease = self._held.get(partition)
        try:
            now = self._leases.store.now()
            (result,) = self._writes.apply([(lease, lambda row: change(row, now))])
        except HoldfastError as failed:
            raise PartitionUpdateFailed(lease.key, str(failed)) from failed
        if isinstance(result, Lease):
            return result
        self._drop(lease)
        raise _error_for(lease.key, result) from result

    def _emit_completed(self, lease: Lease) -> None:
        self._leases.world.emit(PartitionCompleted(lease.pipeline, lease.key, lease.progress.counts.processed))

    def _report(self, error: PartitionError, action: Action) -> None:
        kind: Any = {PartitionNotFound: "not_found", PartitionNotOwned: "not_owned"}.get(type(error), "update")
        self._leases.world.emit(PartitionErrorRaised(self._leases.pipeline, error.key, kind, action))


class _HeldLeases:
    """The leases that one coordinator holds, by key, each as it was last written. Its threads share it."""

    def __init__(self, world: World) -> None:
        self._lock = world.lock()
        self._leases: dict[str, Lease] = {}

    def get(self, partition: Acquired) -> Lease:
        """The held lease. Raises `PartitionNotOwned` if it is not held, or not under the token of the given lease."""
        key = partition.key if isinstance(partition, Lease) else partition
        with self._lock:
            lease = self._leases.get(key)
        if lease is None:
            raise PartitionNotOwned(key, "this coordinator has not acquired it")
        if isinstance(partition, Lease) and partition.token != lease.token:
            raise PartitionNotOwned(key, f"it was acquired again, under token {lease.token}")
        return lease

    def put(self, lease: Lease) -> None:
        """Hold a lease that was just acquired, unless another thread has acquired it since."""
        with self._lock:
            held = self._leases.get(lease.key)
            if held is None or held.token < lease.token:
                self._leases[lease.key] = lease

    def renew(self, lease: Lease) -> None:
        """Hold the row as written, unless another thread has since written, dropped or acquired it."""
        with self._lock:
            held = self._leases.get(lease.key)
            if held is not None and held.token == lease.token and held.version < lease.version:
                self._leases[lease.key] = lease

    def drop(self, lease: Lease) -> None:
        """Drop the lease under this token, but not one that was acquired later."""
        with self._lock:
            held = self._leases.get(lease.key)
            if held is not None and held.token == lease.token:
                del self._leases[lease.key]

    def take_all(self) -> list[Lease]:
        """Drop all held leases and return them."""
        with self._lock:
            leases = list(self._leases.values())
            self._leases.clear()
        return leases


def _error_for(key: str, lost: LeaseLost) -> PartitionError:
    if isinstance(lost, LeaseMissing):
        return PartitionNotFound(key, "its row is gone")
    return PartitionNotOwned(key, str(lost))
