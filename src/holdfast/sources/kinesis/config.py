"""Settings of the source `kinesis`."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from holdfast.config import Duration
from holdfast.config.aws import AwsRoleOptions
from holdfast.config.options import StartOptions


class KinesisConfig(AwsRoleOptions, StartOptions):
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
