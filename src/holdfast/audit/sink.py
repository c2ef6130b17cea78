"""The sink that is audited: a `files` sink of a pipeline, as configured."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, get_args

from holdfast.audit.roots import Root, root_of

if TYPE_CHECKING:
    from holdfast.config.models import PipelineSettings
    from holdfast.config.plugins import PluginUse
    from holdfast.flow.format import Format
    from holdfast.registry import Registry

FILES = "files"
FUNCTION = "function"
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
"""Processors that turn a record into at most one row."""


@dataclass(frozen=True)
class AuditedSink:
    """One `files` sink. `format_of` returns the format in which a stream's files are written now."""

    pipeline: str
    """The pipeline's name in the store."""
    sink: str
    root: Root
    format_of: Callable[[str], Format]
    other_formats: Callable[[str], Sequence[Format]] = lambda _: ()
    """Formats that a file may have, by the extension in its key."""
    offsets: bool = True
    """Items are offsets, with at most one record at each."""
    multiplies: bool = False
    """A processor or a handler may turn one record into several rows."""
    counts_rows: bool = True
    """The store counts rows; of a function it counts the records that were handled."""
    generation: int = 1
    """Generation of the configured format."""
    runs: tuple[str, ...] = ("",)
    """Runs whose rows describe this root; the empty string stands for the live pipeline."""
    redrives: tuple[str, ...] = ()
    """Runs that redrove dead letters into this sink; the labels of their files end with the run's id."""


def audited_sinks(pipeline: PipelineSettings, identifier: str, registry: Registry) -> Iterator[AuditedSink]:
    """Yield the `files` sinks of a pipeline. Connects to nothing."""
    has_handler = any(named.use.name == FUNCTION for named in pipeline.sinks)
    for named in pipeline.sinks:
        if named.use.name == FILES:
            config = named.use.config
            yield AuditedSink(
                pipeline=identifier,
                sink=named.name,
                root=root_of(config.root, config.s3),
                format_of=_formats(config, registry),
                other_formats=partial(_by_name, registry),
                offsets=pipeline.source.name in OFFSET_SOURCES,
                multiplies=has_handler or not keeps_rows(pipeline),
                counts_rows=not has_handler,
                generation=pipeline.generation,
            )


def keeps_rows(pipeline: PipelineSettings) -> bool:
    """Return whether no processor can turn one record into several rows."""
    return not any(map(_may_multiply, pipeline.processors))


def _may_multiply(use: PluginUse) -> bool:
    if use.name not in ONE_ROW_EACH:
        return True
    # A user function on whole record batches may return any number of rows.
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
    """Return every installed format with this file extension, with default settings."""
    found: list[Format] = []
    for name in registry.names("formats"):
        plugin = registry.get("formats", name)
        field = plugin.config.model_fields.get("compression")
        variants = [{}] if field is None else [{"compression": name} for name in get_args(field.annotation)]
        made = (plugin.build(plugin.config(**variant)) for variant in variants)
        found += [form for form in made if key.endswith(f".{form.extension}")][:1]
    return found
