"""One digest over everything that decides what a pipeline's files contain: processors, formats, layout, user code.

Two nodes with the same digest make the same files from the same records. The source, the destination and the size of
files are not part of it.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from holdfast.config.models import PipelineSettings
from holdfast.config.options import AddedLater
from holdfast.config.plugins import NamedSink, PluginUse
from holdfast.config.secrets import Secret

_SINK_SETTINGS = ("format", "topics", "layout")
_MODULE_FUNCTION = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")


def parsing_of(pipeline: PipelineSettings) -> dict[str, Any]:
    """Return the settings that decide what the files contain, as JSON, for people to compare."""
    sinks = {named.name: {named.use.name: _chosen(named.use.config)} | _routed(named) for named in pipeline.sinks}
    parsing: dict[str, Any] = {
        "processors": [{use.name: _plain(use.config)} for use in pipeline.processors],
        "sinks": sinks,
    }
    if any(getattr(named.use.config, "code_by_generation", False) for named in pipeline.sinks):
        # Nodes with old and new code run side by side, and a new generation ends that.
        parsing["generation"] = pipeline.generation
    # Without routes the digest is that of versions that had no routes.
    return parsing | ({"routes": dict(pipeline.routes)} if pipeline.routes else {})


def digest_of(pipeline: PipelineSettings) -> str:
    """Return the digest of the settings that decide what the files contain, and of every user module that they name."""
    parsing = parsing_of(pipeline)
    digest = hashlib.sha256(json.dumps(parsing, sort_keys=True).encode())
    for module in sorted(set(_modules(parsing))):
        digest.update(_source(module))
    return digest.hexdigest()


def _routed(named: NamedSink) -> dict[str, Any]:
    return {} if named.routes is None else {"routes": list(named.routes)}


def _chosen(config: Any) -> dict[str, Any]:
    """Return those settings of a sink that decide what its files contain."""
    return {name: _plain(getattr(config, name)) for name in _SINK_SETTINGS if hasattr(config, name)}


def _plain(value: Any) -> Any:
    if isinstance(value, PluginUse):
        return {value.name: _plain(value.config)}
    if isinstance(value, BaseModel):
        return {name: _plain(setting) for name, setting in value if not _is_as_before(value, name, setting)}
    if isinstance(value, dict):
        return {str(name): _plain(entry) for name, entry in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(entry) for entry in value]
    if isinstance(value, Secret):
        return "***"
    return value if isinstance(value, bool | int | float | str | None) else str(value)


def _is_as_before(config: BaseModel, name: str, value: Any) -> bool:
    """Return whether files are the same as in versions that did not have the setting."""
    field = type(config).model_fields[name]
    return AddedLater in field.metadata and value == field.default


def _modules(settings: Any) -> Iterator[str]:
    """Yield the module of every `module:function` in the settings."""
    if isinstance(settings, dict):
        for value in settings.values():
            yield from _modules(value)
    elif isinstance(settings, list):
        for value in settings:
            yield from _modules(value)
    elif isinstance(settings, str) and _MODULE_FUNCTION.fullmatch(settings):
        yield settings.partition(":")[0]


def _source(module: str) -> bytes:
    """Return the module's source; empty for text that is not a module, and for modules without a file."""
    try:
        found = importlib.util.find_spec(module)
    except (ImportError, ValueError):
        return b""
    if found is None or found.origin is None or not found.origin.endswith(".py"):
        return b""
    return Path(found.origin).read_bytes()
