"""The processor `python`: a function of the user's, which takes and returns a DataFrame."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pydantic import Field

from holdfast.config import Options
from holdfast.errors import Refused
from holdfast.flow.processor import Processor
from holdfast.flow.source import SYSTEM_COLUMNS
from holdfast.processors._functions import FunctionName, imported
from holdfast.registry import Plugin


class PythonConfig(Options):
    """The function."""

    function: FunctionName = Field(description="The function as module:name; it takes a DataFrame and returns one.")


class PythonFunction(Processor):
    """Calls a function, which must keep the system columns, and the rows whose `_fault` is not null."""

    def __init__(self, function_name: str, function: Callable[[Any], Any]) -> None:
        self._function_name = function_name
        self._function = function

    @property
    def name(self) -> str:
        return f"python {self._function_name}"

    def apply(self, frame: Any) -> Any:
        from pyspark.sql import DataFrame

        result = self._function(frame)
        if not isinstance(result, DataFrame):
            raise Refused(f"{self._function_name} returned {type(result).__name__}, not a DataFrame")
        dropped = [name for name in SYSTEM_COLUMNS if name not in result.columns]
        if dropped:
            raise Refused(
                f"{self._function_name} dropped {', '.join(dropped)}; it must keep {', '.join(SYSTEM_COLUMNS)}"
            )
        return result


def build(config: PythonConfig) -> PythonFunction:
    """The processor, with its function imported. Raises `UsageError` if there is no such function."""
    return PythonFunction(config.function, imported(config.function))


PLUGIN = Plugin("python", PythonConfig, build, "Apply a Python function to the DataFrame.")
