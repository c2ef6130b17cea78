"""Calls the handler: record after record of each shard, in batches, or several shards at once if it is async."""

from __future__ import annotations

import asyncio
import threading
import time
import traceback
from bisect import bisect_left
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from holdfast.events.flow import DURATION_BOUNDS
from holdfast.flow.shards import StreamRecord
from holdfast.functions.events import EventBatch, FunctionEvent
from holdfast.functions.function import Function
from holdfast.functions.outcomes import refusal
from holdfast.functions.output import Records
from holdfast.functions.shard_calls import Call, ShardCalls
from holdfast.functions.watchdog import CallWatchdog
from holdfast.leases.lease import Counts

_ERROR_CHARACTERS = 8000
# Results that say nothing about failure or acks.
_SILENT = (type(None), str, bytes, bool, int, float)


@dataclass(frozen=True, slots=True)
class WorkerClock:
    """Where a worker gets the time from."""

    monotonic: Callable[[], float] = time.monotonic
    wall: Callable[[], float] = time.time
    """Seconds since 1970; only the age of records is compared with it."""


class HandlerDurations:
    """Counts records by how long the handler took for them, until they are taken. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._records, self._seconds = [0] * (len(DURATION_BOUNDS) + 1), 0.0

    def add(self, records: int, seconds: float) -> None:
        """Count records that took this long in total; each counts as the average."""
        if records:
            with self._lock:
                self._records[bisect_left(DURATION_BOUNDS, seconds / records)] += records
                self._seconds += seconds

    def take(self) -> tuple[tuple[int, ...], float]:
        """Return the counts and the seconds of all records, and reset them; no counts if there was no record."""
        with self._lock:
            taken = (tuple(self._records) if any(self._records) else (), self._seconds)
            self._records, self._seconds = [0] * len(self._records), 0.0
            return taken


class HandlerCaller:
    """Calls one function for shards. `apply_acks` applies the explicit acks that were made since its last call."""

    def __init__(
        self, function: Function, clock: WorkerClock, watchdog: CallWatchdog, apply_acks: Callable[[], None]
    ) -> None:
        self.busy = ""
        """Id of the shard whose record the handler has; empty between steps."""
        self.began: Callable[[str, int], None] | None = None
        """If given, called with id and offset before each call of the handler."""
        self.durations = HandlerDurations()
        self._function = function
        self._config = function.config
        self._clock = clock.monotonic
        self._wall_clock = clock.wall
        self._watchdog = watchdog
        self._apply_acks = apply_acks
        self._single = function.config.batch is None and not function.handler.is_async

    def step(self, shards: Sequence[ShardCalls], until: float) -> int:
        """Handle what can be handled now, and return the number of records. Begins none at or after `until`.

        Every shard gets one turn, so that a busy one does not keep back the others.
        """
        try:
            if self._function.handler.is_async:
                return self._function.loop.run_until_complete(self._step_async(shards, until))
            # Most shards are idle most of the time, and there may be many.
            return sum(self._turn(shard, until) for shard in shards if shard.has_records)
        finally:
            self.busy = ""
            self._watchdog.end()

    def _turn(self, shard: ShardCalls, until: float) -> int:
        self.busy, handled, started = shard.id, 0, self._clock()
        if self._single and self.began is None and shard.is_plain:
            handle = self._handle_tracked if shard.tracks else self._handle_in_order
            handled = handle(shard, until)
        while handled < self._config.read_batch_size and self._clock() < until:
            call = shard.next_call(self._clock())
            if call is None:
                break
            self._call(shard, call)
            handled += len(call.records)
        self.durations.add(handled, self._clock() - started)
        return handled

    # --- the paths of ordinary records --------------------------------------------------------------------------------

    def _handle_in_order(self, shard: ShardCalls, until: float) -> int:
        """Handle single records that are acknowledged when the handler returns."""
        waiting, origin, clock, watchdog = shard.waiting, shard.origin, self._clock, self._watchdog
        call, context, new_event = self._function.handler.call, self._function.context, self._function.event_class
        record: StreamRecord | None = None
        last: StreamRecord | None = None
        rearm_at, handled, limit = watchdog.rearm_at, 0, min(self._config.read_batch_size, len(waiting))
        error: str | None = None
        try:
            while handled < limit:
                if (now := clock()) >= rearm_at:
                    watchdog.begin(now)
                    rearm_at = watchdog.rearm_at
                if now >= until:
                    break
                record = waiting.popleft()
                result = call(context, new_event(record, origin))
                if result.__class__ not in _SILENT and (error := self._refused(shard, record, result)) is not None:
                    break
                last = record
                handled += 1
        except BaseException as raised:  # noqa: BLE001 (SystemExit of a handler is an error like any other)
            error = _in_words(raised)
        finally:
            if last is not None:
                shard.acks.passed(last.offset)
                shard.counts += Counts(processed=handled, succeeded=handled)
        if error is not None and record is not None and shard.acks.deliver(record.offset):
            self._failed(shard, Call([record]), error)
        return handled

    def _refused(self, shard: ShardCalls, record: StreamRecord, result: Any) -> str | None:
        """Why the call failed according to its result, if it did; rows for other sinks are kept."""
        result = self._function.finish(result)
        if not isinstance(result, Records):
            return refusal(result)
        return shard.keep_output(record.offset, record.offset, result)

    def _handle_tracked(self, shard: ShardCalls, until: float) -> int:
        """Handle single records of which each may be acknowledged explicitly."""
        waiting, origin, acks, is_implicit = shard.waiting, shard.origin, shard.acks, shard.config.ack == "enable"
        call, context, new_event = self._function.handler.call, self._function.context, self._function.event_class
        handled = quiet = 0
        while handled < self._config.read_batch_size and waiting and not acks.full and (now := self._clock()) < until:
            self._watchdog.begin(now)
            record = waiting.popleft()
            if not acks.deliver(record.offset):
                continue
            handled += 1
            try:
                event = new_event(record, origin)
                result = call(context, event)
                is_silent = result.__class__ in _SILENT
                result = result if is_silent else self._function.finish(result)
            except BaseException as error:  # noqa: BLE001 (as above)
                self._failed(shard, Call([record]), _in_words(error))
                break
            self._apply_acks()
            if is_silent:
                quiet += 1
                if is_implicit:
                    acks.ack(record.offset)
            elif self._returned(shard, Call([record]), event, result) is not None:
                break
        shard.counts += Counts(processed=quiet, succeeded=quiet)
        return handled

    # --- all others ---------------------------------------------------------------------------------------------------

    def _call(self, shard: ShardCalls, call: Call) -> None:
        argument = self._begin(shard, call)
        self._watchdog.begin(self._clock())
        try:
            result = self._function.finish(self._function.handler.call(self._function.context, argument))
        except BaseException as error:  # noqa: BLE001 (as above)
            self._failed(shard, call, _in_words(error))
        else:
            self._returned(shard, call, argument, result)

    async def _step_async(self, shards: Sequence[ShardCalls], until: float) -> int:
        slots = asyncio.Semaphore(self._config.concurrency)
        ticking = asyncio.ensure_future(self._tick())
        try:
            return sum(await asyncio.gather(*(self._turn_async(shard, until, slots) for shard in shards)))
        finally:
            ticking.cancel()

    async def _tick(self) -> None:
        """Show the watchdog that the event loop runs; it ends a process whose handler blocks the loop."""
        while self._config.timeout is not None:
            self._watchdog.begin(self._clock())
            await asyncio.sleep(min(0.5, self._config.timeout))

    async def _turn_async(self, shard: ShardCalls, until: float, slots: asyncio.Semaphore) -> int:
        handled = 0
        while handled < self._config.read_batch_size:
            async with slots:
                self._apply_acks()
                call = shard.next_call(self._clock()) if self._clock() < until else None
                if call is None:
                    break
                started = self._clock()
                await self._call_async(shard, call)
                self.durations.add(len(call.records), self._clock() - started)
            handled += len(call.records)
        return handled

    async def _call_async(self, shard: ShardCalls, call: Call) -> None:
        argument = self._begin(shard, call)
        try:
            coroutine = self._function.handler.call(self._function.context, argument)
            result = await asyncio.wait_for(_contained(coroutine), self._config.timeout)
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            self._failed(shard, call, _in_words(error))
        except _Exit as ended:
            self._failed(shard, call, _in_words(ended.error))
        except TimeoutError as error:
            took = f"the handler took longer than {self._config.timeout} s" if not str(error) else _in_words(error)
            self._failed(shard, call, took)
        except BaseException as error:  # noqa: BLE001 (as above)
            self._failed(shard, call, _in_words(error))
        else:
            self._returned(shard, call, argument, result)

    def _begin(self, shard: ShardCalls, call: Call) -> FunctionEvent | EventBatch:
        """What the handler gets."""
        self.busy = shard.id
        if self.began is not None:
            self.began(shard.id, call.records[0].offset)
        new_event, origin = self._function.event_class, shard.origin
        if self._config.batch is None:
            return new_event(call.records[0], origin)
        events = EventBatch.of(call.records, lambda record: new_event(record, origin))
        events[-1].last_in_batch = True
        return events

    def _returned(self, shard: ShardCalls, call: Call, given: FunctionEvent | EventBatch, result: Any) -> str | None:
        self._apply_acks()
        offset = call.records[0].offset
        reason = shard.returned(call, given, result, self._clock(), self._wall_clock())
        if reason is not None:
            self._log_failure(shard, offset, reason)
        return reason

    def _failed(self, shard: ShardCalls, call: Call, error: str) -> None:
        self._apply_acks()
        offset = call.records[0].offset
        shard.failed(call, error, self._clock(), self._wall_clock())
        self._log_failure(shard, offset, error)

    def _log_failure(self, shard: ShardCalls, offset: int, error: str) -> None:
        self._function.logger.warn_with("Handler failed", shard_id=shard.origin.shard_id, offset=offset, error=error)


class _Exit(Exception):
    """A handler has raised what asks the process to end."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(error)
        self.error = error


async def _contained(coroutine: Awaitable[Any]) -> Any:
    """The result of the coroutine. Raises `_Exit` for the two exceptions with which asyncio ends its loop."""
    try:
        return await coroutine
    except (KeyboardInterrupt, SystemExit) as error:
        raise _Exit(error) from error


def _in_words(error: BaseException) -> str:
    text = "".join(traceback.format_exception(error))
    first = f"{type(error).__name__}: {error}\n"
    return first + (text if len(text) <= _ERROR_CHARACTERS else f"…{text[-_ERROR_CHARACTERS:]}")
