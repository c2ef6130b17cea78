"""One call of a function without a stream, a store or Spark: `holdfast function invoke`."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from holdfast.flow.shards import StreamRecord
from holdfast.functions.events import EventOrigin, FunctionEvent, QualifiedOffset
from holdfast.functions.function import Function
from holdfast.functions.outcomes import batch_failures, refusal, wants_no_ack
from holdfast.functions.settings import FunctionConfig
from holdfast.functions.watchdog import CallWatchdog


@dataclass(frozen=True, slots=True)
class Invocation:
    """What one call of the handler has done."""

    offsets: tuple[int, ...]
    result: Any
    error: str | None
    acked: bool
    """Whether the records are acknowledged because the handler has returned."""
    explicit_acks: tuple[QualifiedOffset, ...]


def invoke(config: FunctionConfig, records: Sequence[StreamRecord], origin: EventOrigin) -> list[Invocation]:
    """Call the handler for each record, or once with all if it takes batches, and then the termination callback.

    Nothing is tried again. Raises `UsageError` if the handler cannot be imported or prepared.
    """
    acks: list[QualifiedOffset] = []
    function = Function(
        config,
        trigger=origin.trigger,
        acknowledge=lambda offset: acks.append(QualifiedOffset(offset.topic, offset.partition, offset.offset)),
    )
    groups = [records] if config.batch is not None else [[record] for record in records]
    try:
        calls = [_call(function, [function.event_class(record, origin) for record in group], acks) for group in groups]
        function.signal("termination")
        return calls
    finally:
        function.close()


def _call(function: Function, events: list[FunctionEvent], acks: list[QualifiedOffset]) -> Invocation:
    is_batch, result, error = function.config.batch is not None, None, None
    acks.clear()
    watchdog = CallWatchdog(function.config.timeout)
    watchdog.begin(time.monotonic())
    try:
        result = function.finish(function.handler.call(function.context, events if is_batch else events[0]))
        failures = batch_failures(result, events) if is_batch else {}
        error = next(iter(failures.values()), None) if is_batch else refusal(result)
    except KeyboardInterrupt:
        raise
    except BaseException as raised:  # noqa: BLE001 (SystemExit of a handler is an error like any other)
        error = f"{type(raised).__name__}: {raised}"
        function.logger.error_with("Handler failed", error=error)
    finally:
        watchdog.end()
    mode = function.config.ack
    acked = error is None and (mode == "disable" or (mode == "enable" and not wants_no_ack(result)))
    return Invocation(tuple(event.offset for event in events), result, error, acked, tuple(acks))
