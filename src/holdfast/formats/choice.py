"""The format of each topic's files as the settings choose it: a default, and rules for some topics."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field
from pydantic_core import PydanticCustomError

from holdfast.config import Options, PluginUse, Uses
from holdfast.config.units import VALUE_ERROR
from holdfast.flow.format import Format, Formats
from holdfast.registry import Registry


def _bare_name(value: Any) -> Any:
    """`parquet` is short for `parquet:` without settings."""
    return {value: None} if isinstance(value, str) else value


def _checked_pattern(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise PydanticCustomError(VALUE_ERROR, f"is not a valid regular expression: {error}") from None
    return text


FormatUse = Annotated[PluginUse, Uses("formats"), BeforeValidator(_bare_name)]


class TopicFormat(Options):
    """The format of some topics."""

    match: Annotated[str, AfterValidator(_checked_pattern)] = Field(
        description="Regular expression that matches the whole name of a topic."
    )
    format: FormatUse = Field(description="Format of the files of these topics.")


def limits_of(default: PluginUse, rules: Sequence[TopicFormat], registry: Registry) -> list[str]:
    """For people: what the formats cannot hold, and the settings that decide what becomes of it."""
    formats = chosen_formats(default, rules, registry)
    named = [*(f"format {rule.format.name} of topics {rule.match}" for rule in rules), f"format {default.name}"]
    return [f"{name}: {limit}" for name, form in zip(named, formats.all(), strict=True) for limit in form.limits()]


def chosen_formats(default: PluginUse, rules: Sequence[TopicFormat], registry: Registry) -> Formats:
    """The formats of all topics, built."""

    def built(use: PluginUse) -> Format:
        made: Format = registry.get("formats", use.name).build(use.config)
        return made

    return Formats(built(default), [(rule.match, built(rule.format)) for rule in rules])
