"""What is audited: one `files` sink of a pipeline, as the settings tell of it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, get_args

from holdfast.audit.place import Place, place_of

if TYPE_CHECKING:
    from holdfast.config.models import PipelineSettings
    from holdfast.config.plugins import PluginUse
    from holdfast.flow.format import Format
    from holdfast.registry import Registry

FILES = "files"
OFFSET_SOURCES = frozenset({"kafka", "archive"})
"""Sources whose positions and items are both offsets, with at most one record at each."""
ONE_ROW_EACH = frozenset(
    {
        "add_entries",
        "date",
        "delete_entries",
        "drop_events",
        "filter",
        "grok",
        "key_value",
        "parse",
        "parse_json",
        "rename_keys",
    }
)
"""Processors that make at most one row of a record."""


@dataclass(frozen=True)
class Subject:
    """One sink. `format_of` answers the format of a stream's files as they are written today."""

    pipeline: str
    """Its name in the store."""
    sink: str
    place: Place
    format_of: Callable[[str], Format]
    other_formats: Callable[[str], Sequence[Format]] = lambda _: ()
    """Formats that a file of this key may have been written in, by its name."""
    offsets: bool = True
    """Items are offsets, each of at most one record."""
    multiplies: bool = False
    """A processor may make several rows of one record."""
    generation: int = 1
    """Whose format the settings tell of."""
    runs: tuple[str, ...] = ("",)
    """Whose rows tell of this root; empty text stands for the live pipeline."""
    redrives: tuple[str, ...] = ()
    """Runs that have sent dead letters of this sink again; labels of what they wrote end with their id."""


def subjects(pipeline: PipelineSettings, identifier: str, registry: Registry) -> Iterator[Subject]:
    """The `files` sinks of a pipeline. Connects to nothing."""
    for named in pipeline.sinks:
        if named.use.name == FILES:
            config = named.use.config
            yield Subject(
                pipeline=identifier,
                sink=named.name,
                place=place_of(config.root, config.s3),
                format_of=_formats(config, registry),
                other_formats=partial(_by_name, registry),
                offsets=pipeline.source.name in OFFSET_SOURCES,
                multiplies=any(map(_may_multiply, pipeline.processors)),
                generation=pipeline.generation,
            )


def _may_multiply(use: PluginUse) -> bool:
    if use.name not in ONE_ROW_EACH:
        return True
    # A function of the user's on whole record batches may make of them what it likes.
    config = use.config
    return any(getattr(rule, "arrow", None) for rule in (config, *getattr(config, "topics", ())))


def _formats(config: Any, registry: Registry) -> Callable[[str], Format]:
    built: dict[int, Format] = {}

    def format_of(stream: str) -> Format:
        rules = (rule.format for rule in config.topics if re.fullmatch(rule.match, stream))
        use = next(rules, config.format)
        if id(use) not in built:
            built[id(use)] = registry.get("formats", use.name).build(use.config)
        return built[id(use)]

    return format_of


def _by_name(registry: Registry, key: str) -> list[Format]:
    """Every installed format whose files have such names, with the settings that it has unless others are given."""
    found: list[Format] = []
    for name in registry.names("formats"):
        plugin = registry.get("formats", name)
        field = plugin.config.model_fields.get("compression")
        ways = [{}] if field is None else [{"compression": one} for one in get_args(field.annotation)]
        made = (plugin.build(plugin.config(**way)) for way in ways)
        found += [form for form in made if key.endswith(f".{form.extension}")][:1]
    return found
