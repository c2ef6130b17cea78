"""What was read for viewers: each thing is read once for all of them, in a thread, and kept with its age.

A reading is repeated at most every two seconds, and a slow one less often, so that viewers never load a store; one of a
store that charges for reads, every half minute. If nobody looks, nothing is read. Whoever opens a page does not wait
for a read if the last one has just been: the live channel brings what is new. While the store does not respond, the
last value is returned with its age, and why it is old.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

from holdfast.errors import HoldfastError, Unavailable
from holdfast.leases.store import Store
from holdfast.web.pace import Pace
from holdfast.web.snapshots import Snapshots, SnapshotUse

EVERY, COSTLY_EVERY = 2.0, 30.0
"""Seconds between two reads of the same thing, and in a store whose reads cost money."""
SHARE = 40
"""All reads together may take this part of the time."""
RECENT = 10.0
"""Seconds after a read in which those who open a page do not wait for the next one; five times `every` if shorter."""
PATIENCE = 3.0
"""Seconds that a viewer waits for a read before it gets the last value."""
MOST = 512
"""Values that are kept; those that nobody has looked at for longest are dropped."""
THREADS = 8


@dataclass(frozen=True, slots=True)
class Reading:
    """A value, when what is oldest in it was read (`time.monotonic`), and what has gone wrong since."""

    value: Any
    read_at: float
    fault: str | None = None

    @property
    def age(self) -> float:
        """Seconds since the value was read."""
        return time.monotonic() - self.read_at


class _Kept:
    """The last value of one thing, and the read that is under way."""

    def __init__(self) -> None:
        self.latest: Reading | None = None
        self.error: Exception | None = None
        self.next_at = 0.0
        self.recent_until = 0.0
        self.reading: asyncio.Task[None] | None = None


class Readings:
    """The last values by key. Used from one event loop."""

    def __init__(self, *, every: float = EVERY, patience: float = PATIENCE, share: float = SHARE) -> None:
        self.every = every
        self._pace = Pace(every, share)
        self._snapshots: Snapshots | None = None
        self._patience = patience
        self._kept: OrderedDict[Hashable, _Kept] = OrderedDict()
        self._actions = 0
        """How often `forget` was called."""
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="holdfast-web-read")

    @classmethod
    def of_store(cls, store: Store) -> Readings:
        """Return readings that are repeated no more often than this store should be read."""
        return cls(every=COSTLY_EVERY if store.charges_for_reads else EVERY)

    async def get(self, key: Hashable, read: Callable[[], Any], *, wait: bool = True) -> Reading:
        """Return what `read` has returned last, at most `every` seconds ago unless the store is slow or silent.

        Without `wait`, the last value is returned if it is recent and no action has come since, and is read meanwhile.
        Raises what `read` has raised if there is no value yet, and `Unavailable` if it takes longer than the patience.
        Errors that are not about availability, such as a partition that does not exist, are raised in any case.
        """
        kept = self._of_key(key)
        if kept.reading is None and time.monotonic() >= kept.next_at:
            kept.reading = asyncio.create_task(self._read(kept, read))
        if not wait and kept.latest is not None and time.monotonic() < kept.recent_until:
            return _old(kept.latest, kept.error, late=False)
        if kept.reading is not None:
            # The read goes on if this viewer goes away, so that the next one does not begin another.
            await asyncio.wait({kept.reading}, timeout=self._patience)
        if isinstance(kept.error, HoldfastError) and not isinstance(kept.error, Unavailable):
            raise kept.error
        if kept.latest is not None:
            return _old(kept.latest, kept.error, late=kept.reading is not None)
        raise kept.error or Unavailable("the store takes long to respond; try again in some seconds")

    def attach(self, snapshots: Snapshots) -> None:
        """Let these snapshots keep the pace of everything that is read.

        The time that they take does not count twice.
        """
        self._snapshots = snapshots
        snapshots.pace = self._pace

    def forget(self) -> None:
        """Let the next request of any viewer read again; called after an action."""
        self._actions += 1
        if self._snapshots is not None:
            self._snapshots.forget()
        for kept in self._kept.values():
            kept.next_at = kept.recent_until = 0.0

    def close(self) -> None:
        """Begin no more reads. Does not wait for those under way."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _of_key(self, key: Hashable) -> _Kept:
        kept = self._kept.setdefault(key, _Kept())
        self._kept.move_to_end(key)
        while len(self._kept) > MOST:
            self._kept.popitem(last=False)
        return kept

    async def _read(self, kept: _Kept, read: Callable[[], Any]) -> None:
        took, actions = 0.0, self._actions  # a store that is back is read at once, however long it was waited for
        try:
            kept.latest, took = await asyncio.get_running_loop().run_in_executor(self._threads, self._timed, read)
            kept.error = None
        except Exception as error:  # noqa: BLE001 - it is raised to every viewer, or shown with the last value
            kept.error = error
        finally:
            # What was read before an action, or beside it, is not what comes after it.
            is_current, now = actions == self._actions, time.monotonic()
            kept.next_at = now + self._pace.wait(kept, took, now) if is_current else 0.0
            if is_current and kept.error is None:
                kept.recent_until = now + min(RECENT, 5 * self.every)
            kept.reading = None

    def _timed(self, read: Callable[[], Any]) -> tuple[Reading, float]:
        """Read. Also returns the seconds that such a read takes, without those of snapshots."""
        begun_at = time.monotonic()
        with nullcontext(SnapshotUse()) if self._snapshots is None else self._snapshots.used() as use:
            value = read()
        ended_at = time.monotonic()
        # What is made of an incomplete snapshot is soon made again, and is not what a read costs later.
        seconds = ended_at - begun_at - use.seconds if use.complete else 0.0
        return Reading(value, min(begun_at, use.oldest)), seconds


def _old(latest: Reading, error: Exception | None, *, late: bool) -> Reading:
    if error is not None and not isinstance(error, Unavailable):
        raise error
    if error is None and not late:
        return latest
    fault = str(error) if error is not None else "the store takes long to respond"
    return Reading(latest.value, latest.read_at, fault)
