"""A deterministic world: only the test moves time and runs threads, ids count up, events are kept."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from holdfast.errors import Interrupted
from holdfast.events import Event
from holdfast.leases.world import World

E = TypeVar("E", bound=Event)


class TurnableClock:
    """A clock that only tests move. Serves as a node's clock, and its `monotonic` as the clock of a store.

    `wait` advances it and returns at once. `on_wait` is called after each wait: a test can act there while the code
    under test sleeps.
    """

    def __init__(self, at: float = 1_000_000.0) -> None:
        self._at = at
        self._waits_allowed: int | None = None
        self.waits: list[float] = []
        self.on_wait: Callable[[], None] = lambda: None

    def monotonic(self) -> float:
        """The time of the clock."""
        return self._at

    def turn(self, seconds: float) -> None:
        """Move the clock, also backwards."""
        self._at += seconds

    def wait(self, seconds: float) -> None:
        """Advance the clock by that much; raises `Interrupted` when the allowed waits are used up."""
        if self._waits_allowed is not None and len(self.waits) >= self._waits_allowed:
            raise Interrupted("the test allows no more waits")
        self.waits.append(seconds)
        self._at += seconds
        self.on_wait()

    def interrupt_after(self, waits: int) -> None:
        """Let that many more waits pass; the next one raises `Interrupted`."""
        self._waits_allowed = len(self.waits) + waits


class EndedTask:
    """A task that has ended."""

    def join(self, timeout: float) -> None:
        """Return at once."""


@dataclass(frozen=True, slots=True)
class FakeWorld(World):
    """A `World` whose clock tests can set, and which keeps its events."""

    clock: TurnableClock
    events: list[Event]
    spawned: list[Callable[[], None]]
    """Work that was passed to `spawn`; the test decides when to run it."""

    def seen(self, kind: type[E]) -> list[E]:
        """The events of this kind, in the order in which they were emitted."""
        return [event for event in self.events if isinstance(event, kind)]


def make_world(name: str = "", *, clock: TurnableClock | None = None, seed: int = 0, inline: bool = False) -> FakeWorld:
    """A world for one node.

    Ids count up and end with `name`, so that worlds with other names never make the same id. Jitter comes from `seed`.
    Spawned work is kept and not run, or run immediately if `inline`.
    """
    numbers = itertools.count(1)
    events: list[Event] = []
    spawned: list[Callable[[], None]] = []

    def spawn(work: Callable[[], None]) -> EndedTask:
        spawned.append(work)
        if inline:
            work()
        return EndedTask()

    return FakeWorld(
        clock=clock or TurnableClock(),
        new_id=lambda: f"{next(numbers):06d}{name}",
        dice=random.Random(seed),
        spawn=spawn,
        emit=events.append,
        events=events,
        spawned=spawned,
    )
