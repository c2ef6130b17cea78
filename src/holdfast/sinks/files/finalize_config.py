"""Settings of the sink `files` that say when places are final, who is told, and what becomes of late records."""

from __future__ import annotations

import re
from typing import Annotated, Literal, Self
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pydantic import AfterValidator, Field, model_validator
from pydantic_core import PydanticCustomError

from holdfast.config import Duration, Options
from holdfast.config.units import VALUE_ERROR
from holdfast.flow.names import OURS
from holdfast.sinks.files.periods import USUAL, check_template

_FUNCTION = r"[A-Za-z_][\w.]*:[A-Za-z_]\w*"


def _zone(name: str) -> str:
    try:
        ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise PydanticCustomError(VALUE_ERROR, "is no time zone; write UTC or a name such as Europe/Berlin") from None
    return name


def _template(text: str) -> str:
    try:
        check_template(text)
    except ValueError as wrong:
        raise PydanticCustomError(VALUE_ERROR, str(wrong)) from None
    return text


def _function(text: str) -> str:
    if not re.fullmatch(_FUNCTION, text):
        raise PydanticCustomError(VALUE_ERROR, "must be module:name, as in my_package.my_module:done")
    return text


def _late_folder(text: str) -> str:
    if not re.fullmatch(r"_[A-Za-z0-9][A-Za-z0-9_-]*", text) or text == OURS:
        reason = "must be one name that begins with '_', so that no topic can be called so; not _holdfast"
        raise PydanticCustomError(VALUE_ERROR, reason)
    return text


class HiveTable(Options):
    """The table whose partition a final place becomes."""

    table: str = Field(
        min_length=1,
        description="Name of the table, such as `logs.{topic}`; in the topic, what is no letter or digit becomes `_`.",
    )
    columns: tuple[str, ...] = Field(
        (), description="Partition columns, for places in plain style; those in Hive style tell them by themselves."
    )
    location: str | None = Field(
        None, description="What Hive calls the root, such as `s3a://lake/daily`; as in `root` unless given."
    )


class Hook(Options):
    """Whom to tell of a place that is final: a command or a function. It may be told twice."""

    command: tuple[str, ...] | None = Field(
        None,
        min_length=1,
        description="Program and arguments, run without a shell; {topic}, {place}, {location} and {statement} in "
        "arguments are filled in. It gets the statement, or without `hive` a JSON object, as its input.",
    )
    python: Annotated[str, AfterValidator(_function)] | None = Field(
        None, description="Your function as module:name, called with the statement, or without `hive` with a dict."
    )
    hive: HiveTable | None = Field(
        None, description="Make an `ALTER TABLE … ADD IF NOT EXISTS PARTITION` statement for this table."
    )
    on_late: bool = Field(True, description="Whether it is told again when late records came to the place.")
    timeout: Annotated[Duration, Field(gt=0)] = Field(
        "5m", validate_default=True, description="How long a command may run; a function should keep to it."
    )

    @model_validator(mode="after")
    def _one_of_them(self) -> Self:
        if (self.command is None) == (self.python is None):
            raise ValueError("needs exactly one of command, python")
        return self


class FinalizeConfig(Options):
    """When places are final, who is told, and what becomes of records that come later."""

    lateness: Duration = Field(
        "1h", validate_default=True, description="How far all partitions must be past a place's end until it is final."
    )
    idle_after: Annotated[Duration, Field(gt=0)] = Field(
        "1h",
        validate_default=True,
        description="A partition that has had nothing to read for so long holds no place open any more.",
    )
    interval: Annotated[Duration, Field(gt=0)] = Field(
        "1m", validate_default=True, description="How often it is looked whether places are final."
    )
    success: bool = Field(True, description="Whether an object `_SUCCESS` is put into a place that is final.")
    hooks: tuple[Hook, ...] = Field((), description="Who else is told, in this order.")
    template: Annotated[str, AfterValidator(_template)] | None = Field(
        None, description="How places tell their time, such as `y=%Y/m=%m`; by default as `parse` names times."
    )
    zone: Annotated[str, AfterValidator(_zone)] = Field("UTC", description="Time zone of these names, as in `parse`.")
    late: Literal["same", "dead_letter", "place"] = Field(
        "same",
        description="Where records go whose place is final already: to the place all the same, to the dead letters, or "
        "below `late_place`.",
    )
    late_place: Annotated[str, AfterValidator(_late_folder)] = Field(
        "_late", description="With `late: place`, the folder of the root in which late records lie by topic and place."
    )

    def templates(self) -> tuple[str, ...]:
        """How places may tell their time."""
        return USUAL if self.template is None else (self.template,)
