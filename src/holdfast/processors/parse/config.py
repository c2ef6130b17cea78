"""Settings of the processor `parse`."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pydantic import BeforeValidator, Field, model_validator

from holdfast.config import Options, PositiveCount
from holdfast.processors.parse import field_config
from holdfast.processors.parse.field_config import Expression, Function, NameTemplate, checked

Granularity = Literal["year", "month", "day", "hour", "minute"]
HIVE: dict[Granularity, str] = {
    "year": "dt=%Y",
    "month": "dt=%Y-%m",
    "day": "dt=%Y-%m-%d",
    "hour": "dt=%Y-%m-%d/hr=%H",
    "minute": "dt=%Y-%m-%d/hr=%H/min=%M",
}
PLAIN: dict[Granularity, str] = {
    "year": "%Y",
    "month": "%Y-%m",
    "day": "%Y-%m-%d",
    "hour": "%Y-%m-%d/%H",
    "minute": "%Y-%m-%d/%H/%M",
}
TIME, OFFSETS, CONSTANT = "time", "offsets", "constant"


def _zone(name: str) -> None:
    try:
        ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise ValueError("is no time zone; write UTC or a name such as Europe/Berlin") from None


def _segments(text: str) -> None:
    if not all(text.split("/")):
        raise ValueError("must have a name before and behind every '/'")


def _bare_name(value: Any) -> Any:
    """`time: kafka` is short for `time: {kafka: {}}`."""
    if isinstance(value, str):
        return {value: {}}
    if isinstance(value, dict):
        return {key: {} if given is None else given for key, given in value.items()}
    return value


def _or_bare_name(schema: dict[str, Any]) -> None:
    schema["anyOf"].insert(0, {"const": "kafka"})


Zone = Annotated[str, checked(_zone)]
Segments = Annotated[str, checked(_segments)]


class _OneOf(Options):
    """Exactly one of its settings is given."""

    @model_validator(mode="after")
    def _exactly_one(self) -> Self:
        known = list(type(self).model_fields)
        if sum(getattr(self, name) is not None for name in known) != 1:
            raise ValueError(f"needs exactly one of {', '.join(known)}")
        return self

    @property
    def chosen(self) -> Any:
        """The one that is given."""
        return next(one for name in type(self).model_fields if (one := getattr(self, name)) is not None)


class TimeFrom(_OneOf):
    """Where the time of a message is found."""

    kafka: field_config.KafkaTime | None = Field(None, description="The Kafka timestamp of the message.")
    json_: field_config.JsonTime | None = Field(None, alias="json", description="A field of a message in JSON.")
    regex: field_config.RegexTime | None = Field(None, description="A part that a regular expression finds.")
    avro: field_config.AvroTime | None = Field(None, description="A field of a message in Avro.")
    protobuf: field_config.ProtobufTime | None = Field(None, description="A field of a message in Protobuf.")
    thrift: field_config.ThriftTime | None = Field(None, description="A field of a message in Thrift.")


class NameFrom(_OneOf):
    """Where a text or whole number for a partition name is found."""

    json_: field_config.JsonField | None = Field(None, alias="json", description="A field of a message in JSON.")
    regex: field_config.RegexGroup | None = Field(None, description="A part that a regular expression finds.")
    avro: field_config.AvroField | None = Field(None, description="A field of a message in Avro.")
    protobuf: field_config.ProtobufField | None = Field(None, description="A field of a message in Protobuf.")
    thrift: field_config.ThriftField | None = Field(None, description="A field of a message in Thrift.")


class OffsetRanges(Options):
    """Names by ranges of offsets."""

    every: PositiveCount = Field(description="How many offsets have one name.")


class JsonColumns(Options):
    """The message is a JSON object."""

    schema_: str = Field(
        alias="schema", min_length=1, description="Columns as in Spark's DDL, such as `id BIGINT, note STRING`."
    )


class AvroColumns(field_config.AvroSchema, JsonColumns):
    """The message is in Avro."""


class ProtobufColumns(field_config.ProtobufMessage, JsonColumns):
    """The message is in Protobuf."""


class ColumnsFrom(_OneOf):
    """What the message is, whose fields become columns."""

    json_: JsonColumns | None = Field(None, alias="json", description="A JSON object.")
    avro: AvroColumns | None = Field(None, description="A record in Avro.")
    protobuf: ProtobufColumns | None = Field(None, description="A message in Protobuf.")


class ParseRule(Options):
    """What is made of the messages of some topics."""

    time: Annotated[TimeFrom, BeforeValidator(_bare_name)] | None = Field(
        None,
        description="Where the time for partition names is found; `kafka` alone for the Kafka timestamp.",
        json_schema_extra=_or_bare_name,
    )
    names: dict[Annotated[str, checked(_segments)], NameFrom] = Field(
        default_factory=dict, description="Other values that become partition names, by their keys in Hive style."
    )
    offsets: OffsetRanges | None = Field(None, description="Names by ranges of offsets, such as offset=…0000100000.")
    constant: Segments | None = Field(None, description="A name that is always the same.")
    order: tuple[str, ...] = Field(
        (), description="Order of the names, if it is not constant, time, the keys of names as written, offsets."
    )
    prefix: Segments | None = Field(None, description="Put before all names.")
    style: Literal["hive", "plain"] = Field("hive", description="dt=2026-01-01/hr=05 (hive), or 2026-01-01/05 (plain).")
    granularity: Granularity = Field("day", description="The finest part of a time that names have.")
    template: NameTemplate | None = Field(
        None, description="Names of a time in other words, such as `y=%Y/m=%m`, instead of style and granularity."
    )
    zone: Zone = Field("UTC", description="Time zone in which names of times are made.")
    text_zone: Zone = Field("UTC", description="Time zone of times in messages that are text and tell none.")
    min_year: int = Field(1980, ge=1972, le=2200, description="A time before this year is an error.")
    max_year: int = Field(2200, ge=1972, le=2200, description="A time after this year is an error.")
    on_error: Literal["dead_letter", "invalid"] = Field(
        "dead_letter",
        description="A message without a readable value for a name goes to the dead letters, or to the place "
        "dt=__invalid__ (in plain style __invalid__).",
    )
    columns: ColumnsFrom | None = Field(
        None, description="Make columns of the message's fields; it stays as it is unless given."
    )
    keep: tuple[str, ...] = Field((), description="Columns of the source that are kept beside those of `columns`.")
    python: Function | None = Field(
        None, description="Your function as module:name, called for each message; it gives names, payload or both."
    )
    arrow: Function | None = Field(
        None, description="Your function as module:name, called with Arrow record batches of messages."
    )

    def parts(self) -> list[str]:
        """What gives names, in the order in which they stand unless `order` says otherwise."""
        before = [name for name in (CONSTANT, TIME) if getattr(self, name) is not None]
        return [*before, *self.names, *([OFFSETS] if self.offsets is not None else [])]

    def time_pattern(self) -> str:
        """How names of times are made."""
        return self.template or (HIVE if self.style == "hive" else PLAIN)[self.granularity]


class TopicRule(ParseRule):
    """What is made of the messages of some topics; settings that are not given are those above."""

    match: Expression = Field(description="Regular expression that matches the whole name of a topic.")


class ParseConfig(ParseRule):
    """What is made of messages: partition names, and if wanted columns."""

    topics: tuple[TopicRule, ...] = Field(
        (), description="Topics that are parsed in another way; the first that matches counts."
    )

    @model_validator(mode="after")
    def _makes_sense(self) -> Self:
        for match, rule in self.rules():
            try:
                _check(rule)
            except ValueError as wrong:
                raise ValueError(f"{wrong}" if match is None else f"topics that match {match!r}: {wrong}") from None
        return self

    def rules(self) -> list[tuple[str | None, ParseRule]]:
        """Every rule with what it takes from the settings above it, in the order in which they are tried."""
        return [*((one.match, _below(self, one)) for one in self.topics), (None, self)]


_NAMING = {TIME, "names", OFFSETS, CONSTANT, "order", "python", "arrow"}
_PAYLOAD = {"columns", "keep"}
_LOOKS = {"style", "granularity", "template"}


def _below(above: ParseRule, rule: TopicRule) -> ParseRule:
    """The rule, with settings of those above in place of what it does not give. Names are given all or none."""
    given = set(rule.model_fields_set)
    for group in (_NAMING, _PAYLOAD, _LOOKS):
        given |= group if given & group else set()
    if rule.python or rule.arrow:
        given |= _PAYLOAD
    values = {name: getattr(rule if name in given else above, name) for name in ParseRule.model_fields}
    return ParseRule.model_construct(**values)


def _check(rule: ParseRule) -> None:
    parts = rule.parts()
    for reserved in {TIME, OFFSETS, CONSTANT} & set(rule.names):
        raise ValueError(f"names: {reserved} is a setting of its own; take another key")
    if rule.order and sorted(rule.order) != sorted(parts):
        raise ValueError(f"order must name each of {', '.join(parts) or 'nothing'} once")
    if rule.min_year > rule.max_year:
        raise ValueError("min_year is after max_year")
    own = [name for name in ("python", "arrow") if getattr(rule, name) is not None]
    if own and (parts or rule.columns is not None or len(own) > 1):
        raise ValueError(f"{own[0]} gives names and payload by itself; nothing else can give them too")
    if rule.keep and rule.columns is None:
        raise ValueError("keep is for columns; without them every column stays")
