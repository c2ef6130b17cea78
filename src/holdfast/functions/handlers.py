"""The user's handler, from its name to something that can be called."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from holdfast.errors import UsageError
from holdfast.functions.nuclio import provide_nuclio

DEFAULT_NAME = "handler"
INIT_NAME = "init_context"


@dataclass(frozen=True, slots=True)
class Handler:
    """A handler that was imported."""

    name: str
    call: Callable[..., Any]
    init: Callable[..., Any] | None
    is_async: bool


def load_handler(name: str, init: str | None = None) -> Handler:
    """Import the handler and what is called before it; the user's modules run. Raises `UsageError` if it cannot be.

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
