"""Settings of the sink `files`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from holdfast.config import ByteSize, Options, PluginUse, PositiveCount, Uses


def _bare_name(value: Any) -> Any:
    """`parquet` is short for `parquet:` without settings."""
    return {value: None} if isinstance(value, str) else value


class FilesConfig(Options):
    """Where files go and how they look."""

    root: Path = Field(description="Folder for the files. It belongs to this sink of this pipeline alone.")
    format: Annotated[PluginUse, Uses("formats"), BeforeValidator(_bare_name)] = Field(
        {"parquet": None},
        validate_default=True,
        description="Format of the files: a format's name, and if wanted below it the format's settings.",
    )
    max_open_files: PositiveCount = Field(
        64, description="Files that one task has open at a time; beyond it the one used longest ago is closed."
    )
    max_file_bytes: Annotated[ByteSize, Field(gt=0)] | None = Field(
        None, description="A file that is larger is closed and another one begun; no limit unless given."
    )
