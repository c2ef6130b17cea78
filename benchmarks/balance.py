"""How fast and by how many moves nodes reach their fair share: the real coordinator on a store in memory.

Nodes act in random order, each on a snapshot that is up to three actions old; one in ten misses a pass. The peer's
figure is the bound: five passes, and the fewest moves that any plan could do with.
"""

from __future__ import annotations

import itertools
import random
from collections import Counter, deque
from collections.abc import Callable

from benchmarks.harness import Comparison, compare
from holdfast.leases import transitions
from holdfast.leases.coordinator import ClaimPolicy, Coordinator
from holdfast.leases.lease import Lease, Partition
from holdfast.leases.session import NodeInfo, Session, SessionTiming
from holdfast.leases.sharing import FairShare
from holdfast.leases.store import Snapshot
from holdfast.leases.world import Task, World
from holdfast.stores.memory import MemoryStore

PIPELINE = "topics"
MOST_PASSES = 5
STALE_ACTIONS = 3
MISSED = 0.1
TIMING = SessionTiming(timeout=1e9)


class StaleStore(MemoryStore):
    """Answers a snapshot of a random recent moment."""

    def __init__(self, dice: random.Random) -> None:
        super().__init__(lambda: 1000.0)
        self._dice = dice
        self._recent: deque[Snapshot] = deque(maxlen=STALE_ACTIONS + 1)

    def remember(self) -> None:
        """Another action is done."""
        self._recent.append(super().snapshot(PIPELINE, "$nodes"))

    def snapshot(self, pipeline: str, sessions: str, run: str = "") -> Snapshot:
        return self._recent[self._dice.randrange(len(self._recent))]


class StillClock:
    def monotonic(self) -> float:
        return 1000.0

    def wait(self, seconds: float) -> None:
        return


def _no_threads(work: Callable[[], None]) -> Task:
    raise NotImplementedError(f"{work} is not run here")


class Fleet:
    """Nodes and partitions of one scenario."""

    def __init__(self, partitions: int, seed: int) -> None:
        self._dice = random.Random(seed)
        ids = map(str, itertools.count())
        self._world = World(StillClock(), lambda: next(ids), self._dice, _no_threads, lambda _: None)
        self._store = StaleStore(self._dice)
        self._partitions = partitions
        self._nodes: list[tuple[Coordinator, FairShare]] = []
        self._seeded = False

    def resize(self, nodes: int) -> tuple[int, int, int]:
        """Let nodes join, or leave without a word; answers passes until balanced, moves, and the fewest possible."""
        while len(self._nodes) < nodes:
            self._join()
        while len(self._nodes) > nodes:
            self._leave()
        self._store.remember()
        before = Counter(self._owners())
        passes = moves = 0
        while not self._is_balanced():
            passes += 1
            moves += self._one_pass()
        return passes, moves, self._fewest(before)

    def _join(self) -> None:
        info = NodeInfo("node", f"n{len(self._nodes)}", (PIPELINE,))
        session = Session(self._store, self._world, "$nodes", info, TIMING)
        session.join()
        session.heartbeat()
        coordinator = Coordinator(self._store, self._world, session, PIPELINE, policy=ClaimPolicy())
        if not self._seeded:
            coordinator.create(Partition(f"p{i:05d}") for i in range(self._partitions))
            self._seeded = True
        self._nodes.append((coordinator, FairShare(coordinator)))

    def _leave(self) -> None:
        coordinator, _ = self._nodes.pop()
        coordinator.release(coordinator.owned())
        coordinator.session.leave()

    def _one_pass(self) -> int:
        moves = 0
        for coordinator, share in self._dice.sample(self._nodes, len(self._nodes)):
            if self._dice.random() < MISSED:
                continue
            moves += _act(coordinator, share)
            self._store.remember()
        return moves

    def _owners(self) -> list[str]:
        rows = MemoryStore.snapshot(self._store, PIPELINE, "$nodes").leases
        return [row.owner for row in rows if row.owner is not None]

    def _is_balanced(self) -> bool:
        held = Counter(self._owners())
        sizes = [held[coordinator.session.id] for coordinator, _ in self._nodes]
        return sum(sizes) == self._partitions and max(sizes) - min(sizes) <= 1

    def _fewest(self, before: Counter[str]) -> int:
        base, extra = divmod(self._partitions, len(self._nodes))
        sizes = sorted((before[coordinator.session.id] for coordinator, _ in self._nodes), reverse=True)
        return sum(max(0, size - base - (index < extra)) for index, size in enumerate(sizes))


def _act(coordinator: Coordinator, share: FairShare) -> int:
    owned = coordinator.owned()
    look = share.look(len(owned), 1 << 30)
    given = list(zip(owned, look.shed_to, strict=False))
    coordinator.write_each([(lease, _hand_off_to(target)) for lease, target in given])
    return len(given)


def _hand_off_to(target: str) -> Callable[[Lease], Lease]:
    return lambda row: transitions.hand_off(row, target, 1000.0)


def run() -> list[Comparison]:
    comparisons = []
    small, large = Fleet(1_000, seed=1), Fleet(10_000, seed=2)
    for fleet, partitions, sizes in ((small, "1,000", (10, 20, 19)), (large, "10,000", (1_000,))):
        for before, after in itertools.pairwise((0, *sizes)):
            passes, moves, fewest = fleet.resize(after)
            case = f"{partitions} partitions, {before} to {after} nodes"
            comparisons.append(compare("balance", f"{case}, passes", passes, MOST_PASSES, "passes", "<= 1"))
            # One more than the moves on both sides, so that none against none is a ratio too.
            comparisons.append(compare("balance", f"{case}, moves + 1", moves + 1, fewest + 1, "moves", "<= 1"))
    return comparisons
