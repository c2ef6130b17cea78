"""A function in this process: loading its handler by name, its context and its event loop, and single calls of it."""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import inspect
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from holdfast.config import Secret
from holdfast.errors import UsageError
from holdfast.flow.shards import StreamRecord
from holdfast.functions.contexts import Acknowledge, FunctionContext, FunctionLogger, FunctionPlatform, WriteLog
from holdfast.functions.events import EventOrigin, FunctionEvent, QualifiedOffset, TriggerInfo
from holdfast.functions.nuclio import event_class, provide_nuclio, response_class
from holdfast.functions.outcomes import batch_failures, refusal, wants_no_ack
from holdfast.functions.settings import FunctionConfig
from holdfast.functions.watchdog import CallWatchdog

DEFAULT_NAME = "handler"
INIT_NAME = "init_context"


class Function:
    """A function that is ready to be called. It belongs to the thread that made it; close it there.

    The event loop is the thread's current one and does not run while a handler that is not async is called, so that
    such a handler may use `run_until_complete`. Raises `UsageError` if the handler cannot be imported, or if its init
    function fails.
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
        """Return the result of a call; one that must be awaited is awaited.

        Call it only while the loop does not run.
        """
        return self.loop.run_until_complete(result) if inspect.isawaitable(result) else result

    def signal(self, callback_type: str) -> None:
        """Call the user's `drain` or `termination` callback. An error is logged and not raised."""
        try:
            self.finish(self.platform.on_signal(callback_type))
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


# --- the user's handler ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Handler:
    """A handler that was imported."""

    name: str
    call: Callable[..., Any]
    init: Callable[..., Any] | None
    is_async: bool


def load_handler(name: str, init: str | None = None) -> Handler:
    """Import the handler and its init function; the user's modules run. Raises `UsageError` if that fails.

    `name` is `module:function`, `file.py` or `file.py:function`.
    """
    provide_nuclio()
    module, function = _imported(name)
    prepare: Callable[..., Any] | None = getattr(module, INIT_NAME, None) if init is None else _imported(init)[1]
    target = function if inspect.isroutine(function) else type(function).__call__
    return Handler(name, function, prepare, inspect.iscoroutinefunction(target))


def _imported(name: str) -> tuple[ModuleType, Callable[..., Any]]:
    source, _, function_name = name.partition(":")
    module = _module_of_file(Path(source)) if source.endswith(".py") else _module(source)
    function = getattr(module, function_name or DEFAULT_NAME, None)
    if not callable(function):
        raise UsageError(f"{source} has no function {function_name or DEFAULT_NAME!r}")
    return module, function


def _module(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except Exception as error:
        raise _cannot_import(name, error) from error


def _module_of_file(path: Path) -> ModuleType:
    path = path.resolve()
    loaded = sys.modules.get(path.stem)
    if loaded is not None and getattr(loaded, "__file__", None) == str(path):
        return loaded
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None or not path.is_file():
        raise UsageError(f"the file {path} does not exist")
    # Modules beside the file can be imported, as if Python had been started with it.
    if str(path.parent) not in sys.path:
        sys.path.insert(0, str(path.parent))
    module = importlib.util.module_from_spec(spec)
    replaced = sys.modules.get(path.stem)
    sys.modules[path.stem] = module
    try:
        spec.loader.exec_module(module)
    except BaseException as error:
        del sys.modules[path.stem]
        if isinstance(error, KeyboardInterrupt):
            raise
        raise _cannot_import(str(path), error) from error
    finally:
        if replaced is not None:
            # A file must not hide a module of the same name that others use, such as json.
            sys.modules[path.stem] = replaced
    return module


def _cannot_import(name: str, error: BaseException) -> UsageError:
    hint = ""
    if isinstance(error, ModuleNotFoundError) and error.name == "nuclio_sdk":
        hint = "; install it with pip install 'holdfast[nuclio]'"
    return UsageError(f"{name} cannot be imported: {type(error).__name__}: {error}{hint}")


# --- single calls, for the command line ------------------------------------------------------------------------------


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
