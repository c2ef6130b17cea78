"""Settings of the source `kafka`, and the options of Spark's connector that follow from them."""

from __future__ import annotations

import re
from datetime import datetime
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, model_validator
from pydantic_core import PydanticCustomError

from holdfast.config import Count, Duration, Options, Secret
from holdfast.config.kafka_client import Brokers, Security, plain, revealed, share_brokers
from holdfast.config.units import VALUE_ERROR
from holdfast.flow.upload_policy import Upload, UploadPolicy

Start = Literal["earliest", "latest", "offset", "time", "group"]


def _checked_pattern(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        hint = "; write .* for any characters" if text.startswith("*") else ""
        raise PydanticCustomError(VALUE_ERROR, f"is not a regular expression: {error}{hint}") from None
    return text


def _checked_topic(name: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9._-]{1,249}", name):
        hint = "for several topics, write topics_pattern with a regular expression such as orders-.*"
        raise PydanticCustomError(VALUE_ERROR, f"is not the name of a topic; {hint}")
    return name


Pattern = Annotated[str, AfterValidator(_checked_pattern)]


class TopicUpload(Upload):
    """An upload policy for some topics."""

    match: Pattern = Field(description="Regular expression that matches the whole name of a topic.")


class KafkaConfig(Options):
    """Topics of one Kafka cluster."""

    bootstrap_servers: Brokers = Field(
        description="Brokers to connect to first: `host:port`, several separated by commas."
    )
    topics: tuple[Annotated[str, AfterValidator(_checked_topic)], ...] = Field((), description="Names of topics.")
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
        default_factory=dict, description="Additional properties of librdkafka, which reads topics and offsets."
    )
    spark_properties: dict[str, str | Secret] = Field(
        default_factory=dict,
        description="Additional properties of the Java client in Spark, without the prefix `kafka.`.",
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

    def is_wanted(self, topic: str) -> bool:
        """Whether a topic of that name is read."""
        if self.exclude is not None and re.fullmatch(self.exclude, topic):
            return False
        if topic in self.topics:
            return True
        # Topics that begin with two underscores are internal to Kafka, unless they are listed by name.
        by_pattern = self.topics_pattern is not None and re.fullmatch(self.topics_pattern, topic) is not None
        return by_pattern and not topic.startswith("__")

    def reads_topic(self, bootstrap_servers: str, topic: str) -> bool:
        return share_brokers(self.bootstrap_servers, bootstrap_servers) and self.is_wanted(topic)

    def policy_of(self, topic: str) -> UploadPolicy:
        """The upload policy of a topic."""
        return next(
            (upload.policy() for upload in self.uploads if re.fullmatch(upload.match, topic)), self.upload.policy()
        )


def spark_options(config: KafkaConfig) -> dict[str, str]:
    """Return the options for Spark's connector."""
    properties = {
        "bootstrap.servers": config.bootstrap_servers,
        "isolation.level": config.isolation,
        # With the defaults the broker works three times as much and reading is a third slower.
        "max.poll.records": "10000",
        "max.partition.fetch.bytes": "4194304",
        "fetch.max.bytes": "52428800",
        # Without this, each task waits half a second for more records at the end of the log.
        "fetch.max.wait.ms": "10",
        **_java_security(config.security),
        **revealed(config.spark_properties),
    }
    return {f"kafka.{name}": value for name, value in properties.items()}


def _java_security(security: Security) -> dict[str, str]:
    properties: dict[str, str] = {"security.protocol": security.protocol}
    if security.sasl_mechanism is not None:
        properties["sasl.mechanism"] = security.sasl_mechanism
        properties["sasl.jaas.config"] = _login(security)
    # Contents, not paths: executors on other machines do not have the files.
    if security.ca_file is not None:
        properties |= {"ssl.truststore.type": "PEM", "ssl.truststore.certificates": _text(security.ca_file)}
    if security.certificate_file is not None and security.key_file is not None:
        properties["ssl.keystore.type"] = "PEM"
        properties["ssl.keystore.certificate.chain"] = _text(security.certificate_file)
        properties["ssl.keystore.key"] = _text(security.key_file)
    return properties


def _login(security: Security) -> str:
    scram = (security.sasl_mechanism or "").startswith("SCRAM")
    module = "scram.ScramLoginModule" if scram else "plain.PlainLoginModule"
    user, password = _quoted(plain(security.username)), _quoted(plain(security.password))
    return f"org.apache.kafka.common.security.{module} required username={user} password={password};"


def _quoted(text: str | None) -> str:
    escaped = (text or "").replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _text(path: str) -> str:
    return Path(path).read_text(encoding="utf-8")
