"""The context of a handler: logger, platform and the user's data, as Nuclio's handlers know them."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

from holdfast.errors import UsageError
from holdfast.functions.events import TriggerInfo

NO_ACK_HEADER = "x-nuclio-stream-no-ack"
LEVELS = ("debug", "info", "warn", "error")

WriteLog = Callable[[Mapping[str, str]], None]
Acknowledge = Callable[[Any], None]
Callback = Callable[[], Any]


class FunctionResponse:
    """What a handler may return.

    Only its status and the header that keeps a record from being acknowledged have an effect.
    """

    def __init__(
        self,
        headers: dict[str, Any] | None = None,
        body: Any = None,
        content_type: str | None = None,
        status_code: int = 200,
        event_id: str | None = None,
    ) -> None:
        self.headers = headers or {}
        self.body = body
        self.content_type = content_type or "text/plain"
        self.status_code = status_code
        self.event_id = event_id

    def ensure_no_ack(self) -> None:
        """Keep the record from being acknowledged when its handler returns."""
        self.headers[NO_ACK_HEADER] = True


class FunctionLogger:
    """Writes log lines, each with its level, message and variables. Variables that are bound are in every line."""

    def __init__(self, write: WriteLog | None = None, level: str = "debug", **bound: Any) -> None:
        self._write = write or _print_line
        self._least = LEVELS.index(level)
        self._bound = bound

    def bind(self, **variables: Any) -> None:
        """Put these variables into every line from now on."""
        self._bound |= variables

    def debug(self, message: Any, *arguments: Any) -> None:
        self._log(0, message, arguments)

    def info(self, message: Any, *arguments: Any) -> None:
        self._log(1, message, arguments)

    def warn(self, message: Any, *arguments: Any) -> None:
        self._log(2, message, arguments)

    def error(self, message: Any, *arguments: Any) -> None:
        self._log(3, message, arguments)

    def debug_with(self, message: Any, *arguments: Any, **variables: Any) -> None:
        self._log(0, message, arguments, variables)

    def info_with(self, message: Any, *arguments: Any, **variables: Any) -> None:
        self._log(1, message, arguments, variables)

    def warn_with(self, message: Any, *arguments: Any, **variables: Any) -> None:
        self._log(2, message, arguments, variables)

    def error_with(self, message: Any, *arguments: Any, **variables: Any) -> None:
        self._log(3, message, arguments, variables)

    warning, warning_with = warn, warn_with

    def _log(
        self, level: int, message: Any, arguments: tuple[Any, ...], variables: Mapping[str, Any] | None = None
    ) -> None:
        if level >= self._least:
            more = " || ".join(f"{name}={value}" for name, value in {**(variables or {}), **self._bound}.items())
            self._write({"level": LEVELS[level], "message": _formatted(message, arguments), "more": more})


def _formatted(message: Any, arguments: tuple[Any, ...]) -> str:
    try:
        return str(message) % arguments if arguments else str(message)
    except (TypeError, ValueError):
        # Nuclio's examples pass values without a place for them in the message.
        return " ".join(map(str, (message, *arguments)))


def _print_line(line: Mapping[str, str]) -> None:
    at = datetime.now(UTC).isoformat(timespec="milliseconds")
    print(json.dumps({"datetime": at, **line}, separators=(",", ":")), file=sys.stderr, flush=True)  # noqa: T201


class FunctionPlatform:
    """What a handler may ask of its surroundings: acknowledge records, and be called before the worker ends."""

    def __init__(self, acknowledge: Acknowledge | None = None) -> None:
        self.kind = "holdfast"
        self.namespace = "default"
        self._acknowledge = acknowledge
        self._callbacks: dict[str, Callback] = {}

    async def explicit_ack(self, qualified_offset: Any) -> None:
        """Acknowledge a record, by a `QualifiedOffset` of holdfast or Nuclio. May be called from any thread.

        Does not wait for the commit. Raises `UsageError` if explicit acks are off, or if no shard of the name exists.
        """
        if self._acknowledge is None:
            raise UsageError("explicit acks are off; set ack to enable or explicit_only")
        self._acknowledge(qualified_offset)

    def set_drain_callback(self, callback: Callback) -> None:
        """Call this without arguments when shards are handed over; acks that it makes still count."""
        self._callbacks["drain"] = callback

    def set_termination_callback(self, callback: Callback) -> None:
        """Call this without arguments before the worker ends."""
        self._callbacks["termination"] = callback

    def on_signal(self, callback_type: str = "termination") -> Any:
        """Call the callback of this type, `termination` or `drain`, and return its result; None if there is none."""
        callback = self._callbacks.get(callback_type)
        return callback() if callback else None

    _on_signal = on_signal

    def call_function(self, function_name: str, *_: Any, **__: Any) -> Any:
        """Not supported. Raises `UsageError`."""
        raise UsageError(f"the function {function_name!r} cannot be called; write its records to a stream instead")


class FunctionContext:
    """What a handler gets besides the event. One per worker; `user_data` is the handler's own."""

    def __init__(
        self,
        logger: Any = None,
        platform: FunctionPlatform | None = None,
        worker_id: int = 0,
        trigger: TriggerInfo | None = None,
        response: type[Any] = FunctionResponse,
    ) -> None:
        self.worker_id = worker_id
        self.logger = logger or FunctionLogger(worker_id=worker_id)
        self.platform = platform or FunctionPlatform()
        self.trigger = trigger or TriggerInfo()
        self.trigger_name = self.trigger.name
        self.user_data = SimpleNamespace()
        self.Response = response
