"""The task of a worker slot: it connects to the driver, reads its shards and lets the handler have their records.

Three threads. The main one reads records and calls the handler. One receives: grants count at once, everything else
waits for the main thread. One beats: it asks for the next grant and keeps a watchdog that ends the process when a call
takes too long, or when a record is still in hand some time after the grant has ended. The watchdog is a thread of C
that is put off by each beat, so that it also ends a process whose handler never lets go of Python's lock.
"""

from __future__ import annotations

import faulthandler
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from holdfast.errors import ChannelLost, SourceUnavailable, UsageError
from holdfast.flow.shards import ReaderFactory, RecordsMissing, ShardEnded, ShardReport
from holdfast.functions import messages
from holdfast.functions.caller import WorkerClock
from holdfast.functions.channel import Address, Channel, dial
from holdfast.functions.events import EventOrigin, QualifiedOffset, TriggerInfo
from holdfast.functions.messages import Down, Up, decode_down, encode
from holdfast.functions.settings import FunctionConfig
from holdfast.functions.shard_calls import DeadRecord, ShardCalls, ShardProgress
from holdfast.functions.watchdog import CallWatchdog
from holdfast.functions.worker import FunctionWorker
from holdfast.leases.lease import Counts, Json

BEAT_EVERY = 0.25
FETCH_WAIT = 0.05
"""Seconds that the main thread waits for records before it looks at messages of the driver."""
SLICE = 0.05
"""Seconds after which no record is begun before the driver's messages were looked at."""
CAREFUL_FOR = 10.0
"""Seconds for which each record of a shard is announced whose last worker has died."""
GRACE = 0.5
"""Seconds that a worker may take to end after its time is over."""


class LetterStore(Protocol):
    """Keeps records that failed for the last time. Picklable; used inside a task."""

    def keep(self, origin: Json, letters: tuple[DeadRecord, ...]) -> None:
        """Store them for good. Whatever it raises ends the worker, and nothing of them is committed."""
        ...


@dataclass(frozen=True, slots=True)
class TaskSettings:
    """What a worker needs; it is sent to its task. `overrun` is that of the driver's rules."""

    address: Address
    slot: int
    attempt: int
    reader: ReaderFactory
    config: FunctionConfig
    letters: LetterStore | None = None
    trigger: TriggerInfo = TriggerInfo()
    overrun: float = 1.0


def boot_time() -> float:
    """Seconds that also pass while the host is suspended, so that a grant ends on a laptop that sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def run_worker(settings: TaskSettings) -> None:
    """Work until the driver stops this worker. Ends the process when the driver is gone."""
    channel = dial(settings.address)
    try:
        WorkerTask(settings, channel).run()
    finally:
        channel.close()


@dataclass(eq=False)
class Held:
    """A batch of this worker."""

    id: str
    shard: str
    calls: ShardCalls
    spec: Json = None
    careful_until: float = 0.0
    drain_until: float | None = None
    last: bool = False
    """Whether its shard has ended: it is drained once everything is acknowledged."""
    paused: bool = False


class WorkerTask:
    """One worker. `end` ends the process at once; nothing after it runs."""

    def __init__(
        self,
        settings: TaskSettings,
        channel: Channel,
        *,
        end: Callable[[int], None] = os._exit,
    ) -> None:
        self._settings = settings
        self._channel = channel
        self._end = end
        self._clock = boot_time
        self._call_until = float("inf")
        self._inbox: deque[Down] = deque()
        self._sent_at: dict[int, float] = {}
        self._held: dict[str, Held] = {}
        """By the key of the shard."""
        self._stop_until: float | None = None
        self._report_at = 0.0
        self._read_at = 0.0
        """When the stream is read next, at the earliest."""
        self._noted = ""
        """The last note about a stream that does not respond."""
        self.until = 0.0
        """When the grant ends."""
        self._reader = settings.reader.open()
        config = settings.config
        self._worker = FunctionWorker(
            config,
            worker_id=settings.slot,
            trigger=settings.trigger,
            forward=self._forward,
            clock=WorkerClock(monotonic=self._clock),
            watchdog=CallWatchdog(config.timeout, self._watch_call, self._forget_call),
        )

    def run(self) -> None:
        """Say hello and work until stopped."""
        self._send(messages.Hello(self._settings.slot, self._settings.attempt, os.getpid()))
        threads = [threading.Thread(target=work, daemon=True) for work in (self._receive, self._beat)]
        for thread in threads:
            thread.start()
        try:
            while self._stop_until is None:
                self._turn()
            self._worker.close()
            self._report()
        finally:
            faulthandler.cancel_dump_traceback_later()
            self._reader.close()

    # --- the two small threads ---------------------------------------------------------------------------------

    def _receive(self) -> None:
        try:
            while True:
                message = decode_down(self._channel.receive())
                if isinstance(message, messages.Grant):
                    self.until = max(self.until, self._sent_at.pop(message.n, 0.0) + message.usable)
                elif isinstance(message, messages.Stop) and message.within <= 0:
                    self._end(0)
                else:
                    self._inbox.append(message)
        except ChannelLost:
            if self._stop_until is None:
                # Nothing that this process does would count any more, and the next worker may wait for its end.
                self._end(1)

    def _beat(self) -> None:
        number = 0
        try:
            while True:
                number += 1
                self._sent_at[number] = self._clock()
                self._sent_at.pop(number - 100, None)
                held = self._held.get(self._worker.caller.busy)
                self._send(messages.Beat(number, held.id if held is not None else "", _rss()))
                self._put_off_watchdog()
                time.sleep(BEAT_EVERY)
        except ChannelLost:
            return

    def _watch_call(self, seconds: float) -> None:
        # The worker arms it half a second before a call at most, and adds a second to its timeout.
        self._call_until = self._clock() + seconds - 0.5

    def _forget_call(self) -> None:
        self._call_until = float("inf")

    def _put_off_watchdog(self) -> None:
        """Set the watchdog to the time by which this process must have ended, unless it is put off once more."""
        now, ends = self._clock(), self._call_until
        if self._worker.caller.busy:
            ends = min(ends, self.until + self._settings.overrun)
        if self._stop_until is not None:
            ends = min(ends, self._stop_until + GRACE)
        if ends == float("inf"):
            faulthandler.cancel_dump_traceback_later()
        else:
            faulthandler.dump_traceback_later(max(ends - now, 0.001), exit=True)

    # --- the main thread ---------------------------------------------------------------------------------------

    def _turn(self) -> None:
        while self._inbox:
            self._obey(self._inbox.popleft())
        now = self._clock()
        handled = self._step(now) if now < self.until else 0
        self._announce_while_careful(now)
        self._fetch(handled, now)
        for report in self._reader.reports():
            self._learn(report)
        now = self._clock()
        self._finish_drained(now)
        if now >= self._report_at:
            self._report_at = now + self._settings.config.commit_interval / 2
            self._report()

    def _step(self, now: float) -> int:
        """Handle records for a moment; the next call begins with another shard."""
        handled = self._worker.step(min(self.until, now + SLICE))
        shards = list(self._worker.shards.items())
        # A new dictionary: handlers may acknowledge from other threads meanwhile.
        self._worker.shards = dict(shards[1:] + shards[:1])
        return handled

    def _fetch(self, handled: int, now: float) -> None:
        self._pause_full_shards()
        wake = self._worker.wake_at() if now < self.until else None
        wait = 0.0 if handled else FETCH_WAIT if wake is None else min(max(wake - now, 0.0), FETCH_WAIT)
        if not self._held or now >= self.until or now < self._read_at:
            time.sleep(min(wait, 0.01) or 0.001)
            return
        try:
            records = self._reader.fetch(self._settings.config.read_batch_size, wait)
        except SourceUnavailable as error:
            self._note_once(f"the shards wait for their stream: {error}")
            time.sleep(FETCH_WAIT)  # the shards are kept: another node would wait for the same stream
            return
        if self._noted:
            self._note_once("the stream responds")
            self._noted = ""
        self._read_at = self._clock() + self._settings.config.polling_interval
        by_shard: dict[str, list[Any]] = {}
        for record in records:
            by_shard.setdefault(record.shard, []).append(record)
        for shard, part in by_shard.items():
            self._worker.feed(shard, part)

    def _note_once(self, text: str) -> None:
        if text != self._noted:
            self._noted = text
            self._send(messages.Notice(text))

    def _pause_full_shards(self) -> None:
        for held in self._held.values():
            full = held.calls.blocked or len(held.calls.waiting) >= 2 * self._settings.config.read_batch_size
            if full != held.paused:
                held.paused = full
                (self._reader.pause if full else self._reader.resume)(held.shard)

    def _obey(self, message: Down) -> None:
        if isinstance(message, messages.Assign):
            self._assign(message)
            return
        if isinstance(message, messages.Stop):
            self._stop_until = self._clock() + message.within
            return
        if isinstance(message, messages.Grant):
            return
        held = next((held for held in self._held.values() if held.id == message.id), None)
        if held is None:
            return
        if isinstance(message, messages.Drain):
            held.drain_until = self._clock() + message.within
            self._reader.remove(held.shard)
            self._worker.drain([held.shard])
        elif isinstance(message, messages.Revoke):
            self._let_go(held, messages.Dropped(held.id))
        elif isinstance(message, messages.Ack):
            held.calls.ack_elsewhere(message.ranges)

    def _assign(self, message: messages.Assign) -> None:
        origin = EventOrigin(message.spec["stream"], message.spec["number"], self._settings.trigger)
        self._worker.assign(message.shard, origin, message.position, message.acked)
        careful_until = self._clock() + CAREFUL_FOR if message.careful else 0.0
        self._held[message.shard] = Held(
            message.id, message.shard, self._worker.shards[message.shard], message.spec, careful_until
        )
        self._reader.add(message.shard, message.position)

    def _learn(self, report: ShardReport) -> None:
        held = self._held.get(report.shard)
        if held is None:
            return
        if isinstance(report, ShardEnded):
            held.last = True
        elif isinstance(report, RecordsMissing):
            if report.halted:
                error = f"records [{report.start}, {report.end}) were deleted before they were read"
                self._let_go(held, messages.Failed(held.id, error))
            else:
                self._send(messages.Lost(held.shard, report.start or 0, report.end or 0))
        else:
            self._let_go(held, messages.Failed(held.id, report.error))

    def _finish_drained(self, now: float) -> None:
        for held in list(self._held.values()):
            calls = held.calls
            through = calls.settled and not calls.waiting
            if calls.stopped is not None:
                self._report()
                self._let_go(held, messages.Failed(held.id, calls.stopped))
            elif held.last and held.drain_until is None and through:
                self._let_go_drained(held, last=True)
            elif held.drain_until is not None and (calls.settled or now >= held.drain_until):
                self._let_go_drained(held, last=False)

    def _let_go_drained(self, held: Held, *, last: bool) -> None:
        self._report()
        calls = held.calls
        position = calls.acks.position(self._reader, calls.start)
        self._let_go(held, messages.Drained(held.id, position, calls.acks.acked, last=last))

    def _let_go(self, held: Held, message: Up) -> None:
        del self._held[held.shard]
        self._reader.remove(held.shard)
        self._worker.drop(held.shard)
        self._send(message)

    def _report(self) -> None:
        for progress in self._worker.progress(self._reader):
            held = self._held.get(progress.id)
            if held is not None:
                self._keep_letters(progress)
                counts = _numbers(progress.counts)
                self._send(messages.Progress(held.id, progress.position, progress.acked, counts, progress.forwarded))

    def _keep_letters(self, progress: ShardProgress) -> None:
        if progress.letters:
            if self._settings.letters is None:
                raise UsageError("a record failed for the last time, and there is nowhere to keep dead letters")
            held = self._held[progress.id]
            self._settings.letters.keep({**held.spec, "key": held.shard}, progress.letters)

    def _announce_while_careful(self, now: float) -> None:
        careful = any(held.careful_until > now for held in self._held.values())
        self._worker.caller.began = self._announce if careful else None

    def _announce(self, shard: str, offset: int) -> None:
        held = self._held.get(shard)
        if held is not None and held.careful_until > 0:
            self._send(messages.Began(held.id, offset))

    def _forward(self, offset: QualifiedOffset) -> None:
        self._send(messages.Acked(offset.topic, str(offset.partition), offset.offset))

    def _send(self, message: Up) -> None:
        self._channel.send(encode(message))


def _numbers(counts: Counts) -> tuple[int, int, int, int]:
    return counts.processed, counts.succeeded, counts.failed, counts.dead


def _rss() -> int:
    try:
        with open("/proc/self/statm", "rb") as file:  # noqa: PTH123 - read four times per second
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return 0
