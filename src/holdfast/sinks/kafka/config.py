"""Settings of the sink `kafka`."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from holdfast.buckets.root import Root, S3Options, check_together, root_identity
from holdfast.config import ByteSize, Options
from holdfast.config.kafka_client import Brokers, Security
from holdfast.config.secrets import Secret


class KafkaSinkConfig(Options):
    """Messages of one topic."""

    bootstrap_servers: Brokers = Field(
        description="Brokers to connect to first: `host:port`, several separated by commas."
    )
    topic: str = Field(min_length=1, pattern=r"^[A-Za-z0-9._-]+$", description="The topic. It must exist.")
    root: Root = Field(
        description="Folder or s3://bucket/prefix where rows wait until their commit is sent, and where dead letters "
        "are kept. It belongs to this sink alone."
    )
    s3: S3Options | None = Field(None, description="How to reach S3, for a root that begins with s3://.")
    delivery: Literal["exactly_once", "at_least_once"] = Field(
        "exactly_once",
        description="exactly_once: each commit is one transaction; consumers need isolation.level=read_committed. "
        "at_least_once: tasks send rows at once, and some twice when a batch is tried again.",
    )
    value: str | None = Field(
        None,
        description="Column with the message's value, text or bytes. Unless given, the column `value`, or, without "
        "one, all columns as a JSON object.",
    )
    key: str | None = Field(
        None,
        description="Column with the key, text or bytes. Unless given, the column `key`, if there is one.",
    )
    headers: str | None = Field(
        None,
        description="Column with headers, as the source kafka has them: a list of structs of `key` and `value`. Unless "
        "given, the column `headers`, if there is one.",
    )
    partition: str | None = Field(
        None, description="Column with the number of the topic's partition. Unless given, the key decides."
    )
    max_message_bytes: Annotated[ByteSize, Field(gt=0)] = Field(
        "1MB",
        validate_default=True,
        description="Maximum size of a message, at most `max.message.bytes` of the topic. Larger messages become "
        "dead letters.",
    )
    security: Security = Field(default_factory=Security, description="TLS and SASL.")
    client_properties: dict[str, str | Secret] = Field(
        default_factory=dict, description="Additional properties of librdkafka, such as compression.type."
    )

    def owned_roots(self) -> dict[tuple[str, ...], str]:
        return {("root",): root_identity(self.root, self.s3)}

    @model_validator(mode="after")
    def _belong_together(self) -> Self:
        check_together(self.root, self.s3)
        return self
