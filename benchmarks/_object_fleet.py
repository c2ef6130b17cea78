"""Twenty nodes on a store of objects, in virtual time: what they ask of the bucket, and how they share after a join."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Callable, Iterable

from holdfast.errors import StoreUnavailable
from holdfast.leases import transitions
from holdfast.leases.coordinator import ClaimPolicy, Coordinator
from holdfast.leases.lease import Lease, Partition
from holdfast.leases.session import NodeInfo, Session, SessionTiming
from holdfast.leases.sharing import FairShare
from holdfast.leases.world import Task, World
from holdfast.stores.object.objects import Changed, Found, Input, Result, TaggedObjects
from holdfast.stores.object.row_cache import RowCache
from holdfast.stores.object.store import ObjectStore

PIPELINE = "topics"
PAGE = 1_000
TIMING = SessionTiming()


class CountedBucket(TaggedObjects):
    """A bucket in memory that counts requests, as S3 would: a listing has pages of a thousand."""

    location = "memory"

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self.requests: Counter[str] = Counter()
        self._objects: dict[str, Found] = {}
        self._tags = itertools.count(1)
        self._monotonic = monotonic

    def tags(self, prefix: str) -> dict[str, str]:
        found = {name: stored.tag for name, stored in self._objects.items() if name.startswith(prefix)}
        self.requests["LIST"] += max(1, -(-len(found) // PAGE))
        return found

    def read(self, name: str) -> Found | None:
        self.requests["GET"] += 1
        return self._objects.get(name)

    def write(self, name: str, data: bytes, tag: str | None) -> str:
        self.requests["PUT"] += 1
        present = self._objects.get(name)
        if (None if present is None else present.tag) != tag:
            self.requests["conflict"] += 1
            raise Changed(name)
        self._objects[name] = Found(data, str(next(self._tags)))
        return self._objects[name].tag

    def delete(self, name: str, tag: str) -> None:
        raise StoreUnavailable(f"nothing is deleted here: {name} {tag}")

    def discard(self, name: str) -> None:
        self._objects.pop(name, None)

    def each(self, do: Callable[[Input], Result], inputs: Iterable[Input]) -> list[Result]:
        return [do(given) for given in inputs]

    def now(self) -> float:
        return self._monotonic()

    def close(self) -> None:
        """Nothing to do."""


class SharedClock:
    """Virtual time of the whole fleet."""

    def __init__(self) -> None:
        self.at = 1_000.0

    def monotonic(self) -> float:
        return self.at

    def wait(self, seconds: float) -> None:
        self.at += seconds


def _no_threads(work: Callable[[], None]) -> Task:
    raise NotImplementedError(f"{work} is not run here")


class ObjectFleet:
    """Nodes with a store handle each, on one bucket. Every node has a pass with every heartbeat."""

    def __init__(self, leases: int, seed: int = 1) -> None:
        self.clock = SharedClock()
        self.bucket = CountedBucket(self.clock.monotonic)
        self._dice = random.Random(seed)
        self._ids = map(str, itertools.count())
        self._leases = leases
        self.nodes: list[tuple[Coordinator, FairShare]] = []

    def join(self) -> None:
        world = World(self.clock, lambda: next(self._ids), self._dice, _no_threads, lambda _: None)
        store = ObjectStore(self.bucket, rows=RowCache(self.bucket, self.clock.monotonic))
        session = Session(store, world, "$nodes", NodeInfo("node", f"n{len(self.nodes)}", (PIPELINE,)), TIMING)
        session.join()
        coordinator = Coordinator(store, world, session, PIPELINE, policy=ClaimPolicy())
        if not self.nodes:
            coordinator.create(Partition(f"p{number:05d}") for number in range(self._leases))
        self.nodes.append((coordinator, FairShare(coordinator)))

    def passes(self, number: int = 1) -> None:
        """So many heartbeats of all nodes, in random order within each."""
        for _ in range(number):
            for coordinator, share in self._dice.sample(self.nodes, len(self.nodes)):
                self.clock.wait(TIMING.heartbeat / len(self.nodes))
                coordinator.session.heartbeat()
                coordinator.sweep()
                _share(coordinator, share)

    def until_balanced(self) -> int:
        """Passes until every node has its share."""
        for passes in itertools.count():
            if self.balanced:
                return passes
            self.passes()
        raise AssertionError

    @property
    def balanced(self) -> bool:
        sizes = [len(coordinator.owned()) for coordinator, _ in self.nodes]
        return sum(sizes) == self._leases and max(sizes) - min(sizes) <= 1


def _share(coordinator: Coordinator, share: FairShare) -> None:
    owned = coordinator.owned()
    look = share.look(len(owned), 1 << 30)
    given = list(zip(owned, look.shed_to, strict=False))
    coordinator.write_each([(lease, _hand_off_to(target)) for lease, target in given])


def _hand_off_to(target: str) -> Callable[[Lease], Lease]:
    return lambda row: transitions.hand_off(row, target, 1000.0)
