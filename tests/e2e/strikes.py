"""Faults aimed at a phase of the work: kill -9, or a pause that is longer than the session's timeout.

A node is first frozen and then looked at: only if it stands within the phase does the fault follow; otherwise it was
held up for some milliseconds, and the aim is taken again. So every fault that counts has met its phase.
"""

from __future__ import annotations

import itertools
import json
import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from tests.e2e.arena import Arena
from tests.e2e.fleet import Node, eventually
from tests.e2e.freezing import freeze, freeze_descendants, thaw

AIM_WITHIN = 15.0
GIVE_UP_AFTER = 180.0
LOOK_EVERY = 0.001


class Kind(StrEnum):
    KILL = "kill"
    STOP = "stop"


class Phase(StrEnum):
    STAGE = "stage"
    COMMIT = "commit"
    PUBLISH = "publish"


@dataclass(frozen=True)
class Fault:
    """What is done, in which phase, and where in the phase."""

    kind: Kind
    phase: Phase
    delay: float
    """Seconds between the event that begins the phase and the blow; of no meaning for commit."""
    delivered: bool
    """For commit: the store has applied the write and its answer is on the way, or the write itself is."""


def drawn(seed: int, count: int) -> list[Fault]:
    """Every kind in every phase, in one random order after the other."""
    dice = random.Random(seed)
    pairs = list(itertools.product(Kind, Phase))
    longest = {Phase.STAGE: 0.2, Phase.COMMIT: 0.0, Phase.PUBLISH: 0.03}
    orders = (dice.sample(pairs, len(pairs)) for _ in itertools.count())
    return [
        Fault(kind, phase, dice.uniform(0, longest[phase]), delivered=(number // len(pairs)) % 2 == 0)
        for number, (kind, phase) in enumerate(itertools.islice(itertools.chain.from_iterable(orders), count))
    ]


class Tail:
    """What a node's log says from now on about rounds and batches."""

    def __init__(self, log: Path) -> None:
        self._log = log.open("rb")
        self._log.seek(0, 2)
        self._rest = b""
        self.events: list[dict[str, Any]] = []

    def close(self) -> None:
        self._log.close()

    def read_on(self) -> None:
        *lines, self._rest = (self._rest + self._log.read()).split(b"\n")
        self.events += [json.loads(line) for line in lines if b'"event": "Batch' in line or b'"RoundSub' in line]

    def names(self) -> list[str]:
        return [event["event"] for event in self.events]

    def is_staging(self) -> bool:
        """Whether the last round was submitted after the last commit: its job is on the way."""
        names = [name for name in self.names() if name in {"RoundSubmitted", "BatchCommitted"}]
        return names[-1:] == ["RoundSubmitted"]

    def is_publishing(self) -> bool:
        """Whether there is a commit that was not published yet."""
        return bool(self._batches("BatchCommitted") - self._batches("BatchPublished"))

    def _batches(self, name: str) -> set[tuple[str, int]]:
        return {(event["key"], event["sequence"]) for event in self.events if event["event"] == name}


class Striker:
    """Brings faults upon the nodes of an arena, one after the other, and waits until the others have taken over."""

    def __init__(self, arena: Arena, seed: int) -> None:
        self._arena = arena
        self._dice = random.Random(seed)
        self._began = time.monotonic()

    def strike(self, fault: Fault) -> None:
        """Inflict the fault on some node that is at work. Returns when the node is awake again, or starting anew."""
        give_up_at = time.monotonic() + GIVE_UP_AFTER
        aims = 0
        while time.monotonic() < give_up_at:
            eventually(self._arena.at_work, GIVE_UP_AFTER, "some node is at work")
            victim = self._dice.choice(self._arena.at_work())
            aims += 1
            with self._aimed(victim, fault) as met:
                if met:
                    self._note(victim, fault, aims)
                    self._follow_through(victim, fault)
                    return
        raise AssertionError(f"no node could be met in phase {fault.phase} within {GIVE_UP_AFTER} s")

    def _note(self, victim: Node, fault: Fault, aims: int) -> None:
        at = round(time.monotonic() - self._began, 1)
        strike = {"at": at, "node": victim.name, "pid": victim.process.pid, "aims": aims, **asdict(fault)}
        with (self._arena.root / "strikes.jsonl").open("a") as notes:
            notes.write(json.dumps(strike) + "\n")

    @contextmanager
    def _aimed(self, victim: Node, fault: Fault) -> Iterator[bool]:
        """Whether the node stands frozen within the phase. What was kept back to meet it there goes on at the end."""
        if fault.phase is not Phase.COMMIT:
            yield _froze_by_log(victim, fault)
            return
        proxy = self._arena.proxies[victim.name]
        # Only receipts have a checksum, and a sweep of somebody else's rows does not name this process.
        hold = proxy.hold(b"sha256", f":{victim.process.pid}:".encode(), delivered=fault.delivered)
        met = hold.reached.wait(AIM_WITHIN)
        if met:
            freeze(victim.process.pid)
        try:
            yield met
        finally:
            proxy.give_up(hold)

    def _follow_through(self, victim: Node, fault: Fault) -> None:
        """Let the frozen node die or sleep until others own its partitions; a message of its own is still held then."""
        if fault.kind is Kind.KILL:
            victim.kill()
            self._arena.start(victim.name)
        else:
            freeze_descendants(victim.process.pid)
        gone = f"others take over from {victim.name}"
        eventually(lambda: self._arena.table.is_dispossessed(victim), GIVE_UP_AFTER, gone)
        if fault.kind is Kind.STOP:
            thaw(victim.process.pid)


def _froze_by_log(victim: Node, fault: Fault) -> bool:
    """Freeze the node when its log says that the phase begins; false, and not frozen, if that was too late."""
    tail = Tail(victim.log)
    within = tail.is_staging if fault.phase is Phase.STAGE else tail.is_publishing
    try:
        if not _comes_true(tail, within):
            return False
        time.sleep(fault.delay)
        freeze(victim.process.pid)
        tail.read_on()
        met = within()
        if not met:
            thaw(victim.process.pid)
        return met
    finally:
        tail.close()


def _comes_true(tail: Tail, what: Callable[[], bool]) -> bool:
    give_up_at = time.monotonic() + AIM_WITHIN
    while time.monotonic() < give_up_at:
        tail.read_on()
        if what():
            return True
        time.sleep(LOOK_EVERY)
    return False
