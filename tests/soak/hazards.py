"""Moments that count: right before and after a write or a publication a node may kill or stop itself.

A signal from outside mostly meets a node that waits. What a node does right after it wakes up or dies in the middle of
a commit matters more, so it also happens there, by chance. Whoever runs the node wakes it up again.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from holdfast.buckets.bucket import Published, StagedFile
from holdfast.buckets.local import LocalBucket
from holdfast.leases.lease import Key, Lease, Status
from holdfast.leases.store import ClaimingStore, ClaimRequest, Outcome, Query, Snapshot, Store, Swap

T = TypeVar("T")


class Hazards:
    """When this process kills or stops itself."""

    def __init__(self, dice: random.Random, chance: float, until: float) -> None:
        """Nothing happens after `until`, in `time.monotonic()`."""
        self._dice = dice
        self._chance = chance
        self._until = until

    def around(self, call: Callable[[], T]) -> T:
        """The call's answer, if this process lives to see it."""
        self.moment()
        answer = call()
        self.moment()
        return answer

    def moment(self) -> None:
        if self._dice.random() < self._chance and time.monotonic() < self._until:
            os.kill(os.getpid(), signal.SIGKILL if self._dice.random() < 0.4 else signal.SIGSTOP)


class WrappedTable(Store):
    """The real store behind a wrapper that changes nothing. It cannot claim."""

    def __init__(self, store: Store) -> None:
        self.inner = store
        self.durable, self.shared, self.max_body_bytes = store.durable, store.shared, store.max_body_bytes
        self.has_clock = store.has_clock

    def open(self) -> None:
        self.inner.open()

    def close(self) -> None:
        self.inner.close()

    def now(self) -> float:
        return self.inner.now()

    def add(self, leases: Sequence[Lease]) -> list[Outcome]:
        return self.inner.add(leases)

    def get(self, keys: Sequence[Key]) -> list[Lease | None]:
        return self.inner.get(keys)

    def find(self, query: Query) -> list[Lease]:
        return self.inner.find(query)

    def snapshot(self, pipeline: str, sessions: str, run: str = "") -> Snapshot:
        return self.inner.snapshot(pipeline, sessions, run)

    def swap(self, swaps: Sequence[Swap]) -> list[Outcome]:
        return self.inner.swap(swaps)

    def remove(self, leases: Sequence[Lease]) -> list[Outcome]:
        return self.inner.remove(leases)

    def count(self, pipeline: str, run: str = "") -> Mapping[Status, int]:
        return self.inner.count(pipeline, run)


class WrappedStore(WrappedTable, ClaimingStore):
    """As `WrappedTable`, for a store that claims in one step."""

    def __init__(self, store: ClaimingStore) -> None:
        super().__init__(store)
        self._claim = store.claim

    def claim(self, request: ClaimRequest) -> list[Lease]:
        return self._claim(request)


class RiskyTable(WrappedTable):
    """The real store, with a hazard before and after each write."""

    def __init__(self, store: Store, hazards: Hazards) -> None:
        super().__init__(store)
        self._hazards = hazards

    def recent(self, max_age: float) -> Store:
        return RiskyTable(self.inner.recent(max_age), self._hazards)

    def add(self, leases: Sequence[Lease]) -> list[Outcome]:
        return self._hazards.around(lambda: self.inner.add(leases))

    def swap(self, swaps: Sequence[Swap]) -> list[Outcome]:
        return self._hazards.around(lambda: self.inner.swap(swaps))


class RiskyStore(WrappedStore, RiskyTable):
    """As `RiskyTable`, for a store that claims in one step."""

    def __init__(self, store: ClaimingStore, hazards: Hazards) -> None:
        RiskyTable.__init__(self, store, hazards)
        self._claim = store.claim

    def recent(self, max_age: float) -> Store:
        return self

    def claim(self, request: ClaimRequest) -> list[Lease]:
        return self._hazards.around(lambda: self._claim(request))


class RiskyBucket(LocalBucket):
    """A real folder, with a hazard around each manifest and each publication."""

    def __init__(self, root: str, hazards: Hazards) -> None:
        super().__init__(root)
        self._hazards = hazards

    def create(self, key: str, data: bytes) -> bool:
        return self._hazards.around(lambda: super(RiskyBucket, self).create(key, data))

    def publish(self, files: Sequence[StagedFile]) -> list[Published]:
        return self._hazards.around(lambda: super(RiskyBucket, self).publish(files))
