"""Settings that all Kafka clients have, and the properties of librdkafka that follow from them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Literal, Protocol

from pydantic import AfterValidator, Field
from pydantic_core import PydanticCustomError

from holdfast.config.options import Options
from holdfast.config.secrets import Secret
from holdfast.config.units import VALUE_ERROR, ByteSize

SMALLEST_LETTER = 256 << 10
"""Bytes into which a letter fits without the rest of a large record: 64 KiB of it, and 64 KiB of key and headers."""

_BROKER = re.compile(
    r"(?:(?:PLAINTEXT|SSL|SASL_PLAINTEXT|SASL_SSL)://)?(?:[^\s:/,\[\]]+|\[[0-9A-Fa-f:.]+\]):\d{1,5}", re.IGNORECASE
)


def _checked_brokers(text: str) -> str:
    for broker in text.split(","):
        if not _BROKER.fullmatch(broker.strip()):
            # Spark's connector needs the port, and says so only when it reads.
            raise PydanticCustomError(VALUE_ERROR, "must be host:port, as in broker1:9092,broker2:9092")
    return text


Brokers = Annotated[str, AfterValidator(_checked_brokers)]


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


class ClientSettings(Protocol):
    """What settings of a client have in common."""

    @property
    def bootstrap_servers(self) -> str: ...
    @property
    def security(self) -> Security: ...
    @property
    def client_properties(self) -> Mapping[str, str | Secret]: ...


class LetterTopicOptions(Options):
    """A Kafka topic that gets a copy of each dead letter, with its reason in headers."""

    bootstrap_servers: Brokers = Field(
        description="Brokers to connect to first: `host:port`, several separated by commas."
    )
    topic: str = Field(
        min_length=1,
        pattern=r"^[A-Za-z0-9._-]+$",
        description="The topic. It must exist, and must not be compacted. Several sinks and pipelines may share it.",
    )
    max_message_bytes: Annotated[ByteSize, Field(ge=SMALLEST_LETTER)] = Field(
        "1MB",
        validate_default=True,
        description="Maximum size of a message, at most `max.message.bytes` of the topic. Of a larger record the topic "
        "gets the first 64 KiB, with the header `holdfast.cut`; the letter in the files is whole.",
    )
    security: Security = Field(default_factory=Security, description="TLS and SASL.")
    client_properties: dict[str, str | Secret] = Field(
        default_factory=dict, description="Additional properties of librdkafka."
    )


def share_brokers(bootstrap_servers: str, others: str) -> bool:
    """Return whether both lists name the same broker."""
    first, second = ({server.strip() for server in text.split(",")} for text in (bootstrap_servers, others))
    return not first.isdisjoint(second)


def client_properties(config: ClientSettings) -> dict[str, str]:
    """Return the properties for librdkafka."""
    security = config.security
    properties = {
        "bootstrap.servers": config.bootstrap_servers,
        "security.protocol": security.protocol,
        "sasl.mechanism": security.sasl_mechanism,
        "sasl.username": plain(security.username),
        "sasl.password": plain(security.password),
        "ssl.ca.location": security.ca_file,
        "ssl.certificate.location": security.certificate_file,
        "ssl.key.location": security.key_file,
        # holdfast reports a broker that is down once; librdkafka would log it to stderr every second.
        "log_level": "0",
        "socket.connection.setup.timeout.ms": "10000",
    }
    return {name: value for name, value in properties.items() if value is not None} | revealed(config.client_properties)


def plain(secret: Secret | None) -> str | None:
    """Return the text of a secret."""
    return None if secret is None else secret.reveal()


def revealed(given: Mapping[str, str | Secret]) -> dict[str, str]:
    """Return the properties with the text of those that are secrets."""
    return {name: value.reveal() if isinstance(value, Secret) else value for name, value in given.items()}
