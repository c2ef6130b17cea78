"""The task of a worker slot: it connects to the driver, reads its shards and gives their records to the handler.

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
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from holdfast.errors import BatchError, ChannelLost, SourceUnavailable, Unavailable
from holdfast.flow.shards import ReaderFactory, RecordsMissing, ShardEnded, ShardReport, StreamRecord
from holdfast.functions import messages
from holdfast.functions.caller import WorkerClock
from holdfast.functions.channel import Address, Channel, dial
from holdfast.functions.events import EventOrigin, QualifiedOffset, TriggerInfo
from holdfast.functions.messages import Down, Up, decode_down, encode
from holdfast.functions.output import OutputSinks
from holdfast.functions.settings import FunctionConfig
from holdfast.functions.shard_reports import HeldShard, LetterStore, ShardReports
from holdfast.functions.watchdog import CallWatchdog
from holdfast.functions.worker import FunctionWorker

BEAT_EVERY = 0.25
FETCH_WAIT = 0.05
"""Seconds that the main thread waits for records before it looks at messages of the driver."""
SLICE = 0.05
"""Seconds after which no record is begun before the driver's messages were looked at."""
CAREFUL_FOR = 10.0
"""Seconds for which each record of a shard is announced whose last worker has died."""
STAGING_PAUSE = 2.0
"""Seconds between two tries to stage rows for a sink that does not respond."""
GRACE = 0.5
"""Seconds that a worker may take to end after its time is over."""


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
    sinks: OutputSinks | None = None
    """The other sinks of the pipeline; None if there are none."""


# Read before each record: a function around the call would take longer than the call.
boot_time = partial(time.clock_gettime, time.CLOCK_BOOTTIME)
"""Seconds that also pass while the host is suspended, so that a grant ends on a laptop that sleeps."""


def run_worker(settings: TaskSettings) -> None:
    """Work until the driver stops this worker. Ends the process when the driver is gone."""
    channel = dial(settings.address)
    try:
        WorkerTask(settings, channel).run()
    finally:
        channel.close()


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
        self._held: dict[str, HeldShard] = {}
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
        self._worker.sinks = settings.sinks and replace(settings.sinks, item_of=self._reader.item_of)
        self._reports = ShardReports(self._reader, settings.sinks, settings.letters)

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
                durations = self._worker.caller.durations.take()
                self._send(messages.Beat(number, held.id if held is not None else "", _rss(), *durations))
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
            fetched = self._reader.fetch_by_shard(self._settings.config.read_batch_size, wait)
        except SourceUnavailable as error:
            self._note_once(f"the shards wait for their stream: {error}")
            time.sleep(FETCH_WAIT)  # the shards are kept: another node would wait for the same stream
            return
        if self._noted:
            self._note_once("the stream responds")
            self._noted = ""
        self._read_at = self._clock() + self._settings.config.polling_interval
        for shard, records in fetched:
            if (held := self._held.get(shard)) is not None:
                self._worker.feed(shard, self._until_end(held, records))

    def _note_once(self, text: str) -> None:
        if text != self._noted:
            self._noted = text
            self._send(messages.Notice(text))

    def _until_end(self, held: HeldShard, records: Sequence[StreamRecord]) -> Sequence[StreamRecord]:
        """The records before the end of a batch that is staged once more; all records of any other batch."""
        if held.until is None:
            return records
        for number, record in enumerate(records):
            at, after = self._reader.position_at(record.offset), self._reader.position_after(record.offset)
            if held.until in (at, after):
                held.last = True
                self._reader.remove(held.shard)
                return records[: number + (held.until == after)]
        return records

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
        if isinstance(message, messages.Published):
            if held.calls.output is not None and held.until is None:
                held.calls.output.waits = False
        elif isinstance(message, messages.Drain) and held.until is None:
            held.drain_until = self._clock() + message.within
            self._reader.remove(held.shard)
            self._worker.drain([held.shard])
        elif isinstance(message, messages.Revoke):
            self._let_go(held, messages.Dropped(held.id))
        elif isinstance(message, messages.Ack):
            held.calls.ack_elsewhere(message.ranges)

    def _assign(self, message: messages.Assign) -> None:
        origin = EventOrigin(message.spec["stream"], message.spec["number"], self._settings.trigger)
        until = message.spec.get("until")
        if until is None:
            self._worker.assign(message.shard, origin, message.position, message.acked)
        else:
            self._worker.assign_again(message.shard, origin, message.position)
        self._held[message.shard] = HeldShard(
            message.id,
            message.shard,
            self._worker.shards[message.shard],
            careful_until=self._clock() + CAREFUL_FOR if message.careful else 0.0,
            spec=message.spec,
            until=until,
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
            if calls.stopped is not None:
                self._report()
                self._let_go(held, messages.Failed(held.id, calls.stopped))
            elif held.drain_until is not None:
                if calls.settled or now >= held.drain_until:
                    self._let_go_drained(held, last=False)
            elif held.last and calls.settled and not calls.waiting:
                self._let_go_drained(held, last=True)

    def _let_go_drained(self, held: HeldShard, *, last: bool) -> None:
        now = self._clock()
        gives_up = held.drain_until is not None and now >= held.drain_until
        if now < held.report_after and not gives_up:
            return
        try:
            self._let_go(held, self._reports.drained(held, last=last, gives_up=gives_up))
        except Unavailable as away:
            self._put_off(held, away)
        except BatchError as error:
            self._let_go(held, messages.Failed(held.id, str(error)))

    def _let_go(self, held: HeldShard, message: Up) -> None:
        """Release the shard, unless that happened while it was being reported."""
        if self._held.get(held.shard) is not held:
            return
        del self._held[held.shard]
        self._reader.remove(held.shard)
        self._worker.drop(held.shard)
        self._send(message)

    def _report(self) -> None:
        self._worker.apply_acks()
        now = self._clock()
        for held in [held for held in self._held.values() if now >= held.report_after]:
            try:
                if (progress := self._reports.progress(held)) is not None:
                    self._send(progress)
            except Unavailable as away:
                self._put_off(held, away)
            except BatchError as error:
                self._let_go(held, messages.Failed(held.id, str(error)))

    def _put_off(self, held: HeldShard, away: Unavailable) -> None:
        held.report_after = self._clock() + STAGING_PAUSE
        self._worker.function.logger.warn_with("A sink does not respond", error=str(away))

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


def _rss() -> int:
    try:
        with open("/proc/self/statm", "rb") as file:  # noqa: PTH123 - read four times per second
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return 0
