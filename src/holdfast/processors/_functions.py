"""The user's functions by name. They are trusted code, imported from Python's module path, never from data."""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable
from typing import Annotated, Any

from pydantic import AfterValidator, WithJsonSchema
from pydantic_core import PydanticCustomError

from holdfast.config.units import VALUE_ERROR
from holdfast.errors import UsageError

_PATTERN = r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*:[A-Za-z_]\w*"


def _check(text: str) -> str:
    if not re.fullmatch(_PATTERN, text):
        raise PydanticCustomError(VALUE_ERROR, "must be module:name, as in my_package.my_module:my_function")
    return text


FunctionName = Annotated[str, AfterValidator(_check), WithJsonSchema({"type": "string", "pattern": f"^{_PATTERN}$"})]


def imported(function_name: FunctionName) -> Callable[..., Any]:
    """The function named `module:name`. Raises `UsageError` if it does not exist."""
    module, _, name = function_name.partition(":")
    try:
        function = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise UsageError(f"the function {function_name} cannot be imported: {error}") from error
    if not callable(function):
        raise UsageError(f"{function_name} is not a function")
    return function  # type: ignore[no-any-return]
