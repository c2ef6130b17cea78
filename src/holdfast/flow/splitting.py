"""Splitting: when no partition of a run is free any more, owners share what is left of theirs.

Estimates are wrong and nodes are of different speed, so that at the end of a run some nodes have much to do and others
nothing. A node that sees no free partition first hands back what it holds but cannot begin, and then splits its largest
partition at the cursor. Nothing more is shared until another node has taken what was shared. A node that is alone
splits only its last partition, so that all its cores have work.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from holdfast.errors import BatchError, LeaseLost, StoreUnavailable, Unavailable
from holdfast.events import PartitionSplit
from holdfast.flow.holdings import Held, Holdings
from holdfast.flow.pipeline import reported
from holdfast.flow.source import SplitsPartitions
from holdfast.leases import split as splits
from holdfast.leases.coordinator import Coordinator
from holdfast.leases.lease import Lease, Status
from holdfast.leases.query import Query
from holdfast.leases.split import Split

EAGER = 0.1
"""Part of a heartbeat between two looks for free partitions."""
CANDIDATES = 3
"""How many partitions are tried: what is left of them is only estimated."""


class Splitter:
    """Shares the partitions of one pipeline's holdings. Blocks on the store, and on the source while it splits."""

    def __init__(self, coordinator: Coordinator, source: SplitsPartitions, holdings: Holdings) -> None:
        self._coordinator = coordinator
        self._source = source
        self._holdings = holdings
        self._next = 0.0

    def turn(self, *, has_room: bool) -> None:
        """Finish interrupted splits, and split partitions with which other nodes could help.

        `has_room`: whether batches can begin now.
        """
        world = self._coordinator.world
        now = world.clock.monotonic()
        resting = self._holdings.ready(now, lambda held: held.admitted and held.at_rest and held.hand_to is None)
        for held in resting:
            if splits.unfinished_split(held.lease):
                self._finish(held)
        if not resting or now < self._next or self._something_is_free():
            return
        self._next = now + world.jittered(self._coordinator.session.timing.heartbeat * EAGER)
        if self._is_alone() and not (len(self._holdings) == 1 and has_room):
            return
        if has_room:
            largest = sorted(resting, key=lambda held: rest_of(held.lease), reverse=True)
            any(self._split(held) for held in largest[:CANDIDATES])
        else:
            self._hand_back(resting)

    def _something_is_free(self) -> bool:
        query = Query(self._coordinator.pipeline, self._coordinator.run, (Status.UNASSIGNED,), due=True, limit=1)
        try:
            return bool(self._coordinator.store.find(query))
        except StoreUnavailable:
            return True

    def _is_alone(self) -> bool:
        """Whether no other node of the fleet runs: it would have to come before it could help."""
        session = self._coordinator.session
        query = Query(session.fleet, statuses=(Status.ASSIGNED,), limit=2)
        try:
            found = self._coordinator.store.find(query)
        except StoreUnavailable:
            return False
        return all(row.key == session.id for row in found)

    def _hand_back(self, waiting: Sequence[Held]) -> None:
        """Hand back half of the leases that wait here, the smallest ones."""
        ordered = sorted(waiting, key=lambda held: rest_of(held.lease))
        going = ordered[: (len(ordered) + 1) // 2]
        self._coordinator.release([held.lease for held in going])
        for held in going:
            self._holdings.drop(held)

    # --- splitting ---------------------------------------------------------------------------------------------

    def _split(self, held: Held) -> bool:
        """Split the partition; returns False if it cannot be split, or too little of it is left."""
        lease, made = held.lease, self._made(held.lease)
        if made is None:
            return False
        (result,) = self._coordinator.write([lease], lambda row, now: splits.split(row, made, lease, now))
        if isinstance(result, LeaseLost):
            self._holdings.drop(held)
            return False
        held.lease = result
        self._finish(held)
        return True

    def _made(self, lease: Lease) -> Split | None:
        made: Split | None = None
        with (
            reported(self._coordinator.world.emit, f"{self._coordinator.pipeline}: `split` of the source"),
            suppress(Unavailable, BatchError),  # the next batch tells what is wrong
        ):
            made = self._source.split(lease)
        return made

    def _finish(self, held: Held) -> None:
        """Add the rows of the new partitions that this row names, then remove these names from it."""
        children = splits.unfinished_split(held.lease)
        self._coordinator.create(children)
        (result,) = self._coordinator.write([held.lease], splits.split_done)
        if isinstance(result, LeaseLost):
            self._holdings.drop(held)
            return
        held.lease = result
        self._coordinator.world.emit(
            PartitionSplit(result.pipeline, result.key, tuple(child.key for child in children))
        )


def rest_of(lease: Lease) -> float:
    """About how many work units of the partition are left; its estimate may be wrong. Pure."""
    total, counts = lease.order.estimated_count, lease.progress.counts
    if not total:
        return float(lease.order.work_units)
    return lease.order.work_units * max(0.0, 1.0 - (counts.processed + counts.dropped) / total)
