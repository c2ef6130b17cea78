"""The world: clock, waiting, random numbers, ids, threads, locks and events, all injected.

The coordinator and the node get a `World` and use nothing else outside their arguments, so that the same code runs on
threads in production and on greenlets in the simulator. The adapters for the real world are here too; no other module
of `leases` or `flow` may import `time`, `random`, `uuid` or `threading`.
"""

from __future__ import annotations

import random
import threading
import time
import uuid
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol

from holdfast.errors import Interrupted
from holdfast.events import Event


class Clock(Protocol):
    """A node's own clock. It is never compared with another node's or with the store's."""

    def monotonic(self) -> float:
        """Seconds that also pass while the host is suspended. Does not block."""
        ...

    def wait(self, seconds: float) -> None:
        """Block for that long, or until the node is asked to stop.

        Raises `Interrupted` when the time allowed for stopping is over.
        """
        ...


class Task(Protocol):
    """A thread of work started by `World.spawn`."""

    def join(self, timeout: float) -> None:
        """Block until the work has ended, at most that long."""
        ...


class Dice(Protocol):
    """The part of `random.Random` that the core uses, for jitter."""

    def random(self) -> float: ...


@dataclass(frozen=True, slots=True)
class World:
    """Everything that is not deterministic, passed in by the caller."""

    clock: Clock
    new_id: Callable[[], str]
    dice: Dice
    spawn: Callable[[Callable[[], None]], Task]
    emit: Callable[[Event], None]
    lock: Callable[[], AbstractContextManager[Any]] = field(default=threading.Lock, kw_only=True)
    """Makes a lock for data that threads of this process share. It is held briefly, never during a call of the store.
    """

    def jittered(self, seconds: float) -> float:
        """The duration, changed at random by up to a fifth, so that nodes do not act in step."""
        return seconds * (0.8 + 0.4 * self.dice.random())


class HostClock:
    """The host's boot-time clock; `ask_to_stop` ends waits early."""

    def __init__(self) -> None:
        self._stopping = threading.Event()
        self._give_up_at: float | None = None

    def monotonic(self) -> float:
        return time.clock_gettime(time.CLOCK_BOOTTIME)

    def ask_to_stop(self, within: float) -> None:
        """End the current wait now; waits that begin later raise `Interrupted` once `within` seconds are over."""
        self._give_up_at = self.monotonic() + within
        self._stopping.set()

    def wait(self, seconds: float) -> None:
        if self._give_up_at is None:
            self._stopping.wait(seconds)
            return
        left = self._give_up_at - self.monotonic()
        if left <= 0:
            raise Interrupted("the time allowed for stopping is over")
        time.sleep(min(seconds, left))


def _start_thread(work: Callable[[], None]) -> Task:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def host_world(emit: Callable[[Event], None], clock: Clock | None = None) -> World:
    """The world of a real process: host clock, random ids, threads."""
    return World(
        clock=clock or HostClock(),
        new_id=lambda: uuid.uuid4().hex,
        dice=random.Random(),
        spawn=_start_thread,
        emit=emit,
    )
