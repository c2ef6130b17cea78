"""Settings of `parse`: fields of messages."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema, model_validator
from pydantic_core import PydanticCustomError

from holdfast.config import AddedLater, Duration, LocalPath, Options, Secret
from holdfast.config.hosts import is_local
from holdfast.config.plugins import PLAIN_ERROR
from holdfast.config.units import VALUE_ERROR
from holdfast.processors.parse.time_patterns import NamePattern, TimePattern


def checked(check: Any) -> AfterValidator:
    """A validator that refuses text for which the check raises `ValueError`."""

    def validate(text: str) -> str:
        try:
            check(text)
        except (ValueError, re.error) as error:
            raise PydanticCustomError(VALUE_ERROR, str(error).replace("{", "{{")) from None
        return text

    return AfterValidator(validate)


def _check_expression(text: str) -> None:
    try:
        re.compile(text)
    except re.error as error:
        raise ValueError(f"is not a regular expression: {error}") from None


def _split_path(value: Any) -> Any:
    return tuple(value.split(".")) if isinstance(value, str) else value


def _check_path(path: tuple[str, ...]) -> tuple[str, ...]:
    if not path or not all(path):
        raise PydanticCustomError(VALUE_ERROR, "must be a field's name, or names with '.' between them")
    return path


Expression = Annotated[str, checked(_check_expression)]
NameTemplate = Annotated[str, checked(NamePattern)]
TimeFormat = Annotated[str, checked(TimePattern)]
FieldPath = Annotated[
    tuple[str, ...],
    BeforeValidator(_split_path),
    AfterValidator(_check_path),
    WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]}),
]
Unit = Literal["seconds", "millis", "micros", "nanos", "iso8601"]

_UNIT = "Unit of a number that counts from 1970, or iso8601 for text; text without a time zone is in `text_zone`."
_FORMAT = "Pattern of the text, such as `%d/%b/%Y:%H:%M:%S %z`, instead of a unit; names of months are English."
_FIELD = "Name of the field; `a.b.c` is the field c in b in a. Use a list of names if a name contains a dot."


class JsonField(Options):
    """A field of a message that is a JSON object."""

    field: FieldPath = Field(description=_FIELD)


class RegexGroup(Options):
    """A part of the message that a regular expression matches."""

    pattern: Expression = Field(
        description="Regular expression (RE2) that is searched for in the bytes of the message."
    )
    group: str | None = Field(
        None, description="The group `(?P<name>…)` that has the value; may be omitted if there is only one group."
    )

    @model_validator(mode="after")
    def _has_group(self) -> RegexGroup:
        compiled = re.compile(self.pattern)
        if len(compiled.groupindex) < compiled.groups:
            raise ValueError("every group of pattern needs a name: (?P<name>…), or (?:…) if its text is not used")
        if self.group is None and compiled.groups != 1:
            raise ValueError("pattern needs one group, as in (?P<time>[0-9]+); with several groups, set group")
        if self.group is not None and self.group not in compiled.groupindex:
            raise ValueError(f"pattern has no group {self.group!r}")
        return self

    @property
    def taken(self) -> str:
        return self.group or next(iter(re.compile(self.pattern).groupindex))


class _Timed(Options):
    unit: Unit | None = Field(None, description=_UNIT)
    format: TimeFormat | None = Field(None, description=_FORMAT)

    @model_validator(mode="after")
    def _one_of_both(self) -> Any:
        if (self.unit is None) == (self.format is None):
            raise ValueError("needs either unit or format")
        return self


class JsonTime(JsonField, _Timed):
    """The time is a field of a message that is a JSON object."""


class RegexTime(RegexGroup, _Timed):
    """The time is a part of the message that a regular expression matches."""


class KafkaTime(Options):
    """The time is the Kafka timestamp of the message."""


class RegistryConfig(Options):
    """A Confluent schema registry."""

    url: str = Field(pattern="^https?://[^@]+$", description="Address of the registry.")
    user: str | None = Field(None, description="User name for basic authentication.")
    password: Secret | None = Field(None, description="Password for basic authentication.")
    timeout: Annotated[Duration, Field(gt=0)] = Field(
        "10s", validate_default=True, description="Time limit of a request."
    )
    tries: Annotated[int, Field(ge=1, le=20)] = Field(
        4, description="Attempts before the registry counts as unavailable; the batch is then retried later."
    )
    allow_http_login: Annotated[bool, AddedLater] = Field(
        False, description="Send the password unencrypted to an address with `http://` on another host."
    )

    @model_validator(mode="after")
    def _login_is_encrypted(self) -> Any:
        url = urlsplit(self.url)
        logs_in = self.user is not None and not self.allow_http_login
        if logs_in and url.scheme == "http" and not is_local(url.hostname or ""):
            raise PydanticCustomError(
                PLAIN_ERROR,
                "the password would be sent over http, where others can read it; write https:// in url, "
                "or set allow_http_login: true",
            )
        return self


class AvroSchema(Options):
    """The schema of messages in Avro."""

    schema_file: LocalPath | None = Field(
        None, description="File with the schema, as JSON, of messages without a header."
    )
    registry: RegistryConfig | None = Field(
        None, description="Schema registry for messages that begin with byte 0 and the id of their schema."
    )

    @model_validator(mode="after")
    def _one_of_both(self) -> Any:
        if (self.schema_file is None) == (self.registry is None):
            raise ValueError("avro needs either schema_file or registry")
        return self


class AvroField(AvroSchema):
    """A field of a message in Avro."""

    field: FieldPath = Field(description=_FIELD)


class AvroTime(AvroField):
    """The time is a field of a message in Avro."""

    unit: Unit | None = Field(None, description="Unit of a number; not needed for Avro's logical types of times.")


class ProtobufMessage(Options):
    """The type of messages in Protobuf."""

    descriptor_file: LocalPath = Field(
        description="Descriptors with the message's type, written by `protoc --include_imports --descriptor_set_out`."
    )
    message: str = Field(min_length=1, description="Full name of the message's type, such as `shop.Order`.")


class ProtobufField(ProtobufMessage):
    """A field of a message in Protobuf."""

    field: FieldPath = Field(description=_FIELD)


class ProtobufTime(ProtobufField):
    """The time is a field of a message in Protobuf."""

    unit: Unit | None = Field(None, description="Unit of a number; not needed for google.protobuf.Timestamp.")


class ThriftField(Options):
    """A field of a message in Thrift."""

    field: tuple[Annotated[int, Field(ge=-32768, le=32767)], ...] = Field(
        min_length=1, description="Number of the field; for a field inside structs, the path of field numbers."
    )
    protocol: Literal["binary", "compact"] = Field("binary", description="Thrift protocol of the messages.")


class ThriftTime(ThriftField):
    """The time is a field of a message in Thrift."""

    unit: Unit = Field(description=_UNIT)
