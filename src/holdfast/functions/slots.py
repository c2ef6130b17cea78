"""The driver's account of its worker slots: which worker may handle which shard, and until when. Pure.

No two workers of a node handle the same shard at the same time, whatever happens to processes and connections:

- A worker begins records only under a grant, which ends with the session of the node. `until` is the latest moment, by
  the driver's clock, at which a worker can still have a record in hand: a worker that is busy beyond that ends itself.
- What a worker has goes to another one only when its connection is lost and either `until` has passed or Spark has
  reported that its process has ended, and it was that process that closed the connection. The next worker of the slot
  waits until then.
- A shard that was revoked stays with its worker until the worker confirms that it has let go of it.

`Slots` has no sockets, threads or clock of its own. Each method notes what has happened and appends what follows from
it to `actions` and `reports`, which the engine takes and carries out in order. The receipts of a report are still the
parts that a worker has staged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from holdfast.flow.engine import Advanced, Report, Staged
from holdfast.flow.engine import Failed as BatchFailed
from holdfast.functions import messages
from holdfast.functions.messages import Down, Up
from holdfast.functions.slot_state import (
    Action,
    HangUp,
    Kill,
    Launch,
    Send,
    Shard,
    Slot,
    SlotRules,
    State,
    Worker,
)
from holdfast.leases.lease import Counts, Ranges

CLOCK_RATE_BOUND = 0.05
"""How much the clock of a worker's host may run slower than that of the driver."""
ANSWER = 0.5
"""Seconds for the word of a worker to arrive, beyond the time that it was given."""
_RULES = SlotRules()
_NOTHING = Counts()


class Slots:
    """The driver's view of its slots. Methods may be called in any order and with stale or unknown ids."""

    def __init__(
        self, number: int, clock: Callable[[], float], usable: Callable[[], float], rules: SlotRules = _RULES
    ) -> None:
        """`usable` returns the seconds for which the node's session can still be relied on."""
        self.slots = self._slots = [Slot(index) for index in range(number)]
        self._clock = clock
        self._usable = usable
        self._rules = rules
        self._batches: dict[str, Shard] = {}
        self._held: dict[str, Shard] = {}
        """By key, the shards that a worker may have in hand."""
        self._error = ""
        self._closed = False
        self.actions: list[Action] = []
        self.reports: list[Report] = []

    # --- what the node wants -----------------------------------------------------------------------------------

    def submit(self, shards: Iterable[Shard]) -> None:
        now = self._clock()
        for shard in shards:
            shard.since = now
            self._batches[shard.id] = shard
        self._assign_waiting()

    def drain(self, ids: Iterable[str], within: float) -> None:
        """Let these batches finish what they have in hand; each is reported as `Staged`."""
        for shard in self._known(ids):
            if shard.state is State.WAITING:
                self._stage(shard)
            elif shard.state is State.RUNNING or shard.moves:
                shard.moves = False
                self._drain(shard, within)

    def cancel(self, ids: Iterable[str]) -> None:
        """Take these batches away; nothing more is reported about them."""
        for shard in self._known(ids):
            del self._batches[shard.id]
            if (worker := self._worker_of(shard)) is not None:
                shard.state, shard.deadline = State.REVOKED, self._clock() + self._rules.let_go_within
                self._send(worker, messages.Revoke(shard.id))

    def acknowledge(self, batch_id: str, ranges: Ranges) -> bool:
        """Pass on acks from elsewhere. Returns False if no worker has the batch."""
        shard = self._batches.get(batch_id)
        worker = self._worker_of(shard) if shard is not None else None
        if worker is None or worker.connection is None:
            return False
        self._send(worker, messages.Ack(batch_id, ranges))
        return True

    def published(self, ids: Iterable[str]) -> None:
        """Let workers know that what they have reported about these batches is visible."""
        for shard in self._known(ids):
            if (worker := self._worker_of(shard)) is not None:
                self._send(worker, messages.Published(shard.id))

    def close(self, within: float) -> None:
        """Start no more workers and stop all of them."""
        self._closed = True
        for slot in self._slots:
            if slot.worker is not None:
                slot.worker.leaving = True
                self._send(slot.worker, messages.Stop(within))

    # --- what workers and Spark say ----------------------------------------------------------------------------

    @property
    def tried(self) -> bool:
        """Whether each slot has a worker, or has failed to start one."""
        return all(slot.ready or slot.failures for slot in self._slots)

    def greeted(self, connection: int, hello: messages.Hello) -> None:
        """A worker has connected. It gets nothing before the slot's earlier worker is over."""
        slot = self._slots[hello.slot] if 0 <= hello.slot < len(self._slots) else None
        if slot is None or self._closed or hello.attempt != slot.attempt:
            self.actions.append(HangUp(connection))
            return
        if slot.waiting is not None:
            self.actions.append(HangUp(slot.waiting[0]))
        slot.waiting = (connection, hello.attempt)
        self._settle(slot)

    def received(self, connection: int, message: Up) -> None:
        """A message of a worker. Those of workers that wait, are over or do not have the batch are dropped."""
        worker = next((slot.worker for slot in self._slots if slot.has(connection)), None)
        if worker is None:
            return
        worker.heard = self._clock()
        if isinstance(message, messages.Beat):
            self._beat(worker, message)
        elif not isinstance(message, messages.Hello | messages.Acked | messages.Lost | messages.Notice):
            shard = worker.shards.get(message.id)
            if shard is not None:
                self._about(worker, shard, message)

    def lost(self, connection: int, *, by_worker: bool) -> None:
        """The connection has ended; `by_worker` if the worker has closed it, as happens when its process ends."""
        for slot in self._slots:
            if slot.waiting is not None and slot.waiting[0] == connection:
                attempt, slot.waiting = slot.waiting[1], None
                self._replace(slot, attempt)
            if slot.worker is not None and slot.worker.connection == connection:
                slot.worker.connection, slot.worker.closed = None, by_worker
                if by_worker and slot.attempt == slot.worker.attempt:
                    # Its process ends, which Spark reports later; until then the next worker waits.
                    slot.running, slot.launch_at = False, self._clock()
                    self._launch(slot)
                self._settle(slot)

    def ended(self, number: int, attempt: int, error: str) -> None:
        """Spark has reported the end of a job. Its process may live on if Spark has lost the executor."""
        slot, now = self._slots[number], self._clock()
        self._error = error or self._error
        if attempt == slot.attempt and slot.running:
            slot.running = False
            came_up = slot.worker is not None and slot.worker.attempt == attempt
            slot.failures = 0 if came_up else slot.failures + 1
            pause = self._rules.restart_after * 2 ** max(0, slot.failures - 1)
            slot.launch_at = now + min(pause, self._rules.max_pause)
        worker = slot.worker
        if worker is not None and worker.attempt == attempt:
            worker.ended = True
            # The connection of a process that has ended ends by itself; one that does not belongs to an orphan.
            worker.hang_up_at = min(worker.hang_up_at, now + 1.0)
        self._settle(slot)
        self._give_up_if_none_comes_up()

    def tick(self) -> None:
        """Look at deadlines; to be called a few times per second."""
        now = self._clock()
        for slot in self._slots:
            worker = slot.worker
            if worker is not None and worker.connection is not None:
                self._look_at(slot, worker, now)
            self._settle(slot)
            self._launch(slot)
        self._assign_waiting()
        self._balance()

    @property
    def idle(self) -> bool:
        """Whether no worker is connected."""
        return all(slot.worker is None or slot.worker.connection is None for slot in self._slots)

    @property
    def jobs(self) -> list[Kill]:
        """The actions that end all running jobs, also those of slots whose next job has begun."""
        return [Kill(slot.number, attempt) for slot in self._slots for attempt in slot.attempts_under_way]

    @property
    def running(self) -> Iterator[Shard]:
        """The batches that a worker has."""
        return (shard for shard in self._batches.values() if shard.state is not State.WAITING)

    # --- workers -----------------------------------------------------------------------------------------------

    def _launch(self, slot: Slot) -> None:
        """Start the next worker of the slot, if it is time."""
        if not self._closed and not slot.running and self._clock() >= slot.launch_at:
            slot.attempt, slot.running = slot.attempt + 1, True
            self.actions.append(Launch(slot.number, slot.attempt))

    def _beat(self, worker: Worker, beat: messages.Beat) -> None:
        usable = self._usable()
        if usable > 0:
            until = self._clock() + usable * (1 + CLOCK_RATE_BOUND) + self._rules.overrun
            worker.until = max(worker.until, until)
            self._send(worker, messages.Grant(beat.n, usable))
        if self._rules.max_rss is not None and beat.rss > self._rules.max_rss and not worker.leaving:
            worker.leaving = True
            for shard in worker.shards.values():
                if shard.state is State.RUNNING:
                    shard.moves = True
                    self._drain(shard, self._rules.let_go_within)
            self._stop_if_empty(worker)

    def _look_at(self, slot: Slot, worker: Worker, now: float) -> None:
        """Hang up on a worker that is silent or an orphan; end the process of one that keeps a shard too long."""
        if now < min(worker.hang_up_at, max(worker.until, worker.heard + self._rules.silence)):
            if any(now >= shard.deadline for shard in worker.shards.values()) and not worker.ended:
                worker.leaving = True
                self._send(worker, messages.Stop(0.0))
                self.actions.append(Kill(slot.number, worker.attempt))
                for shard in worker.shards.values():
                    shard.deadline = float("inf")
            return
        self.actions.append(HangUp(worker.connection or 0))
        worker.connection = None

    def _settle(self, slot: Slot) -> None:
        """Free the shards of a worker that is over, and admit the worker that waits."""
        now = self._clock()
        if slot.worker is not None and slot.worker.is_over(now):
            worker, slot.worker = slot.worker, None
            if slot.attempt != worker.attempt and not worker.ended:
                self.actions.append(Kill(slot.number, worker.attempt))
            self._replace(slot, worker.attempt)
            self._free(worker)
        if slot.worker is None and slot.waiting is not None:
            connection, attempt = slot.waiting
            slot.waiting, slot.failures = None, 0
            slot.worker = Worker(attempt, connection, now, now)
            self._assign_waiting()

    def _replace(self, slot: Slot, attempt: int) -> None:
        """End the job of a worker that cannot come back, if Spark has not done so, and start another one."""
        if slot.running and slot.attempt == attempt:
            slot.running, slot.launch_at = False, self._clock() + self._rules.restart_after
            self.actions.append(Kill(slot.number, attempt))

    def _free(self, worker: Worker) -> None:
        for shard in worker.shards.values():
            self._held.pop(shard.key, None)
            if shard.state is State.DRAINING and not shard.moves:
                self._stage(shard)
            elif shard.state is not State.REVOKED:
                self._after_crash(worker, shard)
        worker.shards = {}
        self._assign_waiting()

    def _after_crash(self, worker: Worker, shard: Shard) -> None:
        shard.careful = shard.careful or not worker.leaving
        if worker.began is not None and worker.began[0] == shard.id and not worker.leaving:
            shard.crashes += 1
        if shard.crashes < self._rules.max_crashes:
            shard.state, shard.since, shard.moves = State.WAITING, self._clock(), False
            shard.deadline = float("inf")
            return
        offset = worker.began[1] if worker.began is not None else None
        error = f"{shard.crashes} workers died while they handled the record {offset}: {self._error}"
        del self._batches[shard.id]
        self.reports.append(BatchFailed(shard.id, error))

    def _give_up_if_none_comes_up(self) -> None:
        """Report shards as unavailable if every slot for them has failed repeatedly before its worker came up."""
        for shard in [shard for shard in self._batches.values() if shard.state is State.WAITING]:
            slots = [self._slots[self._home(shard)]] if self._rules.static else self._slots
            if all(slot.failures >= self._rules.max_crashes for slot in slots):
                del self._batches[shard.id]
                error = f"no worker comes up: {self._error}"
                self.reports.append(BatchFailed(shard.id, error, unavailable=True))

    # --- shards ------------------------------------------------------------------------------------------------

    def _about(self, worker: Worker, shard: Shard, message: Up) -> None:
        if isinstance(message, messages.Began):
            worker.began = (shard.id, message.offset)
        elif shard.state is State.REVOKED:
            if isinstance(message, messages.Dropped | messages.Drained | messages.Failed):
                self._let_go(worker, shard)
        elif isinstance(message, messages.Failed):
            self._let_go(worker, shard)
            del self._batches[shard.id]
            self.reports.append(BatchFailed(shard.id, message.error, unavailable=message.unavailable, what="source"))
        elif isinstance(message, messages.Progress | messages.Drained):
            if message.position != shard.position:
                shard.crashes = 0
            shard.position, shard.acked, counts = message.position, message.acked, Counts(*message.counts)
            if isinstance(message, messages.Drained):
                self._let_go(worker, shard)
                self._drained(shard, counts, message)
            else:
                self.reports.append(
                    Advanced(shard.id, shard.position, shard.acked, counts, message.forwarded, message.parts)
                )

    def _drained(self, shard: Shard, counts: Counts, message: messages.Drained) -> None:
        if not shard.moves or message.last:
            self._stage(shard, counts, message)
            return
        shard.state, shard.moves, shard.deadline, shard.since = State.WAITING, False, float("inf"), self._clock()
        self.reports.append(Advanced(shard.id, shard.position, shard.acked, counts, message.forwarded, message.parts))
        self._assign_waiting()

    def _let_go(self, worker: Worker, shard: Shard) -> None:
        del worker.shards[shard.id]
        del self._held[shard.key]
        if worker.leaving:
            self._stop_if_empty(worker)
        self._assign_waiting()

    def _stop_if_empty(self, worker: Worker) -> None:
        if not worker.shards:
            self._send(worker, messages.Stop(self._rules.let_go_within))

    def _drain(self, shard: Shard, within: float) -> None:
        worker = self._worker_of(shard)
        shard.state, shard.deadline = State.DRAINING, self._clock() + within + ANSWER
        if worker is not None:
            self._send(worker, messages.Drain(shard.id, within))

    def _stage(self, shard: Shard, counts: Counts = _NOTHING, message: messages.Drained | None = None) -> None:
        self._batches.pop(shard.id, None)
        staged = Staged(shard.id, shard.position, False, {}, counts, shard.acked)
        if message is not None:
            staged = replace(staged, last=message.last, receipts=message.parts, forwarded=message.forwarded)
        self.reports.append(staged)

    def _assign_waiting(self) -> None:
        now, waiting = self._clock(), [item for item in self._batches.values() if item.state is State.WAITING]
        for shard in waiting:
            slot = self._slot_for(shard, now)
            if slot is None or slot.worker is None or shard.key in self._held:
                continue
            shard.state = State.RUNNING
            slot.worker.shards[shard.id] = self._held[shard.key] = shard
            self._send(
                slot.worker,
                messages.Assign(shard.id, shard.key, shard.position, shard.acked, shard.spec, careful=shard.careful),
            )

    def _balance(self) -> None:
        """Move one shard to a worker that came up late and has fewer than others."""
        workers = [slot.worker for slot in self._slots if slot.worker is not None and slot.ready]
        if self._rules.static or not workers or any(shard.moves for shard in self._batches.values()):
            return
        most, least = (pick(workers, key=lambda worker: len(worker.shards)) for pick in (max, min))
        shard = next((shard for shard in most.shards.values() if shard.state is State.RUNNING), None)
        if shard is not None and len(most.shards) - len(least.shards) > 1:
            shard.moves = True
            self._drain(shard, self._rules.let_go_within)
            shard.deadline = float("inf")  # it is not urgent: a handler that takes long is not ended for this

    def _slot_for(self, shard: Shard, now: float) -> Slot | None:
        if self._rules.static:
            slot = self._slots[self._home(shard)]
            return slot if slot.ready else None
        ready = [slot for slot in self._slots if slot.ready]
        best = min(ready, key=lambda slot: slot.load, default=None)
        # Slots that are about to come up get their share too, but nothing waits for them for ever.
        share = -(-len(self._batches) // len(self._slots))
        if best is not None and best.load >= share and now < shard.since + self._rules.patience:
            return None
        return best

    def _home(self, shard: Shard) -> int:
        return shard.home % len(self._slots)

    def _worker_of(self, shard: Shard) -> Worker | None:
        workers = (slot.worker for slot in self._slots if slot.worker is not None)
        return next((worker for worker in workers if worker.shards.get(shard.id) is shard), None)

    def _known(self, ids: Iterable[str]) -> list[Shard]:
        return [self._batches[batch_id] for batch_id in ids if batch_id in self._batches]

    def _send(self, worker: Worker, message: Down) -> None:
        if worker.connection is not None:
            self.actions.append(Send(worker.connection, message))
