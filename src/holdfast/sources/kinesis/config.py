"""Settings of the source `kinesis`."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from holdfast.config import Duration
from holdfast.config.aws import AwsRoleOptions
from holdfast.config.units import VALUE_ERROR
from holdfast.flow.shards import Seek


class KinesisConfig(AwsRoleOptions):
    """A data stream of Amazon Kinesis.

    Credentials come from the usual chain: environment, profile, role of the machine.
    """

    only_for_functions: ClassVar[bool] = True
    stream: str = Field(description="Name of the stream.", pattern=r"^[a-zA-Z0-9_.-]{1,128}$")
    region: str = Field(min_length=1, description="The region of the stream.")
    endpoint_url: str | None = Field(
        None, pattern=r"^https?://[^@\s]+$", description="Endpoint of Kinesis; that of the region unless given."
    )
    start: Literal["earliest", "latest", "time"] = Field(
        "earliest",
        description="Where a shard begins when the pipeline starts for the first time; shards that are found later, "
        "because others were split or merged, begin at their first record.",
    )
    start_time: datetime | None = Field(
        None, description="With `start: time`: the first record at or after this time; UTC unless it names an offset."
    )
    on_loss: Literal["halt", "record"] = Field(
        "halt",
        description="What happens when retention deleted records before they were read: the shard halts, or reading "
        "continues. Both raise an alert.",
    )
    read_interval: Annotated[Duration, Field(ge=0.2)] = Field(
        "250ms",
        validate_default=True,
        description="Time between two reads of a shard, at least 200ms: Kinesis allows five per second and shard, for "
        "all readers together.",
    )
    discovery_interval: Annotated[Duration, Field(gt=0)] = Field(
        "10s", validate_default=True, description="How often new shards are looked for."
    )

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if (self.start == "time") != (self.start_time is not None):
            raise PydanticCustomError(VALUE_ERROR, "start_time belongs to `start: time`; give both or none")
        return self

    def seek(self) -> Seek:
        """Where a shard begins."""
        if self.start != "time":
            return self.start
        assert self.start_time is not None
        time = self.start_time if self.start_time.tzinfo else self.start_time.replace(tzinfo=UTC)
        return int(time.timestamp() * 1000)
