"""Settings of the source `stream`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from holdfast.config import Duration
from holdfast.config.options import StartOptions
from holdfast.flow.upload_policy import Upload


class StreamConfig(StartOptions):
    """A stream in a folder of this host; `holdfast stream create` makes one. All nodes run on that host."""

    name: str = Field(description="Name of the stream.", pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$")
    folder: str | None = Field(
        None,
        description="Folder of streams; `HOLDFAST_STREAMS` of the environment or `~/.local/share/holdfast/streams` "
        "unless given.",
    )
    on_loss: Literal["halt", "record"] = Field(
        "halt",
        description="What happens when retention deleted records before they were read: the partition halts, or the "
        "gap is recorded in the store and the manifest and reading continues. Both raise an alert.",
    )
    poll_interval: Annotated[Duration, Field(gt=0)] = Field(
        "1s", validate_default=True, description="How often the ends of the shards are checked."
    )
    upload: Upload = Field(default_factory=Upload, description="When records become files.")

    def streams(self) -> Path:
        """The folder of streams."""
        from holdfast.sources.stream.stream import default_folder

        return default_folder() if self.folder is None else Path(self.folder)
