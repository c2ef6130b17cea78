"""Settings of the source `kafka`."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, model_validator
from pydantic_core import PydanticCustomError

from holdfast.config import ByteSize, Count, Duration, Options, PositiveCount, Secret
from holdfast.config.units import VALUE_ERROR
from holdfast.flow.upload_policy import UploadPolicy

Start = Literal["earliest", "latest", "offset", "time", "group"]


def _checked_pattern(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise PydanticCustomError(VALUE_ERROR, f"is not a regular expression: {error}") from None
    return text


Pattern = Annotated[str, AfterValidator(_checked_pattern)]


class Security(Options):
    """How to connect to the brokers. Certificates and keys are PEM files."""

    protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = Field(
        "PLAINTEXT", description="Protocol of the brokers' listener."
    )
    sasl_mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] | None = Field(
        None, description="How this client authenticates, for the SASL protocols."
    )
    username: Secret | None = Field(None, description="User for SASL.")
    password: Secret | None = Field(None, description="Password for SASL.")
    ca_file: str | None = Field(
        None, description="CA certificates that sign the brokers' certificates; the system's unless given."
    )
    certificate_file: str | None = Field(None, description="This client's certificate, for mutual TLS.")
    key_file: str | None = Field(None, description="Private key of this client, without a password.")


class Upload(Options):
    """When the records of a Kafka partition become files. Each partition is treated on its own."""

    max_bytes: Annotated[ByteSize, Field(gt=0)] = Field(
        "256MiB", validate_default=True, description="Bytes of keys and values, uncompressed, that make a batch."
    )
    max_records: PositiveCount | None = Field(None, description="Records that make a batch; no limit unless given.")
    max_age: Annotated[Duration, Field(gt=0)] = Field(
        "5m", validate_default=True, description="A record is in a visible file after about this time at most."
    )
    every: Annotated[Duration, Field(gt=0)] | None = Field(
        None, description="Files also end at every multiple of this time on the clock, for example `5m`."
    )

    def policy(self) -> UploadPolicy:
        """The same settings as an `UploadPolicy`."""
        return UploadPolicy(self.max_bytes, self.max_records, self.max_age, self.every)


class TopicUpload(Upload):
    """An upload policy for some topics."""

    match: Pattern = Field(description="Regular expression that matches the whole name of a topic.")


class KafkaConfig(Options):
    """Topics of one Kafka cluster."""

    bootstrap_servers: str = Field(description="Brokers to connect to first: `host:port`, several separated by commas.")
    topics: tuple[str, ...] = Field((), description="Names of topics.")
    topics_pattern: Pattern | None = Field(None, description="Regular expression that matches whole names of topics.")
    exclude: Pattern | None = Field(
        None, description="Regular expression; topics whose whole name matches are left out."
    )
    start: Start = Field(
        "earliest",
        description="Where a partition that was never read begins when the pipeline starts for the first time; "
        "topics and partitions that are found later begin at the earliest record.",
    )
    start_offset: Count | None = Field(None, description="With `start: offset`: the first offset to read.")
    start_time: datetime | None = Field(
        None, description="With `start: time`: the first record at or after this time; UTC unless it names an offset."
    )
    start_group: str | None = Field(
        None, description="With `start: group`: a consumer group whose committed offsets are used."
    )
    discovery_interval: Annotated[Duration, Field(gt=0)] = Field(
        "30s", validate_default=True, description="How often new topics and partitions are looked for."
    )
    poll_interval: Annotated[Duration, Field(gt=0)] = Field(
        "1s", validate_default=True, description="How often the ends of the partitions are checked."
    )
    isolation: Literal["read_committed", "read_uncommitted"] = Field(
        "read_committed", description="Whether records of open and aborted transactions are left out."
    )
    on_loss: Literal["halt", "record"] = Field(
        "halt",
        description="What happens when the brokers deleted records before they were read: the partition halts, or the "
        "gap is recorded in the store and the manifest and reading continues. Both raise an alert.",
    )
    upload: Upload = Field(default_factory=Upload, description="When records become files.")
    uploads: tuple[TopicUpload, ...] = Field((), description="Other policies for some topics; the first match counts.")
    commit_offsets: bool = Field(
        True, description="Also commit published offsets to a Kafka consumer group, so that lag tools see them."
    )
    group: str | None = Field(
        None, description="Consumer group for `commit_offsets`; `holdfast-` and the pipeline's name unless given."
    )
    headers: bool = Field(True, description="Read the headers of records.")
    security: Security = Field(default_factory=Security, description="TLS and SASL.")
    client_properties: dict[str, str | Secret] = Field(
        default_factory=dict, description="Further properties of librdkafka, which reads topics and offsets."
    )
    spark_properties: dict[str, str | Secret] = Field(
        default_factory=dict,
        description="Further properties of the Java client in Spark, without the prefix `kafka.`.",
    )

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if not self.topics and self.topics_pattern is None:
            raise PydanticCustomError(VALUE_ERROR, "needs topics or a topics_pattern")
        needed = {"offset": self.start_offset, "time": self.start_time, "group": self.start_group}
        for start, value in needed.items():
            if (self.start == start) != (value is not None):
                raise PydanticCustomError(VALUE_ERROR, f"start_{start} belongs to `start: {start}`; give both or none")
        return self

    def policy_of(self, topic: str) -> UploadPolicy:
        """The upload policy of a topic."""
        return next(
            (upload.policy() for upload in self.uploads if re.fullmatch(upload.match, topic)), self.upload.policy()
        )
