"""A driver, its worker processes and Spark in one thread and under one clock, with faults drawn from a seed.

The account of slots is the real one. Processes die, freeze and lose their connections while they work on; Spark reports
late, or that an executor is lost whose process lives; the driver freezes; the session is not renewed for a while; the
node revokes, drains and submits shards. The oracle sees what handlers do, not what the account believes.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from holdfast.flow.engine import Advanced, Failed, Report, Staged
from holdfast.functions import messages
from holdfast.functions.messages import Down, Up
from holdfast.functions.slot_state import HangUp, Kill, Launch, Send, Shard, SlotRules
from holdfast.functions.slots import Slots

BEAT = 0.25


class Violation(AssertionError):
    """Something happened that must never happen."""


@dataclass(eq=False)
class Process:
    """A worker: handles one record after the other while its grant lasts."""

    slot: int
    attempt: int
    connection: int
    until: float = 0.0
    alive: bool = True
    frozen_until: float = 0.0
    connected: bool = True
    cut_off: bool = False
    """Whether the connection is dead without either side noticing at once."""
    beats: dict[int, float] = field(default_factory=dict)
    shards: dict[str, tuple[str, int]] = field(default_factory=dict)
    """By id: key and next offset."""
    ending: dict[str, type] = field(default_factory=dict)
    """Ids to drop or drain once the record in hand is done."""
    in_hand: tuple[str, str, int] | None = None
    sent_until: float = 0.0
    reached_until: float = 0.0


class Simulation:
    def __init__(self, seed: int, *, slots: int = 3, keys: int = 5, static: bool = False) -> None:
        self.dice = random.Random(seed)
        self.now = 0.0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._number = 0
        self.session_end = 5.0
        self.driver_frozen_until = 0.0
        self.rules = SlotRules(static=static, silence=3.0, let_go_within=1.0, patience=1.0)
        self.slots = Slots(slots, lambda: self.now, lambda: self.session_end - self.now, self.rules)
        self.processes: list[Process] = []
        self.handled: dict[str, int] = {f"shard-{number}": 0 for number in range(keys)}
        """By key, the number of records that are done: offsets begin with 0."""
        self.committed = dict.fromkeys(self.handled, 0)
        self.batches: dict[str, str] = {}
        self.homes: dict[str, set[int]] = {}
        self.faults = True
        self.begun = 0

    # --- time --------------------------------------------------------------------------------------------------

    def after(self, seconds: float, what: Callable[[], None]) -> None:
        self._number += 1
        heapq.heappush(self._events, (self.now + seconds, self._number, what))

    def run(self, seconds: float) -> None:
        self.after(0.0, self._tick)
        self.after(0.0, self._node)
        self.after(0.0, self._renew)
        self.after(1.0, self._fault)
        end = self.now + seconds
        self.after(seconds * 0.7, lambda: setattr(self, "faults", False))
        while self._events and self._events[0][0] < end:
            at, _, what = heapq.heappop(self._events)
            self.now = max(self.now, at)
            what()

    def happens(self, chance: float) -> bool:
        return self.faults and self.dice.random() < chance

    def _on_driver(self, what: Callable[[], None]) -> None:
        """Do this on the driver, as soon as it is not frozen."""
        if self.now < self.driver_frozen_until:
            self.after(self.driver_frozen_until - self.now, lambda: self._on_driver(what))
            return
        what()
        self._carry_out()

    # --- the node ----------------------------------------------------------------------------------------------

    def _tick(self) -> None:
        self._on_driver(self.slots.tick)
        self.after(0.1, self._tick)

    def _renew(self) -> None:
        self.session_end = self.now + 5.0
        self.after(8.0 if self.happens(0.1) else 1.5, self._renew)

    def _node(self) -> None:
        self._on_driver(self._want)
        self.after(0.3, self._node)

    def _want(self) -> None:
        for key in self.handled:
            mine = [batch for batch, other in self.batches.items() if other == key]
            if not mine:
                self._number += 1
                self.batches[f"batch-{self._number}"] = key
                home = int(key.removeprefix("shard-"))
                self.slots.submit([Shard(f"batch-{self._number}", key, home, self.committed[key])])
            elif self.happens(0.05):
                del self.batches[mine[0]]
                self.slots.cancel(mine)
            elif self.happens(0.05):
                self.slots.drain(mine, 0.5)

    def _learn(self, report: Report) -> None:
        key = self.batches.get(report.batch_id)
        if key is None:
            return
        if isinstance(report, Failed):
            del self.batches[report.batch_id]
            return
        position = report.position if isinstance(report, Advanced) else report.end
        if position > self.handled[key]:
            raise Violation(f"{key}: {position} is committed, and only {self.handled[key]} records were handled")
        self.committed[key] = max(position, self.committed[key])
        if isinstance(report, Staged):
            del self.batches[report.batch_id]

    def _carry_out(self) -> None:
        actions, self.slots.actions = self.slots.actions, []
        for action in actions:
            if isinstance(action, Launch):
                self.after(0.3 + self.dice.random(), partial(self._start, action))
            elif isinstance(action, Kill):
                for process in self._of(action.slot, action.attempt):
                    self.after(2.5, partial(self._die, process))
            elif isinstance(action, HangUp):
                self._hang_up(action.connection)
            elif isinstance(action, Send):
                self._send_down(action)
        reports, self.slots.reports = self.slots.reports, []
        for report in reports:
            self._learn(report)

    def _of(self, slot: int, attempt: int) -> list[Process]:
        return [process for process in self.processes if (process.slot, process.attempt) == (slot, attempt)]

    # --- the network -------------------------------------------------------------------------------------------

    def _hang_up(self, connection: int) -> None:
        for process in self.processes:
            if process.connection == connection:
                process.connected = False
                if not process.cut_off:
                    self.after(0.01, partial(self._notice_end, process))

    def _notice_end(self, process: Process) -> None:
        """The process sees the end of its connection and ends itself; a frozen one when it goes on."""
        self._when_awake(process, lambda: self._die(process))

    def _send_down(self, action: Send) -> None:
        for process in self.processes:
            if process.connection == action.connection and process.connected and not process.cut_off:
                process.reached_until = max(process.reached_until, self.now + 0.02 * self.dice.random())
                self.after(
                    process.reached_until - self.now,
                    partial(self._when_awake, process, partial(self._obey, process, action.message)),
                )

    def _send_up(self, process: Process, message: Up) -> None:
        if process.connected and not process.cut_off:
            process.sent_until = max(process.sent_until, self.now + 0.02 * self.dice.random())
            self.after(
                process.sent_until - self.now,
                lambda: self._on_driver(lambda: self.slots.received(process.connection, message)),
            )

    # --- processes ---------------------------------------------------------------------------------------------

    def _when_awake(self, process: Process, what: Callable[[], None]) -> None:
        if not process.alive:
            return
        if self.now < process.frozen_until:
            self.after(process.frozen_until - self.now, lambda: self._when_awake(process, what))
            return
        what()

    def _start(self, launch: Launch) -> None:
        self._number += 1
        process = Process(launch.slot, launch.attempt, self._number)
        self.processes.append(process)
        if self.happens(0.1):
            self._die(process)
            return
        hello = messages.Hello(process.slot, process.attempt)
        self._on_driver(lambda: self.slots.greeted(process.connection, hello))
        self._beat(process)
        self._work(process)

    def _beat(self, process: Process) -> None:
        number = len(process.beats)
        process.beats[number] = self.now
        self._send_up(process, messages.Beat(number))
        self.after(BEAT, lambda: self._when_awake(process, lambda: self._beat(process)))

    def _watch(self, process: Process) -> None:
        """The watchdog of a worker: it ends a process that is busy for too long after its grant."""
        left = process.until + self.rules.overrun - self.now
        if process.in_hand is not None and left <= 0:
            self._die(process)
        elif process.in_hand is not None:
            self.after(left, lambda: self._when_awake(process, lambda: self._watch(process)))

    def _obey(self, process: Process, message: Down) -> None:
        if isinstance(message, messages.Grant):
            process.until = max(process.until, process.beats[message.n] + message.usable)
        elif isinstance(message, messages.Assign):
            process.shards[message.id] = (message.shard, message.position)
            self.homes.setdefault(message.shard, set()).add(process.slot)
            if message.position > self.handled[message.shard]:
                raise Violation(f"{message.shard}: records are skipped up to {message.position}")
        elif isinstance(message, messages.Drain | messages.Revoke):
            process.ending[message.id] = type(message)
            self._end_batches(process)
        elif isinstance(message, messages.Stop):
            self._die(process)

    def _end_batches(self, process: Process) -> None:
        for batch, how in list(process.ending.items()):
            if process.in_hand is not None and process.in_hand[0] == batch:
                continue
            del process.ending[batch]
            _, position = process.shards.pop(batch, ("", 0))
            drained = messages.Drained(batch, position)
            self._send_up(process, drained if how is messages.Drain else messages.Dropped(batch))

    def _work(self, process: Process) -> None:
        able = [batch for batch in process.shards if batch not in process.ending]
        if able and self.now < process.until:
            batch = self.dice.choice(able)
            key, offset = process.shards[batch]
            self._begin(process, key, offset)
            process.in_hand = (batch, key, offset)
            self._watch(process)
            takes = 2.0 + 3 * self.dice.random() if self.happens(0.05) else 0.1 * self.dice.random()
            self.after(takes, lambda: self._when_awake(process, lambda: self._done(process)))
        else:
            self.after(0.05, lambda: self._when_awake(process, lambda: self._work(process)))

    def _begin(self, process: Process, key: str, offset: int) -> None:
        self.begun += 1
        if self.now >= self.session_end:
            raise Violation(f"{key}: a record is begun after the session has ended")
        for other in self.processes:
            if other is process or not other.alive or other.in_hand is None or other.in_hand[1] != key:
                continue
            # A frozen process does nothing, and its watchdog ends it when it wakes up too late.
            wakes_too_late = self.now < other.frozen_until and other.frozen_until >= other.until + self.rules.overrun
            if not wakes_too_late:
                raise Violation(f"{key}: two workers have a record of it in hand")
        if offset > self.handled[key]:
            raise Violation(f"{key}: record {offset} is handled before {self.handled[key]}")

    def _done(self, process: Process) -> None:
        if process.in_hand is None:
            return
        batch, key, offset = process.in_hand
        process.in_hand = None
        if self.now >= process.until + self.rules.overrun:
            self._die(process)  # the watchdog was faster
            return
        self.handled[key] = max(self.handled[key], offset + 1)
        process.shards[batch] = (key, offset + 1)
        if self.dice.random() < 0.3:
            self._send_up(process, messages.Progress(batch, offset + 1, (), (1, 1, 0, 0)))
        self._end_batches(process)
        self._work(process)

    def _die(self, process: Process) -> None:
        if not process.alive:
            return
        process.alive = False
        if process.connected:
            delay = 8.0 if process.cut_off else 0.02
            self.after(delay, lambda: self._lose(process, by_worker=not process.cut_off))
        self._report_end(process)

    def _lose(self, process: Process, *, by_worker: bool) -> None:
        self._on_driver(lambda: self.slots.lost(process.connection, by_worker=by_worker))

    def _report_end(self, process: Process) -> None:
        late = 3 * self.dice.random() if self.happens(0.3) else 0.1
        self.after(
            late,
            lambda: self._on_driver(lambda: self.slots.ended(process.slot, process.attempt, "it has died")),
        )

    # --- faults ------------------------------------------------------------------------------------------------

    def _fault(self) -> None:
        self.after(0.5 + self.dice.random(), self._fault)
        living = [process for process in self.processes if process.alive]
        if not self.faults or not living:
            return
        process, kind = self.dice.choice(living), self.dice.randrange(7)
        if kind == 0:
            self._die(process)
        elif kind == 1:
            process.frozen_until = max(process.frozen_until, self.now + 10 * self.dice.random())
        elif kind == 2:  # the driver sees the connection end, the process does not
            process.cut_off = True
            process.connected = False
            self._lose(process, by_worker=False)
        elif kind == 3:  # neither side sees it
            process.cut_off = True
        elif kind == 4:  # Spark loses the executor, and its process lives on
            process.cut_off = True
            process.connected = False
            self._report_end(process)
            self._lose(process, by_worker=False)
        elif kind == 5:  # Spark believes that the process has ended, but only its parent has
            process.cut_off = self.happens(0.5)
            self._report_end(process)
        else:
            self.driver_frozen_until = self.now + 6 * self.dice.random()
