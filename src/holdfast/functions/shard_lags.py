"""Lags of the shards that a node handles, measured on the node, so that those of a hanging worker are seen, too."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from holdfast.errors import HoldfastError
from holdfast.events import Event, LagMeasured
from holdfast.flow.batch import Batch
from holdfast.flow.shards import Lag, ReportsLags
from holdfast.functions.slot_state import Shard
from holdfast.leases.lease import Lease

EVERY = 5.0
"""Seconds between two measurements."""


class ShardLags:
    """Measures how far the shards that workers have are behind the ends of their streams."""

    def __init__(
        self,
        source: ReportsLags | None,
        running: Callable[[], Iterable[Shard]],
        lock: threading.Condition,
        emit: Callable[[Event], None],
    ) -> None:
        """`running` is called under the lock, as is `emit`: no event follows the end of its batch.

        Without a source nothing is measured.
        """
        self._source, self._running, self._lock, self._emit = source, running, lock, emit
        self._leases: dict[str, Lease] = {}

    def add(self, batches: Iterable[Batch]) -> None:
        """Note the leases of these batches. To be called under the lock."""
        self._leases |= {batch.lease.key: batch.lease for batch in batches}

    def run(self, closed: Callable[[], bool]) -> None:
        """Measure from time to time, until the engine is closed. For a thread."""
        while self._source is not None and not closed():
            self.measure()
            time.sleep(EVERY)

    def measure(self) -> None:
        """Emit the lag of each shard. Blocks on the stream; if it does not respond, it is tried the next time."""
        with self._lock:
            leases = [_at(self._leases[shard.key], shard) for shard in self._running()]
        try:
            lags = self._source.lags(leases) if leases and self._source is not None else []
        except HoldfastError:  # workers and discovery report it
            return
        with self._lock:
            self._report(leases, lags)

    def _report(self, leases: Sequence[Lease], lags: Sequence[Lag]) -> None:
        held = {shard.key for shard in self._running()}
        for lease, lag in zip(leases, lags, strict=True):
            if lease.key in held:
                seconds = None if lag.milliseconds is None else lag.milliseconds / 1000
                self._emit(LagMeasured(lease.pipeline, lease.key, lag.records, seconds))


def _at(lease: Lease, shard: Shard) -> Lease:
    return replace(lease, progress=replace(lease.progress, position=shard.position))
