"""Virtual time: one heap of events, one seeded random generator, processes as greenlets.

Everything that happens in a simulated world is an event of this heap, so a seed decides the whole run. Event callbacks
run in the hub; the product's code runs in processes, which give way to the hub whenever they wait.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any

from greenlet import getcurrent, greenlet

FOREVER = float("inf")


class Crash(BaseException):
    """The process is gone. Raised where it stands; no handler of the product's may catch it."""


class Trace:
    """What happened, as text and as a hash: lines are kept only when somebody wants to read them."""

    def __init__(self, *, keep: bool) -> None:
        self.lines: list[str] | None = [] if keep else None
        self._hash = hashlib.blake2b(digest_size=16)

    def note(self, now: float, who: str, what: str, outcome: str) -> None:
        line = f"{now:10.3f}  {who:<8}  {what:<44}  {outcome}"
        self._hash.update(line.encode())
        if self.lines is not None:
            self.lines.append(line)

    @property
    def digest(self) -> str:
        return self._hash.hexdigest()


class Kernel:
    """The event loop of one seed. `trace` is None unless the run is watched."""

    def __init__(self, seed: str, trace: Trace | None = None) -> None:
        self.now = 0.0
        self.dice = random.Random(seed)
        self.random = self.dice.random
        self.trace = trace
        self.hub = getcurrent()
        self.running: Process | None = None
        self.events = 0
        self.lives: list[Life] = []
        self.heap: list[tuple[float, int, Callable[[Any], None], Any]] = []
        self.serial = 0

    def after(self, delay: float, call: Callable[[Any], None], argument: Any = None) -> None:
        """Run the callback in the hub, that many seconds from now."""
        self.serial += 1
        heappush(self.heap, (self.now + delay, self.serial, call, argument))

    def run(self, until: float = FOREVER) -> None:
        """Work off events in order of time; returns when there is none, or none before `until`."""
        heap, pop = self.heap, heappop
        while heap and heap[0][0] <= until:
            self.now, _, call, argument = pop(heap)
            self.events += 1
            call(argument)

    def halt(self) -> None:
        """Nothing happens any more: no event, no process."""
        self.heap.clear()
        for life in self.lives:
            life.dead = True

    def between(self, low: float, high: float) -> float:
        """A random duration."""
        return low + (high - low) * self.random()

    def below(self, bound: int) -> int:
        """A random number from 0 to bound - 1. Cheaper than `randrange`."""
        return int(self.random() * bound)

    def note(self, who: str, what: str, outcome: object = "") -> None:
        """A line of the trace, if there is one."""
        if self.trace is not None:
            self.trace.note(self.now, who, what, str(outcome))


class Life:
    """What processes belong to: while it is paused they do not run, and when it is dead they never do again."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.dead = False
        self.paused_until = 0.0
        kernel.lives.append(self)


class Process(greenlet):  # type: ignore[misc]
    """A thread of a simulated node. Runs until it waits; is woken by the hub."""

    def __init__(self, kernel: Kernel, life: Life, work: Callable[[], None]) -> None:
        super().__init__(parent=kernel.hub)
        self._kernel = kernel
        self._life = life
        self._work = work
        self._ticket = 0
        self.ended = False
        self._begun = False
        self._give_way = kernel.hub.switch
        self.failure: Exception | None = None
        self._waiter: Process | None = None
        kernel.after(0.0, self._wake, 0)

    def run(self) -> None:
        """The greenlet's body."""
        self._begun = True
        try:
            self._work()
        except Crash:
            pass
        except Exception as unexpected:  # noqa: BLE001 - whatever the product lets escape is what we look for
            self.failure = unexpected
        self.ended = True
        if self._waiter is not None:
            self._waiter.wake_soon()

    def sleep(self, seconds: float) -> None:
        """Give way for that long, or until `wake_soon`. Called by the process itself. Raises `Crash`."""
        life, kernel = self._life, self._kernel
        if life.dead:
            raise Crash
        self._ticket += 1
        # As `Kernel.after`, without a call: processes sleep more often than anything else happens.
        kernel.serial += 1
        heappush(kernel.heap, (kernel.now + seconds, kernel.serial, self._wake, self._ticket))
        self._give_way()
        if life.dead:
            raise Crash

    def wake_soon(self) -> None:
        """End its sleep as the next event."""
        self._kernel.after(0.0, self._wake, self._ticket)

    def kill(self) -> None:
        """Unwind it where it stands; its life must be dead already. Called by the hub."""
        self._ticket += 1
        if self._begun and not self.ended:
            self._kernel.running = self
            self.throw(Crash)
        self.ended = True

    def join(self, timeout: float) -> None:
        """The calling process waits for the end of this one, at most that long."""
        caller = self._kernel.running
        if not self.ended and caller is not None:
            self._waiter = caller
            caller.sleep(timeout)
            self._waiter = None

    def _wake(self, ticket: int) -> None:
        if ticket != self._ticket or self.ended:
            return
        kernel, paused_until = self._kernel, self._life.paused_until
        if paused_until > kernel.now:
            kernel.after(paused_until - kernel.now, self._wake, ticket)
            return
        self._ticket += 1
        kernel.running = self
        self.switch()
        # What the hub itself calls belongs to no process, and must not put one to sleep.
        kernel.running = None
