"""What `holdfast.testing` offers for tests of handlers."""

from __future__ import annotations

import asyncio
from typing import Any

import nuclio_sdk

from holdfast import FunctionContext, FunctionEvent, FunctionResponse, QualifiedOffset
from holdfast.testing import RecordingContext, call_handler, stream_event


def test_a_handler_is_called_with_events_and_its_acks_and_log_are_kept() -> None:
    async def handler(context: FunctionContext, event: FunctionEvent) -> FunctionResponse:
        context.logger.info_with("Got event", id=event.body["id"])
        await context.platform.explicit_ack(QualifiedOffset.from_event(event))
        return FunctionResponse(body="ok")

    context = RecordingContext(worker_id=2)
    assert call_handler(handler, context, stream_event({"id": 7}, shard_id=3, offset=5)).body == "ok"
    assert context.acked == [QualifiedOffset("stream", 3, 5)]
    assert context.logged == [{"level": "info", "message": "Got event", "more": "id=7 || worker_id=2"}]


def test_a_handler_that_is_not_async_may_run_the_loop() -> None:
    def handler(context: Any, event: Any) -> str:
        offset = nuclio_sdk.QualifiedOffset.from_event(event)
        asyncio.get_event_loop().run_until_complete(context.platform.explicit_ack(offset))
        return "acked"

    context = RecordingContext()
    assert call_handler(handler, context, stream_event("text", headers={"a": "b"}, timestamp=1.5)) == "acked"
    assert context.acked == [QualifiedOffset("stream", 0, 0)]
