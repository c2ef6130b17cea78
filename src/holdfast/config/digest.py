"""What decides how a pipeline's files look, as one digest: processors, formats, layout, and the user's own code.

Two nodes with the same digest make the same files from the same records. Where records come from, where files go and
how large they are is not part of it.
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

from holdfast.config.models import AddedLater, PipelineSettings
from holdfast.config.plugins import NamedSink, PluginUse
from holdfast.config.secrets import Secret

_OF_THE_SINK = ("format", "topics", "layout")
_PLACE = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")


def parsing_of(pipeline: PipelineSettings) -> dict[str, Any]:
    """The settings that decide, as JSON, for people to compare."""
    sinks = {named.name: {named.use.name: _chosen(named.use.config)} | _routed(named) for named in pipeline.sinks}
    told = {"processors": [{use.name: _plain(use.config)} for use in pipeline.processors], "sinks": sinks}
    # Without routes the digest is that of versions which had none.
    return told | ({"routes": dict(pipeline.routes)} if pipeline.routes else {})


def digest_of(pipeline: PipelineSettings) -> str:
    """One digest of these settings and of every module of the user's that they name."""
    told = parsing_of(pipeline)
    digest = hashlib.sha256(json.dumps(told, sort_keys=True).encode())
    for module in sorted(set(_modules(told))):
        digest.update(_source(module))
    return digest.hexdigest()


def _routed(named: NamedSink) -> dict[str, Any]:
    return {} if named.routes is None else {"routes": list(named.routes)}


def _chosen(config: Any) -> dict[str, Any]:
    """Of a sink's settings those that decide how its files look."""
    return {name: _plain(getattr(config, name)) for name in _OF_THE_SINK if hasattr(config, name)}


def _plain(value: Any) -> Any:
    if isinstance(value, PluginUse):
        return {value.name: _plain(value.config)}
    if isinstance(value, BaseModel):
        return {name: _plain(told) for name, told in value if not _is_as_before(value, name, told)}
    if isinstance(value, dict):
        return {str(name): _plain(one) for name, one in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(one) for one in value]
    if isinstance(value, Secret):
        return "***"
    return value if isinstance(value, bool | int | float | str | None) else str(value)


def _is_as_before(config: BaseModel, name: str, value: Any) -> bool:
    """Whether files look as those of versions that did not have the setting."""
    field = type(config).model_fields[name]
    return AddedLater in field.metadata and value == field.default


def _modules(told: Any) -> Iterator[str]:
    """Modules of `module:function` anywhere in the settings."""
    if isinstance(told, dict):
        for value in told.values():
            yield from _modules(value)
    elif isinstance(told, list):
        for value in told:
            yield from _modules(value)
    elif isinstance(told, str) and _PLACE.fullmatch(told):
        yield told.partition(":")[0]


def _source(module: str) -> bytes:
    """The module's source; nothing for text that only looks like a module, and for what has no file."""
    try:
        found = importlib.util.find_spec(module)
    except (ImportError, ValueError):
        return b""
    if found is None or found.origin is None or not found.origin.endswith(".py"):
        return b""
    return Path(found.origin).read_bytes()
