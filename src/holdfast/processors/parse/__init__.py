"""The processor `parse`: partition names, and optionally columns, from messages."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.processors.parse.config import ParseConfig
from holdfast.registry import Plugin

if TYPE_CHECKING:
    from holdfast.processors.parse.step import Parse


def build(config: ParseConfig) -> Parse:
    """The processor. Raises `UsageError` for files, functions and expressions that cannot be used."""
    from holdfast.processors.parse.step import built

    return built(config)


PLUGIN = Plugin("parse", ParseConfig, build, "Partition names, and optionally columns, from messages.")
