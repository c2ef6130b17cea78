"""The processor `rename_keys`: renames columns."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from holdfast.config import Options
from holdfast.errors import Refused
from holdfast.flow.processor import Processor
from holdfast.processors._expressions import refuse_ours, require
from holdfast.registry import Plugin

NAME = "rename_keys"


class Renaming(Options):
    """A column and its new name."""

    from_key: str = Field(min_length=1, description="Name of the column.")
    to_key: str = Field(min_length=1, description="New name of the column.")
    overwrite_if_to_key_exists: bool = Field(
        False, description="Replace a column that has the new name already. By default that is an error."
    )


class RenameConfig(Options):
    """The columns to rename."""

    entries: tuple[Renaming, ...] = Field(min_length=1, description="Columns and their new names, in order.")


class RenameKeys(Processor):
    name = NAME
    keeps_rows = True
    touches_faults = False

    def __init__(self, config: RenameConfig) -> None:
        self._entries = config.entries

    def apply(self, frame: Any) -> Any:
        for entry in self._entries:
            require(frame, [entry.from_key], NAME)
            refuse_ours([entry.from_key, entry.to_key], NAME)
            if entry.to_key == entry.from_key:
                continue
            if entry.to_key in frame.columns:
                if not entry.overwrite_if_to_key_exists:
                    raise Refused(
                        f"{NAME}: there is a column {entry.to_key!r} already; `overwrite_if_to_key_exists: true` "
                        "replaces it"
                    )
                frame = frame.drop(entry.to_key)
            frame = frame.withColumnRenamed(entry.from_key, entry.to_key)
        return frame


PLUGIN = Plugin(NAME, RenameConfig, RenameKeys, "Rename columns.")
