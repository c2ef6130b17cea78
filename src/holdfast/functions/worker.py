"""A worker: calls the handler for the shards that this process was given, each in order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from holdfast.errors import UsageError
from holdfast.flow.shards import StreamRecord
from holdfast.functions.acks import Positions, Range, ShardAcks
from holdfast.functions.caller import HandlerCaller, WorkerClock
from holdfast.functions.contexts import WriteLog
from holdfast.functions.events import EventOrigin, QualifiedOffset, TriggerInfo
from holdfast.functions.function import Function
from holdfast.functions.output import OutputSinks, ShardOutput
from holdfast.functions.settings import FunctionConfig
from holdfast.functions.shard_calls import ShardCalls, ShardProgress
from holdfast.functions.watchdog import CallWatchdog
from holdfast.leases.lease import Json

_FOREVER = float("inf")


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
        self.sinks: OutputSinks | None = None
        """The other sinks of the pipeline, which get the records that the handler returns; None if there are none."""
        self.shards: dict[str, ShardCalls] = {}
        self._forward = forward
        self._clock = (clock or WorkerClock()).monotonic
        self._acks: deque[tuple[str, int]] = deque()
        self.function = Function(
            config, worker_id=worker_id, trigger=trigger, write_log=write_log, acknowledge=self.acknowledge
        )
        self.caller = HandlerCaller(
            self.function, clock or WorkerClock(), watchdog or CallWatchdog(config.timeout), self.apply_acks
        )

    # --- shards -------------------------------------------------------------------------------------------------------

    def assign(self, shard: str, origin: EventOrigin, position: Json, acked: Sequence[Range] = ()) -> None:
        """Handle the records of this shard that are fed from now on."""
        acks = ShardAcks(acked, window=self.config.max_unacked)
        tracks = self.config.ack != "disable" or self.function.handler.is_async
        output = ShardOutput(self.sinks) if self.sinks is not None else None
        self.shards[shard] = ShardCalls(shard, origin, position, self.config, acks, tracks, output=output)

    def assign_again(self, shard: str, origin: EventOrigin, position: Json) -> None:
        """Handle records of this shard whose rows for other sinks are lost: each is done when its handler returns."""
        self.assign(shard, origin, position)
        calls = self.shards[shard]
        on_error = self.config.on_error.model_copy(update={"after_retries": "stop"})
        calls.config = self.config.model_copy(update={"ack": "disable", "on_error": on_error})
        calls.tracks = self.function.handler.is_async
        if calls.output is not None:
            calls.output.waits = True

    def feed(self, shard: str, records: Sequence[StreamRecord]) -> None:
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
        """Call the termination callback, and end what the handler left running. `progress` then has its acks.

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
        """When there is something to handle, by the worker's clock; None until there are more records."""
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
        """Apply the acks that were made since the last call."""
        while self._acks:
            shard_id, offset = self._acks.popleft()
            shard = self.shards.get(shard_id)
            if shard is not None and not shard.acks.ack(offset):
                self.function.logger.warn_with("Too many early acks", shard_id=shard.origin.shard_id, offset=offset)

    # --- calls --------------------------------------------------------------------------------------------------------

    def step(self, until: float = _FOREVER) -> int:
        """Handle what can be handled now, and return the number of records. Begins none at or after `until`.

        Every shard gets one turn of at most `read_batch_size` records.
        """
        self.apply_acks()
        try:
            return self.caller.step(list(self.shards.values()), until)
        finally:
            self.apply_acks()
