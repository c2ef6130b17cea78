"""How long a run takes, compared with the ideal: all work divided by the speed of all slots, without any pause.

A small model of time beside the simulator of faults: it knows nodes with slots of different speed, batches of four
seconds, looks for partitions at intervals, and the rules of `flow.splitting`: what is free is claimed largest first;
when nothing is free, a node hands back half of what waits there, or splits the largest rest of what it has just
committed. The sizes of partitions are those of the calculator; estimates are wrong by up to three times.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from holdfast.flow.tables import Sizing
from holdfast.sources.database.calculator import SMALLEST_SPLIT, partition_rows

BATCH_SECONDS = 4.0
LOOK_EVERY = 2.0
"""A node without work looks for free partitions this often: a part of its heartbeat."""
OVERHEAD = 0.1
"""Seconds that a batch takes besides its rows: planning, a Spark job, a commit."""
ROWS_PER_SECOND = 1000.0
SECONDS = (60.0, 200.0)
"""How long runs take at best."""


@dataclass
class Work:
    """A partition: the rows that it is estimated to have, and those that it really has."""

    estimate: float
    rows: float


@dataclass
class Node:
    """A node with slots of one speed; it holds twice as many partitions as it has slots."""

    slots: int
    speed: float
    waiting: list[Work] = field(default_factory=list)
    running: int = 0

    @property
    def room(self) -> int:
        return 2 * self.slots - self.running - len(self.waiting)


class Model:
    """One run. `splitting`: whether partitions are split and handed back."""

    def __init__(self, nodes: Sequence[Node], work: Sequence[Work], dice: random.Random, *, splitting: bool) -> None:
        self._nodes = nodes
        self._free = sorted(work, key=lambda each: -each.estimate)
        self._dice = dice
        self._splitting = splitting
        self._events: list[tuple[float, int, Node, Work | None]] = []
        self._counter = 0

    def run(self) -> float:
        """Seconds until everything is done."""
        end = 0.0
        for node in self._nodes:
            self._at(LOOK_EVERY * self._dice.random(), node, None)
        while self._events:
            now, _, node, work = heapq.heappop(self._events)
            if work is not None:
                node.running -= 1
                end = max(end, now)
                if work.rows > 0:
                    node.waiting.append(work)
                    self._split(node)
            self._hand_back()
            self._claim(node)
            self._start(node, now)
            if work is None and self._is_unfinished():
                self._at(now + LOOK_EVERY * (0.9 + 0.2 * self._dice.random()), node, None)
        return end

    def _at(self, time: float, node: Node, work: Work | None) -> None:
        self._counter += 1
        heapq.heappush(self._events, (time, self._counter, node, work))

    def _is_unfinished(self) -> bool:
        return bool(self._free) or any(node.running or node.waiting for node in self._nodes)

    def _claim(self, node: Node) -> None:
        while self._free and node.room > 0:
            node.waiting.append(self._free.pop(0))

    def _start(self, node: Node, now: float) -> None:
        while node.waiting and node.running < node.slots:
            work = node.waiting.pop(0)
            rows = min(work.rows, node.speed * ROWS_PER_SECOND * BATCH_SECONDS)
            work.rows -= rows
            work.estimate = max(0.0, work.estimate - rows)
            node.running += 1
            self._at(now + OVERHEAD + rows / (node.speed * ROWS_PER_SECOND), node, work)

    def _hand_back(self) -> None:
        for node in self._nodes if self._splitting else ():
            beyond = len(node.waiting) - (node.slots - node.running)
            if not self._free and beyond > 0:
                node.waiting.sort(key=lambda each: -each.estimate)
                count = (beyond + 1) // 2
                node.waiting, self._free = node.waiting[:-count], node.waiting[-count:]

    def _split(self, node: Node) -> None:
        largest = max(node.waiting, key=lambda each: each.estimate)
        if self._splitting and not self._free and largest.rows >= SMALLEST_SPLIT:
            largest.rows = largest.estimate = largest.rows / 2
            self._free.append(replace(largest))


def ratio(seed: int, *, splitting: bool = True, rows: int | None = None) -> float:
    """The time of a run with this seed, as a multiple of the ideal."""
    dice = random.Random(seed)
    slots = dice.choice((1, 2, 4))
    nodes = [Node(slots, 1.0) for _ in range(dice.randint(2, 8))]
    nodes[0].speed = 1 / 3
    speed = ROWS_PER_SECOND * sum(node.slots * node.speed for node in nodes)
    total = speed * dice.uniform(*SECONDS)
    shares = [dice.random() for _ in range(dice.randint(1, 5))]
    totals = {f"e{n}": round(total * share / sum(shares)) for n, share in enumerate(shares)}
    sizing = Sizing(slots=slots * len(nodes), rows=rows)
    sizes = partition_rows(totals, dict.fromkeys(totals, 1.0), sizing)
    work = [
        Work(size, size * 3 ** dice.uniform(-1, 1))
        for entity, total in totals.items()
        for size in [sizes[entity]] * max(1, round(total / sizes[entity]))
    ]
    ideal = sum(each.rows for each in work) / speed
    return Model(nodes, work, dice, splitting=splitting).run() / ideal


def percentile(values: Sequence[float], share: float) -> float:
    return sorted(values)[round(share * (len(values) - 1))]
