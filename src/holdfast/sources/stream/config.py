"""Settings of the source `stream`."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from holdfast.config import Duration, Options
from holdfast.config.units import VALUE_ERROR
from holdfast.flow.shards import Seek
from holdfast.flow.upload_policy import Upload


class StreamConfig(Options):
    """A stream in a folder of this host; `holdfast stream create` makes one. All nodes run on that host."""

    name: str = Field(description="Name of the stream.", pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$")
    folder: str | None = Field(
        None,
        description="Folder of streams; `HOLDFAST_STREAMS` of the environment or `~/.local/share/holdfast/streams` "
        "unless given.",
    )
    start: Literal["earliest", "latest", "time"] = Field(
        "earliest", description="Where a shard begins when the pipeline starts for the first time."
    )
    start_time: datetime | None = Field(
        None, description="With `start: time`: the first record at or after this time; UTC unless it names an offset."
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

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if (self.start == "time") != (self.start_time is not None):
            raise PydanticCustomError(VALUE_ERROR, "start_time belongs to `start: time`; give both or none")
        return self

    def streams(self) -> Path:
        """The folder of streams."""
        from holdfast.sources.stream.stream import default_folder

        return default_folder() if self.folder is None else Path(self.folder)

    def seek(self) -> Seek:
        """Where a shard begins."""
        if self.start != "time":
            return self.start
        assert self.start_time is not None
        time = self.start_time if self.start_time.tzinfo else self.start_time.replace(tzinfo=UTC)
        return int(time.timestamp() * 1000)
