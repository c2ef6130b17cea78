"""What every group of settings is made from."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import ClassVar, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from holdfast.config.units import VALUE_ERROR


class Options(BaseModel):
    """Base class of every group of settings, also of a plugin's `Config`: unknown keys are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)
    EXAMPLE: ClassVar[str] = ""
    """Shown when a single value is written instead of this group."""


class AddedLater:
    """Marks a setting that earlier versions did not have: at its default, it is left out of a generation's digest."""


class StartOptions(Options):
    """Where the shards of a stream begin when a pipeline starts for the first time."""

    start: Literal["earliest", "latest", "time"] = Field(
        "earliest", description="Where a shard begins when the pipeline starts for the first time."
    )
    start_time: datetime | None = Field(
        None, description="With `start: time`: the first record at or after this time; UTC unless it names an offset."
    )

    @model_validator(mode="after")
    def _start_time_is_given_for_a_time(self) -> Self:
        if (self.start == "time") != (self.start_time is not None):
            raise PydanticCustomError(VALUE_ERROR, "start_time belongs to `start: time`; give both or none")
        return self

    def seek(self) -> Literal["earliest", "latest"] | int:
        """Where a shard begins, as `ShardedStream.seek` takes it: a time is in milliseconds since 1970."""
        if self.start != "time":
            return self.start
        assert self.start_time is not None
        time = self.start_time if self.start_time.tzinfo else self.start_time.replace(tzinfo=UTC)
        return int(time.timestamp() * 1000)
