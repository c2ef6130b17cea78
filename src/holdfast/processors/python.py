"""The processor `python`: a function of the user's, from DataFrame to DataFrame.

The function is trusted code. It is imported by its name from where Python finds modules, never from data.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable
from typing import Annotated, Any

from pydantic import AfterValidator, Field, WithJsonSchema

from holdfast.config import Options
from holdfast.errors import Refused, UsageError
from holdfast.flow.processor import Processor
from holdfast.flow.source import SYSTEM_COLUMNS
from holdfast.registry import Plugin

_PLACE = r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*:[A-Za-z_]\w*"


def _check_place(text: str) -> str:
    if not re.fullmatch(_PLACE, text):
        raise ValueError("must be module:name, as in my_package.my_module:clean")
    return text


Place = Annotated[str, AfterValidator(_check_place), WithJsonSchema({"type": "string", "pattern": f"^{_PLACE}$"})]


class PythonConfig(Options):
    """Which function."""

    function: Place = Field(description="The function as module:name; it takes a DataFrame and returns one.")


class PythonFunction(Processor):
    """A function that must keep the system columns, and the rows whose `_fault` is not null."""

    def __init__(self, place: str, function: Callable[[Any], Any]) -> None:
        self._place = place
        self._function = function

    @property
    def name(self) -> str:
        return f"python {self._place}"

    def apply(self, frame: Any) -> Any:
        from pyspark.sql import DataFrame

        result = self._function(frame)
        if not isinstance(result, DataFrame):
            raise Refused(f"{self._place} returned {type(result).__name__}, not a DataFrame")
        dropped = [name for name in SYSTEM_COLUMNS if name not in result.columns]
        if dropped:
            raise Refused(f"{self._place} dropped {', '.join(dropped)}; it must keep {', '.join(SYSTEM_COLUMNS)}")
        return result


def build(config: PythonConfig) -> PythonFunction:
    """The function, imported. Raises `UsageError` when it is not there."""
    module, _, name = config.function.partition(":")
    try:
        function = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise UsageError(f"the function {config.function} cannot be imported: {error}") from error
    if not callable(function):
        raise UsageError(f"{config.function} is no function")
    return PythonFunction(config.function, function)


PLUGIN = Plugin("python", PythonConfig, build, "A Python function from DataFrame to DataFrame.")
