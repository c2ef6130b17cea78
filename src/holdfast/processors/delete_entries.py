"""The processor `delete_entries`: removes columns."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from holdfast.config import Options
from holdfast.flow.processor import Processor
from holdfast.processors._expressions import refuse_ours, require
from holdfast.registry import Plugin

NAME = "delete_entries"


class DeleteConfig(Options):
    """The columns to remove."""

    with_keys: tuple[str, ...] = Field(min_length=1, description="Names of the columns; they must exist.")


class DeleteEntries(Processor):
    name = NAME
    keeps_rows = True
    touches_faults = False

    def __init__(self, config: DeleteConfig) -> None:
        self._keys = config.with_keys

    def apply(self, frame: Any) -> Any:
        refuse_ours(self._keys, NAME)
        require(frame, self._keys, NAME)
        return frame.drop(*self._keys)


PLUGIN = Plugin(NAME, DeleteConfig, DeleteEntries, "Remove columns.")
