"""One snapshot of each pipeline's partitions for all pages, REST and maps, taken again when it is old.

However many pages and viewers there are, snapshots keep the pace of all reads (`holdfast.web.pace`): with a hundred
thousand partitions one may be ten seconds old, with a thousand two.
"""

from __future__ import annotations

import math
import time
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Lock, local

from holdfast.leases.store import Store
from holdfast.observe.insights import Numbered
from holdfast.observe.partition_snapshots import PartitionSnapshot, PartitionSnapshots
from holdfast.web.pace import Pace

MOST = 64
"""Pipelines and runs whose snapshots are kept; those that nobody has looked at for longest are dropped."""


@dataclass
class SnapshotUse:
    """What a thread has used: seconds that it spent on snapshots, and when the oldest one of them was begun.

    `complete`: all of them have all rows. Those of large pipelines are read in parts at the beginning.
    """

    seconds: float = 0.0
    oldest: float = math.inf
    complete: bool = True


class _Kept:
    """The latest snapshot of a pipeline and run, when it was begun, and when the next one may be taken."""

    def __init__(self, taken_by: PartitionSnapshots) -> None:
        self.taken_by = taken_by
        self.latest: PartitionSnapshot | None = None
        self.begun_at = 0.0
        self.next_at = 0.0
        self.lock = Lock()


class Snapshots:
    """The latest snapshots. Threads share it; of those that want the same one, one takes it and the others wait."""

    def __init__(self, store: Store, pace: Pace) -> None:
        self._store = store
        self.pace = pace
        self._kept: OrderedDict[tuple[str, str], _Kept] = OrderedDict()
        self._lock = Lock()
        self._of_thread = local()
        self._actions = 0
        """How often `forget` was called."""

    @contextmanager
    def used(self) -> Iterator[SnapshotUse]:
        """Count what the calling thread uses until the end of the block."""
        self._of_thread.use = use = SnapshotUse()
        try:
            yield use
        finally:
            self._of_thread.use = None

    def get(self, pipeline: str, run: str = "") -> PartitionSnapshot:
        """Return the latest snapshot of a pipeline, given by its identifier, and run. Raises `StoreUnavailable`."""
        return self._taken(pipeline, run)[0]

    def held(self, pipeline: str, run: str = "") -> Mapping[str | None, Sequence[Numbered]] | None:
        """Return group and number of the partitions that each session holds; None if that is not known yet."""
        return self._taken(pipeline, run)[1].taken_by.held()

    def forget(self) -> None:
        """Let the next viewer see every change; called after an action."""
        self._actions += 1
        for kept in list(self._kept.values()):
            kept.next_at = 0.0

    def _taken(self, pipeline: str, run: str) -> tuple[PartitionSnapshot, _Kept]:
        kept = self._of(pipeline, run)
        asked_at = time.monotonic()
        with kept.lock:
            found, begun_at = self._current(kept), kept.begun_at
        use: SnapshotUse | None = getattr(self._of_thread, "use", None)
        if use is not None:
            use.seconds += time.monotonic() - asked_at
            use.oldest = min(use.oldest, begun_at)
            use.complete = use.complete and kept.taken_by.complete
        return found, kept

    def _current(self, kept: _Kept) -> PartitionSnapshot:
        if kept.latest is None or time.monotonic() >= kept.next_at:
            kept.begun_at, actions = time.monotonic(), self._actions
            begins = kept.latest is not None and not kept.taken_by.complete
            kept.latest = kept.taken_by.take()
            ended = time.monotonic()
            wait = self._wait(kept, ended, begins=begins or not kept.taken_by.complete)
            kept.next_at = ended + wait if actions == self._actions else 0.0
        return kept.latest

    def _wait(self, kept: _Kept, ended: float, *, begins: bool) -> float:
        """The seconds until the next snapshot. Those that read all rows at the beginning are not what one costs."""
        if begins and not self._store.charges_for_reads:
            return self.pace.every
        return self.pace.wait(kept, ended - kept.begun_at, ended)

    def _of(self, pipeline: str, run: str) -> _Kept:
        with self._lock:
            at = (pipeline, run)
            if at not in self._kept:
                self._kept[at] = _Kept(PartitionSnapshots(self._store, pipeline, run))
            self._kept.move_to_end(at)
            while len(self._kept) > MOST:
                self._kept.popitem(last=False)
            return self._kept[at]
