"""Leases in a DynamoDB table, for fleets without a database. Settings and plugin.

Keys of table and index are those of Data Prepper's source coordination, so that its table definition and its policy can
be used as they are. One region only: in a global table the last writer wins, so fencing would not work.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from holdfast.buckets.root import Root, S3Reach, check_together
from holdfast.config import Options
from holdfast.config.plugins import PLAIN_ERROR
from holdfast.config.units import Duration, PositiveCount
from holdfast.leases.token_floor import REST
from holdfast.registry import Plugin, needing

if TYPE_CHECKING:
    from holdfast.stores.dynamodb.store import DynamodbStore

TABLE_NAME = r"^[A-Za-z0-9_.-]{3,255}$"
ENDPOINT = r"^https?://[^@\s]+$"


class SpillConfig(Options):
    """Storage for receipts that are too large for a row."""

    root: Root = Field(
        description="Folder that all nodes share, which must exist, or `s3://bucket/prefix`. The receipts are below "
        "`_holdfast/receipts/`, so that it may also be the root of a sink. It must be the same on all nodes."
    )
    s3: S3Reach | None = Field(None, description="How to reach S3, for a root there.")

    @model_validator(mode="after")
    def _s3_is_for_roots_on_s3(self) -> Self:
        check_together(self.root, self.s3)
        return self


class DynamodbConfig(BaseModel):
    """The table, the role, and its capacity.

    Credentials come from the usual chain: environment, profile, role of the machine.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    table_name: str = Field(pattern=TABLE_NAME, description="The table of leases. Several fleets may share it.")
    region: str = Field(min_length=1, description="The region of the table.")
    profile: str | None = Field(default=None, description="Profile of the shared configuration files.")
    sts_role_arn: str | None = Field(default=None, description="A role to assume for access to the table.")
    sts_external_id: str | None = Field(default=None, description="The external id that this role requires.")
    endpoint_url: str | None = Field(
        default=None, pattern=ENDPOINT, description="Endpoint of DynamoDB; by default that of the region."
    )
    skip_table_creation: bool = Field(
        default=False,
        description="Never create the table or turn on its TTL; refuse to start if they are not as needed.",
    )
    billing: Literal["provisioned", "on_demand"] = Field(
        default="provisioned", description="Billing mode of a table that holdfast creates."
    )
    provisioned_write_capacity_units: PositiveCount = Field(
        default=10, description="Write capacity of a table that holdfast creates, and of its index."
    )
    provisioned_read_capacity_units: PositiveCount = Field(
        default=10, description="Read capacity of a table that holdfast creates, and of its index."
    )
    ttl: Duration | None = Field(
        default=None,
        description="How long after its last write DynamoDB deletes a COMPLETED row; at least a day. Never if left "
        "out, and never while a partition is unfinished.",
    )

    spill: SpillConfig | None = Field(
        default=None,
        description="Where receipts over 100 KB go, with their hash in the row. Without it all receipts are in the "
        "row, and those that do not fit are refused.",
    )

    @model_validator(mode="after")
    def _settings_fit_together(self) -> Self:
        if self.ttl is not None and self.ttl < REST:
            raise PydanticCustomError(
                PLAIN_ERROR, "ttl must be at least P1D: the fence of a deleted row needs that long"
            )
        if self.sts_external_id is not None and self.sts_role_arn is None:
            raise PydanticCustomError(PLAIN_ERROR, "sts_external_id needs sts_role_arn")
        capacity = {"provisioned_write_capacity_units", "provisioned_read_capacity_units"} & self.model_fields_set
        if self.billing == "on_demand" and capacity:
            raise PydanticCustomError(PLAIN_ERROR, f"billing on_demand has no {', '.join(sorted(capacity))}")
        return self


def build(config: DynamodbConfig) -> DynamodbStore:
    """The store that the settings describe, not yet opened."""
    with needing("the dynamodb store", "boto3", "dynamodb"):
        from holdfast.stores.dynamodb.store import DynamodbStore
    return DynamodbStore(config)


PLUGIN = Plugin(
    name="dynamodb",
    config=DynamodbConfig,
    build=build,
    summary="Leases in a DynamoDB table, for fleets on AWS.",
)
