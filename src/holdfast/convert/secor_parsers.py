"""Secor's message parsers as settings of the processor `parse`."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from holdfast.convert.converted_file import ForeignSettings

_DEFAULT_NAMES = {"date": ("dt=", "yyyy-MM-dd"), "hour": ("hr=", "HH"), "minute": ("min=", "mm")}
# Letters of Java's patterns; texts in quotes stand for themselves.
_DIRECTIVES = {
    "yyyy": "%Y",
    "MMM": "%b",
    "MM": "%m",
    "dd": "%d",
    "HH": "%H",
    "mm": "%M",
    "ss": "%S",
    "SSS": "%f",
    "SSSSSS": "%f",
    "Z": "%z",
    "X": "%z",
    "XXX": "%z",
}


def parse_step(settings: ForeignSettings) -> dict[str, Any]:
    """Return the settings of `parse` for the parser of these properties; empty if no step is needed."""
    name = "secor.message.parser.class"
    parser = settings.take(name, "OffsetMessageParser").rpartition(".")[2]
    offsets, names = _offsets(settings), _names(settings)
    if parser == "OffsetMessageParser":
        return offsets
    convert = _TIMES.get(parser)
    if settings.take("kafka.useTimestamp") == "true":
        time: Any = "kafka"
    elif convert is not None:
        time = convert(settings)
    else:
        settings.note(name, f"must be changed: {parser} has no counterpart; write it as `python: module:name`")
        time = "kafka"
    step = {"time": time} | names
    if "SplitByField" in parser:
        step |= _split(settings)
    return step | (offsets if parser == "DailyOffsetMessageParser" else {})


def _offsets(settings: ForeignSettings) -> dict[str, Any]:
    if settings.take("secor.offsets.prefix", "offset=") != "offset=":
        settings.note("secor.offsets.prefix", "not converted: the prefix is offset=")
    return {"offsets": {"every": settings.whole("secor.offsets.per.partition", 10_000_000)}}


def _split(settings: ForeignSettings) -> dict[str, Any]:
    field = settings.take("message.split.field.name", "type")
    settings.note("message.split.field.name", f"output folders are called {field}=…; Secor writes the value alone")
    name = re.sub(r"\W", "_", field)
    return {"names": {name: {"json": {"field": [field]}}}, "order": [name, "time"]}


def _names(settings: ForeignSettings) -> dict[str, Any]:
    """Return how the times of output folders are written."""
    prefix = "partitioner.granularity"
    is_minute, is_hour = settings.take(f"{prefix}.minute") == "true", settings.take(f"{prefix}.hour") == "true"
    granularity = "minute" if is_minute else "hour" if is_hour else "day"
    written = {
        unit: (settings.take(f"{prefix}.{unit}.prefix", usual[0]), settings.take(f"{prefix}.{unit}.format", usual[1]))
        for unit, usual in _DEFAULT_NAMES.items()
    }
    used = ["date", "hour", "minute"][: 1 + is_hour + is_minute + (is_minute and not is_hour)]
    zone = settings.take("secor.parser.timezone", "UTC")
    names: dict[str, Any] = {} if zone == "UTC" else {"zone": zone}
    if all(written[unit] == _DEFAULT_NAMES[unit] for unit in used):
        return {"granularity": granularity} | names
    patterns = [written[unit][0] + (_pattern(written[unit][1]) or "%Y-%m-%d") for unit in used]
    return {"template": "/".join(patterns)} | names


def _pattern(java: str) -> str | None:
    """Return a SimpleDateFormat pattern in the form of strftime (`%Y`); None if letters have no counterpart."""
    result = ""
    for found in re.finditer(r"'([^']*)'|(([A-Za-z])\3*)|([^A-Za-z'])", java):
        quoted, letters, other = found[1], found[2], found[4]
        if letters and letters not in _DIRECTIVES:
            return None
        result += _DIRECTIVES[letters] if letters else (quoted or other or "").replace("%", "%%")
    return result


def _field(settings: ForeignSettings) -> list[str]:
    name = settings.take("message.timestamp.name", "timestamp")
    separator = settings.take("message.timestamp.name.separator")
    return name.split(separator) if separator else [name]


def _number(settings: ForeignSettings) -> dict[str, Any]:
    settings.note("message.timestamp.name", "Secor guesses the unit of the number; `unit: millis` is written here")
    return {"unit": "millis"}


def _json(settings: ForeignSettings) -> dict[str, Any]:
    return {"json": {"field": _field(settings)} | _number(settings)}


def _iso8601(settings: ForeignSettings) -> dict[str, Any]:
    return {"json": {"field": _field(settings), "unit": "iso8601"}}


def _date(settings: ForeignSettings) -> dict[str, Any]:
    written = settings.take("message.timestamp.input.pattern", "")
    pattern = _pattern(written)
    if not pattern:
        settings.note("message.timestamp.input.pattern", f"must be changed: {written!r} is not converted")
        return _iso8601(settings)
    return {"json": {"field": _field(settings), "format": pattern}}


def _regex(settings: ForeignSettings) -> dict[str, Any]:
    pattern = settings.take("message.timestamp.input.pattern", "([0-9]+)")
    settings.note("message.timestamp.input.pattern", "check that it has a single group, with the time")
    named = re.sub(r"(?<!\\)\((?!\?)", "(?P<time>", pattern, count=1)
    return {"regex": {"pattern": named, "group": "time"} | _number(settings)}


def _thrift(settings: ForeignSettings) -> dict[str, Any]:
    protocol = "compact" if "TCompact" in settings.take("secor.thrift.protocol.class", "") else "binary"
    return {"thrift": {"field": [settings.whole("message.timestamp.id", 1)], "protocol": protocol} | _number(settings)}


def _protobuf(settings: ForeignSettings) -> dict[str, Any]:
    settings.note("secor.protobuf.message.class", "must be changed: name the message, and the file that protoc writes")
    return {
        "protobuf": {"field": _field(settings), "descriptor_file": "messages.desc", "message": "package.Message"}
        | _number(settings)
    }


def _avro(settings: ForeignSettings) -> dict[str, Any]:
    url = settings.take("schema.registry.url")
    if url is None:
        settings.note("schema.registry.url", "must be changed: name the registry, or `schema_file`")
    registry = {"url": url or "http://localhost:8081"}
    return {"avro": {"field": _field(settings), "registry": registry} | _number(settings)}


_TIMES: dict[str, Callable[[ForeignSettings], dict[str, Any]]] = {
    "JsonMessageParser": _json,
    "SplitByFieldMessageParser": _json,
    "Iso8601MessageParser": _iso8601,
    "DateMessageParser": _date,
    "DailyOffsetMessageParser": _json,
    "RegexMessageParser": _regex,
    "ThriftMessageParser": _thrift,
    "ProtobufMessageParser": _protobuf,
    "AvroMessageParser": _avro,
}
