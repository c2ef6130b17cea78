"""Settings of the processor `parse`."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pydantic import BeforeValidator, Field, model_validator
from pydantic_core import PydanticCustomError

from holdfast.config import Options, PositiveCount
from holdfast.config.units import VALUE_ERROR
from holdfast.processors._functions import FunctionName
from holdfast.processors.parse import field_config
from holdfast.processors.parse.field_config import Expression, NameTemplate, checked

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
        raise ValueError("is not a time zone; write UTC or a name such as Europe/Berlin") from None


def _segments(text: str) -> None:
    if not all(text.split("/")):
        raise ValueError("must have a name before and after every '/'")


def _bare_name(value: Any) -> Any:
    """`time: kafka` is short for `time: {kafka: {}}`."""
    if isinstance(value, str) and value not in TimeFrom.model_fields:
        raise PydanticCustomError(
            VALUE_ERROR, "does not say where a time is found; write json: {field: NAME, unit: millis}"
        )
    if isinstance(value, str):
        return {value: {}}
    if isinstance(value, dict):
        return {key: {} if given is None else given for key, given in value.items()}
    return value


def _or_bare_name(schema: dict[str, Any]) -> None:
    schema["anyOf"].insert(0, {"const": "kafka"})


Zone = Annotated[str, checked(_zone)]
Segments = Annotated[str, checked(_segments)]


class _Choice(Options):
    """Exactly one of its settings is given."""

    @model_validator(mode="after")
    def _exactly_one(self) -> Self:
        names = list(type(self).model_fields)
        if sum(getattr(self, name) is not None for name in names) != 1:
            raise ValueError(f"needs exactly one of {', '.join(names)}")
        return self

    @property
    def chosen(self) -> Any:
        """The setting that is given."""
        return next(given for name in type(self).model_fields if (given := getattr(self, name)) is not None)


class TimeFrom(_Choice):
    """Where the time of a message is found."""

    kafka: field_config.KafkaTime | None = Field(None, description="The Kafka timestamp of the message.")
    json_: field_config.JsonTime | None = Field(None, alias="json", description="A field of a message in JSON.")
    regex: field_config.RegexTime | None = Field(
        None, description="A part of the message that a regular expression matches."
    )
    avro: field_config.AvroTime | None = Field(None, description="A field of a message in Avro.")
    protobuf: field_config.ProtobufTime | None = Field(None, description="A field of a message in Protobuf.")
    thrift: field_config.ThriftTime | None = Field(None, description="A field of a message in Thrift.")


class NameFrom(_Choice):
    """Where the text or whole number for a partition name is found."""

    json_: field_config.JsonField | None = Field(None, alias="json", description="A field of a message in JSON.")
    regex: field_config.RegexGroup | None = Field(
        None, description="A part of the message that a regular expression matches."
    )
    avro: field_config.AvroField | None = Field(None, description="A field of a message in Avro.")
    protobuf: field_config.ProtobufField | None = Field(None, description="A field of a message in Protobuf.")
    thrift: field_config.ThriftField | None = Field(None, description="A field of a message in Thrift.")


class OffsetRanges(Options):
    """Names by ranges of offsets."""

    every: PositiveCount = Field(description="Number of offsets that share a name.")


class JsonColumns(Options):
    """Messages are JSON objects."""

    schema_: str = Field(
        alias="schema", min_length=1, description="Columns as in Spark's DDL, such as `id BIGINT, note STRING`."
    )


class AvroColumns(field_config.AvroSchema, JsonColumns):
    """Messages are in Avro."""


class ProtobufColumns(field_config.ProtobufMessage, JsonColumns):
    """Messages are in Protobuf."""


class ColumnsFrom(_Choice):
    """The encoding of messages whose fields become columns."""

    json_: JsonColumns | None = Field(None, alias="json", description="A JSON object.")
    avro: AvroColumns | None = Field(None, description="A record in Avro.")
    protobuf: ProtobufColumns | None = Field(None, description="A message in Protobuf.")


class ParseRule(Options):
    """How messages of some topics are parsed."""

    time: Annotated[TimeFrom, BeforeValidator(_bare_name)] | None = Field(
        None,
        description="Where the time for partition names is found; `kafka` alone for the Kafka timestamp.",
        json_schema_extra=_or_bare_name,
    )
    names: dict[Annotated[str, checked(_segments)], NameFrom] = Field(
        default_factory=dict, description="Other values that become partition names, by their keys in Hive style."
    )
    offsets: OffsetRanges | None = Field(
        None, description="Partition names by ranges of offsets, such as offset=…0000100000."
    )
    constant: Segments | None = Field(None, description="A partition name that is the same for all messages.")
    order: tuple[str, ...] = Field(
        (), description="Order of the names. Default: constant, time, the keys of `names` as written, offsets."
    )
    prefix: Segments | None = Field(None, description="Partition names that come before all others.")
    style: Literal["hive", "plain"] = Field("hive", description="dt=2026-01-01/hr=05 (hive), or 2026-01-01/05 (plain).")
    granularity: Granularity = Field("day", description="The smallest unit of time in partition names.")
    template: NameTemplate | None = Field(
        None, description="Pattern for the names of times, such as `y=%Y/m=%m`, instead of style and granularity."
    )
    zone: Zone = Field("UTC", description="Time zone in which times become names of output folders.")
    text_zone: Zone = Field("UTC", description="Time zone of times in messages that are text without a time zone.")
    min_year: int = Field(1980, ge=1972, le=2200, description="A time before this year is an error.")
    max_year: int = Field(2200, ge=1972, le=2200, description="A time after this year is an error.")
    on_error: Literal["dead_letter", "invalid"] = Field(
        "dead_letter",
        description="Where a message without a readable value for a name goes: to the dead letters, or to the output "
        "folder dt=__invalid__ (in plain style __invalid__).",
    )
    columns: ColumnsFrom | None = Field(
        None, description="Makes columns from the message's fields. Without it, messages stay as they are."
    )
    keep: tuple[str, ...] = Field(
        (), description="Columns of the source that are kept in addition to those of `columns`."
    )
    python: FunctionName | None = Field(
        None, description="Your function as module:name, called for each message; it returns names, a payload or both."
    )
    arrow: FunctionName | None = Field(
        None, description="Your function as module:name, called with Arrow record batches of messages."
    )

    def parts(self) -> list[str]:
        """The settings that give partition names, in their default order."""
        before = [name for name in (CONSTANT, TIME) if getattr(self, name) is not None]
        return [*before, *self.names, *([OFFSETS] if self.offsets is not None else [])]

    def time_pattern(self) -> str:
        """The pattern for names of times."""
        return self.template or (HIVE if self.style == "hive" else PLAIN)[self.granularity]


class TopicRule(ParseRule):
    """How messages of some topics are parsed; settings that are not given are taken from the level above."""

    match: Expression = Field(description="Regular expression that matches the whole name of a topic.")


class ParseConfig(ParseRule):
    """How messages are parsed: into partition names, and optionally columns."""

    topics: tuple[TopicRule, ...] = Field(
        (), description="Topics that are parsed differently; the first entry that matches is used."
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
        """Every rule, completed by the settings above it, in the order in which they are tried."""
        return [*((topic.match, _completed(topic, self)) for topic in self.topics), (None, self)]


_NAMES = {TIME, "names", OFFSETS, CONSTANT, "order", "python", "arrow"}
_PAYLOAD = {"columns", "keep"}
_TIME_STYLE = {"style", "granularity", "template"}


def _completed(rule: TopicRule, above: ParseRule) -> ParseRule:
    """The rule, completed by the settings above it. A rule with one setting of a group inherits none of the group."""
    given = set(rule.model_fields_set)
    for group in (_NAMES, _PAYLOAD, _TIME_STYLE):
        given |= group if given & group else set()
    if rule.python or rule.arrow:
        given |= _PAYLOAD
    values = {name: getattr(rule if name in given else above, name) for name in ParseRule.model_fields}
    return ParseRule.model_construct(**values)


def _check(rule: ParseRule) -> None:
    parts = rule.parts()
    for reserved in {TIME, OFFSETS, CONSTANT} & set(rule.names):
        raise ValueError(f"names: {reserved} is reserved for the setting of that name; use another key")
    if rule.order and sorted(rule.order) != sorted(parts):
        raise ValueError(f"order must name each of {', '.join(parts) or 'nothing'} once")
    if rule.min_year > rule.max_year:
        raise ValueError("min_year is after max_year")
    functions = [name for name in ("python", "arrow") if getattr(rule, name) is not None]
    if functions and (parts or rule.columns is not None or len(functions) > 1):
        raise ValueError(f"{functions[0]} returns names and payload itself; no other setting can give them too")
    if rule.keep and rule.columns is None:
        raise ValueError("keep needs columns; without columns every column of the source stays")
