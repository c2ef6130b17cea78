"""Moments that count: right before and after a write or a publication a node may kill or stop itself.

A signal from outside mostly meets a node that waits. What a node does right after it wakes up or dies in the middle of
a commit matters more, so it also happens there, by chance. Whoever runs the node wakes it up again.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from holdfast.buckets.bucket import Published, StagedFile, StagedWriter
from holdfast.buckets.local import LocalBucket, LocalWriter
from holdfast.leases.lease import Json, Lease, Status
from holdfast.leases.store import ClaimingStore, ClaimRequest, Outcome, Store, Swap
from holdfast.testing.faults import PlainStore

T = TypeVar("T")


class Hazards:
    """When this process kills or stops itself."""

    def __init__(self, dice: random.Random, chance: float, until: float) -> None:
        """Nothing happens after `until`, in `time.monotonic()`."""
        self._dice = dice
        self._chance = chance
        self._until = until

    def around(self, call: Callable[[], T], phase: str = "") -> T:
        """The call's answer, if this process lives to see it."""
        self.moment(f"before {phase}")
        answer = call()
        self.moment(f"after {phase}")
        return answer

    def moment(self, place: str) -> None:
        if self._dice.random() < self._chance and time.monotonic() < self._until:
            os.kill(os.getpid(), signal.SIGKILL if self._dice.random() < 0.4 else signal.SIGSTOP)


class AimedHazards(Hazards):
    """Strikes where somebody asks for it: the first process that comes there takes the order, and the blow."""

    def __init__(self, orders: Path) -> None:
        """`orders` is a folder with a file for each blow, named as the place and the signal."""
        super().__init__(random.Random(0), 0.0, 0.0)
        self._orders = orders

    def moment(self, place: str) -> None:
        for sign in (signal.SIGKILL, signal.SIGSTOP):
            order = order_of(self._orders, place, sign)
            with suppress(FileNotFoundError):
                order.rename(order.with_name(f"{order.name} struck {os.getpid()}"))
                os.kill(os.getpid(), sign)


def order_of(folder: Path, place: str, sign: signal.Signals) -> Path:
    """The file that asks for a blow."""
    return folder / f"{place} {sign.name}"


class WrappedStore(PlainStore, ClaimingStore):
    """The real store behind a wrapper that changes nothing; as `PlainStore`, for one that claims in one step."""

    def __init__(self, store: ClaimingStore) -> None:
        super().__init__(store)
        self._claim = store.claim

    def claim(self, request: ClaimRequest) -> list[Lease]:
        return self._claim(request)


class RiskyTable(PlainStore):
    """The real store, with a hazard before and after each write."""

    def __init__(self, store: Store, hazards: Hazards) -> None:
        super().__init__(store)
        self._hazards = hazards

    def recent(self, max_age: float) -> Store:
        return RiskyTable(self.inner.recent(max_age), self._hazards)

    def add(self, leases: Sequence[Lease]) -> list[Outcome]:
        return self._hazards.around(lambda: self.inner.add(leases))

    def swap(self, swaps: Sequence[Swap]) -> list[Outcome]:
        commits = [_is_commit(swap.lease) for swap in swaps]
        self._hazards.moment("before commit" if any(commits) else "before a swap")
        outcomes = self.inner.swap(swaps)
        decided = [is_commit and outcome is Outcome.OK for is_commit, outcome in zip(commits, outcomes, strict=True)]
        self._hazards.moment("after commit" if any(decided) else "after a swap")
        return outcomes


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
        return self._hazards.around(lambda: super(RiskyBucket, self).publish(files), "publish")

    def stage(self, place: str, key: str) -> LocalWriter:
        self._hazards.moment("before stage")
        return super().stage(place, key)

    def close_all(self, writers: Sequence[StagedWriter]) -> list[tuple[Json, int, str]]:
        closed = super().close_all(writers)
        self._hazards.moment("after stage")
        return closed


def _is_commit(lease: Lease) -> bool:
    """Whether this write decides something: whoever takes a lease over with receipts in it says so by its times."""
    history = lease.history
    held = lease.status is Status.ASSIGNED and lease.ownership.due_at is None
    return held and lease.commit.receipts is not None and history.claimed_at != history.updated_at
