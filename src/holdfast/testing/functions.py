"""A context and events for unit tests of handlers: no stream, no worker, no Spark."""

from __future__ import annotations

import asyncio
import inspect
import json
import time
from collections.abc import Callable, Mapping
from typing import Any

from holdfast.flow.shards import StreamRecord
from holdfast.functions.contexts import FunctionContext, FunctionLogger, FunctionPlatform
from holdfast.functions.events import EventOrigin, FunctionEvent, QualifiedOffset, TriggerInfo
from holdfast.functions.nuclio import event_class, response_class


class RecordingContext(FunctionContext):
    """A context that keeps what a handler has logged and acknowledged."""

    def __init__(self, worker_id: int = 0, trigger: TriggerInfo | None = None) -> None:
        self.logged: list[Mapping[str, str]] = []
        """Log lines: `level`, `message` and `more`."""
        self.acked: list[QualifiedOffset] = []
        """What was acknowledged explicitly."""
        logger = FunctionLogger(self.logged.append, worker_id=worker_id)
        super().__init__(logger, FunctionPlatform(self._ack), worker_id, trigger, response_class())

    def _ack(self, offset: Any) -> None:
        self.acked.append(QualifiedOffset(offset.topic, offset.partition, offset.offset))


def stream_event(
    body: Any = b"",
    *,
    shard_id: int = 0,
    offset: int = 0,
    headers: Mapping[str, str | bytes] | None = None,
    key: bytes | None = None,
    timestamp: float | None = None,
    stream: str = "stream",
) -> FunctionEvent:
    """An event as a handler would get it.

    Text becomes UTF-8; anything but text, bytes and None becomes JSON, with the content type that makes the handler see
    it parsed. `timestamp` is in seconds since 1970; now unless given.
    """
    given = dict(headers or {})
    if not isinstance(body, bytes | str | None):
        body = json.dumps(body)
        given.setdefault("content-type", "application/json")
    content = body.encode() if isinstance(body, str) else body
    encoded = tuple((name, value.encode() if isinstance(value, str) else value) for name, value in given.items())
    milliseconds = int((time.time() if timestamp is None else timestamp) * 1000)
    record = StreamRecord(str(shard_id), offset, milliseconds, key, encoded, content)
    return event_class()(record, EventOrigin(stream, shard_id))


def call_handler(handler: Callable[..., Any], context: FunctionContext, event: Any) -> Any:
    """Call a handler as a worker does, and return its result; one that is async is awaited.

    A handler that is not async may use `asyncio.get_event_loop().run_until_complete`. `event` is a list for handlers of
    batches.
    """
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    try:
        result = handler(context, event)
        return loop.run_until_complete(result) if inspect.isawaitable(result) else result
    finally:
        asyncio.set_event_loop(None)
        loop.close()
