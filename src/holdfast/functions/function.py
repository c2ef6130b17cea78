"""A function in this process: its handler, its context and its event loop."""

from __future__ import annotations

import asyncio
import inspect
import os
from typing import Any

from holdfast.config import Secret
from holdfast.errors import UsageError
from holdfast.functions.contexts import Acknowledge, FunctionContext, FunctionLogger, FunctionPlatform, WriteLog
from holdfast.functions.events import FunctionEvent, TriggerInfo
from holdfast.functions.handlers import Handler, load_handler
from holdfast.functions.nuclio import event_class, response_class
from holdfast.functions.settings import FunctionConfig


class Function:
    """A function that is ready to be called. It belongs to the thread that made it; close it there.

    The event loop is the thread's current one and does not run while a handler that is not async is called, so that
    such a handler may use `run_until_complete`. Raises `UsageError` if the handler cannot be imported, or if what is
    called before it fails.
    """

    def __init__(
        self,
        config: FunctionConfig,
        *,
        worker_id: int = 0,
        trigger: TriggerInfo | None = None,
        write_log: WriteLog | None = None,
        acknowledge: Acknowledge | None = None,
    ) -> None:
        self.config = config
        self.event_class: type[FunctionEvent] = event_class()
        self.logger = FunctionLogger(write_log, worker_id=worker_id)
        self.platform = FunctionPlatform(None if config.ack == "disable" else acknowledge)
        self.context = FunctionContext(self.logger, self.platform, worker_id, trigger, response_class())
        for name, value in config.environment.items():
            os.environ[name] = value.reveal() if isinstance(value, Secret) else value
        self.handler: Handler = load_handler(config.handler, config.init)
        self.loop = asyncio.new_event_loop()
        asyncio.set_event_loop(self.loop)
        try:
            self._prepare()
        except BaseException:
            self.close()
            raise

    def _prepare(self) -> None:
        if self.handler.init is None:
            return
        try:
            self.finish(self.handler.init(self.context))
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            name = self.config.init or "init_context"
            raise UsageError(f"{name} of {self.handler.name} failed: {type(error).__name__}: {error}") from error

    def finish(self, result: Any) -> Any:
        """Return the result of a call; one that must be awaited is awaited. Only while the loop does not run."""
        return self.loop.run_until_complete(result) if inspect.isawaitable(result) else result

    def signal(self, callback_type: str) -> None:
        """Call the user's `drain` or `termination` callback. An error is logged and not raised."""
        try:
            self.finish(self.platform.on_signal(callback_type))
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # noqa: BLE001 (sys.exit in a callback must not end the worker either)
            self.logger.error_with("The callback failed", callback=callback_type, error=repr(error))

    def close(self) -> None:
        """Cancel what the handler has left running, and close the loop. May be repeated."""
        if self.loop.is_closed():
            return
        tasks = asyncio.all_tasks(self.loop)
        for task in tasks:
            task.cancel()
        if tasks:
            self.loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        self.loop.run_until_complete(self.loop.shutdown_asyncgens())
        asyncio.set_event_loop(None)
        self.loop.close()
