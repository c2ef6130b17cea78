"""The sink `function`: calls a Python handler for each record of a stream."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.registry import Plugin, Registry
from holdfast.sinks.function.config import FunctionSinkConfig

if TYPE_CHECKING:
    from holdfast.sinks.function.sink import FunctionSink


def build(name: str, config: FunctionSinkConfig, formats: Registry) -> FunctionSink:  # noqa: ARG001 - has no formats
    """The sink of that name; the handler is loaded by the workers."""
    from holdfast.sinks.function.sink import FunctionSink

    return FunctionSink(name, config)


PLUGIN = Plugin(
    "function", FunctionSinkConfig, build, "A Python handler that is called for each record, in order per shard."
)
