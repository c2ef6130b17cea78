"""Counts the partitions of a node's pipelines by status, for its metrics."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from holdfast.errors import StoreUnavailable
from holdfast.events import PartitionsCounted
from holdfast.flow.node import Companion
from holdfast.leases.store import Store
from holdfast.leases.world import World
from holdfast.observe.insights import counts

COUNT_EVERY = 15.0
COSTLY_EVERY = 600.0
"""Seconds between two counts in a store whose reads cost money."""
SHARE = 40
"""A count may take this part of the time between two counts."""


class PartitionCounts(Companion):
    """Emits `PartitionsCounted` for each pipeline from time to time. Says nothing while the store does not respond."""

    def __init__(self, store: Store, world: World, pipelines: Sequence[str]) -> None:
        """`pipelines` are identifiers in the store."""
        self._store = store
        self._world = world
        self._pipelines = pipelines
        self._next_at = 0.0

    def turn(self) -> None:
        started = self._world.clock.monotonic()
        if started < self._next_at:
            return
        with suppress(StoreUnavailable):
            for pipeline in self._pipelines:
                self._world.emit(PartitionsCounted(pipeline, counts(self._store, pipeline)))
        ended = self._world.clock.monotonic()
        least = COSTLY_EVERY if self._store.charges_for_reads else COUNT_EVERY
        self._next_at = ended + max(least, SHARE * (ended - started))
