"""A worker: calls the handler for the shards that this process was given, each in order."""

from __future__ import annotations

import asyncio
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from holdfast.errors import UsageError
from holdfast.functions.acks import Positions, Range, ShardAcks
from holdfast.functions.contexts import WriteLog
from holdfast.functions.events import EventOrigin, FunctionEvent, QualifiedOffset, Record, TriggerInfo
from holdfast.functions.function import Function
from holdfast.functions.outcomes import refusal
from holdfast.functions.settings import FunctionConfig
from holdfast.functions.shard_calls import Call, ShardCalls, ShardProgress
from holdfast.functions.watchdog import CallWatchdog
from holdfast.leases.lease import Counts, Json

_FOREVER = float("inf")
_ERROR_CHARACTERS = 8000
# Results that say nothing about failure or acks.
_SILENT = (type(None), str, bytes, bool, int, float)


@dataclass(frozen=True, slots=True)
class WorkerClock:
    """Where a worker gets the time from."""

    monotonic: Callable[[], float] = time.monotonic
    wall: Callable[[], float] = time.time
    """Seconds since 1970; only the age of records is compared with it."""


class FunctionWorker:
    """One function in one process. Used by one thread; only `acknowledge` may be called from any.

    `forward` is given acks of shards that this worker does not have; without it they raise `UsageError`.
    """

    def __init__(
        self,
        config: FunctionConfig,
        *,
        worker_id: int = 0,
        trigger: TriggerInfo | None = None,
        write_log: WriteLog | None = None,
        forward: Callable[[QualifiedOffset], None] | None = None,
        clock: WorkerClock | None = None,
        watchdog: CallWatchdog | None = None,
    ) -> None:
        self.config = config
        self.shards: dict[str, ShardCalls] = {}
        self.busy = ""
        """Id of the shard whose record the handler has."""
        self.began: Callable[[str, int], None] | None = None
        """If given, called with id and offset before each call of the handler."""
        self._forward = forward
        self._clock = (clock or WorkerClock()).monotonic
        self._wall_clock = (clock or WorkerClock()).wall
        self._acks: deque[tuple[str, int]] = deque()
        self._watchdog = watchdog or CallWatchdog(config.timeout)
        self.function = Function(
            config, worker_id=worker_id, trigger=trigger, write_log=write_log, acknowledge=self.acknowledge
        )
        self._is_plain = config.ack == "disable" and config.batch is None and not self.function.handler.is_async

    # --- shards -------------------------------------------------------------------------------------------------------

    def assign(self, shard: str, origin: EventOrigin, position: Json, acked: Sequence[Range] = ()) -> None:
        """Handle the records of this shard that are fed from now on."""
        acks = ShardAcks(acked, window=self.config.max_unacked)
        self.shards[shard] = ShardCalls(shard, origin, position, self.config, acks)

    def feed(self, shard: str, records: Iterable[Record]) -> None:
        """Add records of a shard that were read, in order. Records of a shard that was dropped are ignored."""
        if shard in self.shards:
            self.shards[shard].feed(records, self._clock())

    def drop(self, shard: str) -> None:
        """Forget the shard: nothing more is handled or reported. May be repeated."""
        self.shards.pop(shard, None)

    def drain(self, shards: Sequence[str]) -> None:
        """Begin no more records of these shards, and call the drain callback, whose acks count. Does not raise."""
        for shard in shards:
            if shard in self.shards:
                self.shards[shard].drain()
        self.function.signal("drain")
        self.apply_acks()

    def close(self) -> None:
        """Call the termination callback, and end what the handler left running. Its acks count; take `progress` after.

        May be repeated.
        """
        if not self.function.loop.is_closed():
            self.function.signal("termination")
            self.apply_acks()
            self.function.close()

    def progress(self, positions: Positions) -> list[ShardProgress]:
        """Take what is new of every shard since the last call."""
        self.apply_acks()
        return [progress for shard in self.shards.values() if (progress := shard.progress(positions))]

    def wake_at(self) -> float | None:
        """When there is something to handle, by the worker's clock; None if nothing before more is fed."""
        now = self._clock()
        return min((due for shard in self.shards.values() if (due := shard.wake_at(now)) is not None), default=None)

    # --- acks ---------------------------------------------------------------------------------------------------------

    def acknowledge(self, offset: Any) -> None:
        """Acknowledge a record by its `QualifiedOffset`; it counts from the next step on. May be called by any thread.

        Raises `UsageError` if no shard of that name is known here and acks cannot be forwarded.
        """
        topic, partition, number = str(offset.topic).strip("/"), int(offset.partition), int(offset.offset)
        for shard in list(self.shards.values()):
            # Old clients of Nuclio give "/" as the name of every stream.
            if shard.origin.shard_id == partition and topic in {shard.origin.stream.strip("/"), ""}:
                self._acks.append((shard.id, number))
                return
        if self._forward is None:
            raise UsageError(f"shard {partition} of {offset.topic} is not handled by this worker")
        self._forward(QualifiedOffset(str(offset.topic), partition, number))

    def apply_acks(self) -> None:
        """Let the acks count that were made since the last call."""
        while self._acks:
            shard_id, offset = self._acks.popleft()
            shard = self.shards.get(shard_id)
            if shard is not None and not shard.acks.ack(offset):
                self.function.logger.warn_with("Too many early acks", shard_id=shard.origin.shard_id, offset=offset)

    # --- calls --------------------------------------------------------------------------------------------------------

    def step(self, until: float = _FOREVER) -> int:
        """Handle what can be handled now, and return the number of records. Begins none at or after `until`.

        Every shard gets one turn, so that a busy one does not keep back the others.
        """
        self.apply_acks()
        try:
            if self.function.handler.is_async:
                return self.function.loop.run_until_complete(self._step_async(until))
            return sum(self._turn(shard, until) for shard in list(self.shards.values()))
        finally:
            self.busy = ""
            self._watchdog.end()
            self.apply_acks()

    def _turn(self, shard: ShardCalls, until: float) -> int:
        handled = 0
        self.busy = shard.id
        if self._is_plain and self.began is None and shard.is_plain:
            handled = self._handle_in_order(shard, until)
        while handled < self.config.read_batch_size and self._clock() < until:
            call = shard.next_call(self._clock())
            if call is None:
                break
            self._call(shard, call)
            handled += len(call.records)
        return handled

    def _handle_in_order(self, shard: ShardCalls, until: float) -> int:
        """Handle single records that are acknowledged when the handler returns: the path of ordinary records."""
        waiting, origin, clock, watchdog = shard.waiting, shard.origin, self._clock, self._watchdog
        call, context, new_event = self.function.handler.call, self.function.context, self.function.event_class
        record: Record | None = None
        last: Record | None = None
        rearm_at, handled, limit = watchdog.rearm_at, 0, min(self.config.read_batch_size, len(waiting))
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
                if result.__class__ not in _SILENT and (error := refusal(self.function.finish(result))) is not None:
                    break
                last = record
                handled += 1
        except KeyboardInterrupt:
            raise
        except BaseException as raised:  # noqa: BLE001 (SystemExit of a handler is an error like any other)
            error = _in_words(raised)
        finally:
            if last is not None:
                shard.acks.passed(last.offset)
                shard.counts += Counts(processed=handled, succeeded=handled)
        if error is not None and record is not None and shard.acks.deliver(record.offset):
            self._failed(shard, Call([record]), error)
        return handled

    def _call(self, shard: ShardCalls, call: Call) -> None:
        events = self._begin(shard, call)
        self._watchdog.begin(self._clock())
        try:
            result = self.function.finish(self.function.handler.call(self.function.context, self._argument(events)))
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # noqa: BLE001 (SystemExit of a handler is an error like any other)
            self._failed(shard, call, _in_words(error))
        else:
            self._returned(shard, call, events, result)

    async def _step_async(self, until: float) -> int:
        places = asyncio.Semaphore(self.config.concurrency)
        turns = [self._turn_async(shard, until, places) for shard in list(self.shards.values())]
        ticking = asyncio.ensure_future(self._tick())
        try:
            return sum(await asyncio.gather(*turns))
        finally:
            ticking.cancel()

    async def _tick(self) -> None:
        """Show the watchdog that the loop runs: a handler that blocks it is ended."""
        while self.config.timeout is not None:
            self._watchdog.begin(self._clock())
            await asyncio.sleep(min(0.5, self.config.timeout))

    async def _turn_async(self, shard: ShardCalls, until: float, places: asyncio.Semaphore) -> int:
        handled = 0
        while handled < self.config.read_batch_size:
            async with places:
                self.apply_acks()
                call = shard.next_call(self._clock()) if self._clock() < until else None
                # A shard that was dropped while another's handler ran must not begin anything.
                if call is None or self.shards.get(shard.id) is not shard:
                    break
                await self._call_async(shard, call)
            handled += len(call.records)
        return handled

    async def _call_async(self, shard: ShardCalls, call: Call) -> None:
        events = self._begin(shard, call)
        try:
            coroutine = self.function.handler.call(self.function.context, self._argument(events))
            result = await asyncio.wait_for(coroutine, self.config.timeout)
        except (KeyboardInterrupt, asyncio.CancelledError) as error:
            task = asyncio.current_task()
            if isinstance(error, KeyboardInterrupt) or (task is not None and task.cancelling()):
                raise
            self._failed(shard, call, _in_words(error))
        except TimeoutError as error:
            took = f"the handler took longer than {self.config.timeout} s" if not str(error) else _in_words(error)
            self._failed(shard, call, took)
        except BaseException as error:  # noqa: BLE001 (as in _call)
            self._failed(shard, call, _in_words(error))
        else:
            self._returned(shard, call, events, result)

    def _begin(self, shard: ShardCalls, call: Call) -> list[FunctionEvent]:
        self.busy = shard.id
        if self.began is not None:
            self.began(shard.id, call.records[0].offset)
        events = [self.function.event_class(record, shard.origin) for record in call.records]
        events[-1].last_in_batch = self.config.batch is not None
        return events

    def _argument(self, events: list[FunctionEvent]) -> Any:
        return events[0] if self.config.batch is None else events

    def _returned(self, shard: ShardCalls, call: Call, events: Sequence[FunctionEvent], result: Any) -> None:
        self.apply_acks()
        reason = shard.returned(call, events, result, self._clock(), self._wall_clock())
        if reason is not None:
            self._log_failure(shard, call, reason)

    def _failed(self, shard: ShardCalls, call: Call, error: str) -> None:
        self.apply_acks()
        shard.failed(call, error, self._clock(), self._wall_clock())
        self._log_failure(shard, call, error)

    def _log_failure(self, shard: ShardCalls, call: Call, error: str) -> None:
        self.function.logger.warn_with(
            "Handler failed",
            shard_id=shard.origin.shard_id,
            offset=call.records[0].offset,
            records=len(call.records),
            attempt=call.attempts,
            error=error,
        )


def _in_words(error: BaseException) -> str:
    text = "".join(traceback.format_exception(error))
    first = f"{type(error).__name__}: {error}\n"
    return first + (text if len(text) <= _ERROR_CHARACTERS else f"…{text[-_ERROR_CHARACTERS:]}")
