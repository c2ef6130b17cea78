"""The processor `rename_keys`: columns under other names."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from holdfast.config import Options
from holdfast.errors import Refused
from holdfast.flow.processor import Processor
from holdfast.processors._steps import refuse_ours, require
from holdfast.registry import Plugin

NAME = "rename_keys"


class Renaming(Options):
    """One column."""

    from_key: str = Field(min_length=1, description="The column.")
    to_key: str = Field(min_length=1, description="Its new name.")
    overwrite_if_to_key_exists: bool = Field(
        False, description="Take the place of a column that has the new name already; else that is an error."
    )


class RenameConfig(Options):
    """What gets which name."""

    entries: tuple[Renaming, ...] = Field(min_length=1, description="Columns and their new names, in order.")


class RenameKeys(Processor):
    name = NAME
    keeps_rows = True
    touches_faults = False

    def __init__(self, config: RenameConfig) -> None:
        self._entries = config.entries

    def apply(self, frame: Any) -> Any:
        for one in self._entries:
            require(frame, [one.from_key], NAME)
            refuse_ours([one.from_key, one.to_key], NAME)
            if one.to_key == one.from_key:
                continue
            if one.to_key in frame.columns:
                if not one.overwrite_if_to_key_exists:
                    raise Refused(
                        f"{NAME}: there is a column {one.to_key!r} already; `overwrite_if_to_key_exists: true` "
                        "takes its place"
                    )
                frame = frame.drop(one.to_key)
            frame = frame.withColumnRenamed(one.from_key, one.to_key)
        return frame


PLUGIN = Plugin(NAME, RenameConfig, RenameKeys, "Give columns other names.")
