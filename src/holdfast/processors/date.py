"""The processor `date`: timestamps from texts and numbers."""

from __future__ import annotations

import re
from typing import Annotated, Any
from zoneinfo import ZoneInfo

from pydantic import AfterValidator, BeforeValidator, Field

from holdfast.config import Options
from holdfast.flow.processor import Processor
from holdfast.processors._expressions import FailingOptions, changed, refuse_ours, require, text_of
from holdfast.registry import Plugin

NAME = "date"
ISO = "iso8601"
EPOCHS = {"epoch_second": 1_000_000, "epoch_milli": 1_000, "epoch_micro": 1}
"""Microseconds per unit."""
EPOCH_NANO = "epoch_nano"
MAX_BYTES = 1024
"""A longer text is not a time; Java takes time that grows with the square of the length to read a number."""
_QUOTED = re.compile(r"'[^']*'")
_ZONES = re.compile(r"[zZxXVO]")


def _check_zone(name: str) -> str:
    try:
        ZoneInfo(name)
    except (OSError, ValueError, KeyError):
        raise ValueError(f"there is no time zone {name!r}; write a name such as Europe/Berlin") from None
    return name


def _listed(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


class DateMatch(Options):
    """A column with times, and their patterns."""

    key: str = Field(min_length=1, description="Name of the column.")
    patterns: Annotated[tuple[str, ...], BeforeValidator(_listed)] = Field(
        min_length=1,
        description="Patterns of the times; the first that matches is used: a pattern of Spark such as "
        "`dd/MMM/yyyy:HH:mm:ss Z`, or `iso8601`, `epoch_second`, `epoch_milli`, `epoch_micro`, `epoch_nano`.",
    )


class DateConfig(FailingOptions):
    """Columns with times, and the column for the timestamp."""

    match: tuple[DateMatch, ...] = Field(
        min_length=1, description="Columns with times; the first that is not null is used."
    )
    destination: str = Field("@timestamp", min_length=1, description="Column for the timestamp.")
    source_timezone: Annotated[str, AfterValidator(_check_zone)] = Field(
        "UTC", description="Time zone of texts without a time zone."
    )


class Date(Processor):
    """Fails on a row whose text matches no pattern. Null stays null."""

    name = NAME
    may_fault = True
    keeps_rows = True

    def __init__(self, config: DateConfig) -> None:
        self._config = config

    def apply(self, frame: Any) -> Any:
        from pyspark.sql import functions as sql

        config = self._config
        require(frame, [entry.key for entry in config.match], NAME)
        refuse_ours([config.destination], NAME)
        time, reason = sql.lit(None).cast("timestamp"), sql.lit(None).cast("string")
        for entry in reversed(config.match):
            text = text_of(entry.key)
            times = (_time(text, pattern, config.source_timezone) for pattern in entry.patterns)
            made = sql.when(sql.octet_length(text) <= MAX_BYTES, sql.coalesce(*times))
            complaint = sql.when(made.isNull(), sql.concat(sql.lit(f"{NAME}: {entry.key} is not a time: "), text))
            time = sql.when(text.isNotNull(), made).otherwise(time)
            reason = sql.when(text.isNotNull(), complaint).otherwise(reason)
        return changed(frame, config, {config.destination: time}, reason)


def _time(text: Any, pattern: str, zone: str) -> Any:
    """The timestamp; null if the text does not match the pattern. The time zone of the session is UTC."""
    from pyspark.sql import functions as sql

    if pattern in EPOCHS:
        # A number that is too large is null here, and would fail the job if it were multiplied by an operator.
        micros = sql.try_multiply(text.try_cast("decimal(38,6)"), sql.lit(EPOCHS[pattern]))
        return sql.timestamp_micros(micros.try_cast("bigint"))
    if pattern == EPOCH_NANO:
        return sql.timestamp_micros(sql.floor(text.try_cast("decimal(38,0)") / 1000).try_cast("bigint"))
    if pattern == ISO:
        local = text.try_cast("timestamp_ntz")
        has_zone = sql.regexp_like(text, sql.lit(r"(?:[Zz]|[+-]\d{2}(?::?\d{2})?| [A-Za-z/_]+)$"))
        made = text.try_cast("timestamp")
        return made if zone == "UTC" else sql.when(has_zone, made).otherwise(_in_zone(local, zone))
    made = sql.try_to_timestamp(text, sql.lit(pattern))
    return made if _ZONES.search(_QUOTED.sub("", pattern)) else _in_zone(made, zone)


def _in_zone(time: Any, zone: str) -> Any:
    from pyspark.sql import functions as sql

    return time if zone == "UTC" else sql.to_utc_timestamp(time.cast("timestamp"), zone)


PLUGIN = Plugin(NAME, DateConfig, Date, "Make timestamps of texts and numbers.")
