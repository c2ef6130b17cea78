"""Roots of sinks: each belongs to one sink alone, or two sinks would delete what the other has staged."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from holdfast.config.plugins import NamedSink, OwnsRoots, problem_at
from holdfast.config.units import VALUE_ERROR

HIDDEN = "_holdfast"
"""The folder below a root that holds what is not data."""

Path = tuple[str | int, ...]


def roots_differ(pipelines: Mapping[str, Any]) -> Mapping[str, Any]:
    """Refuse two sinks with one root, and a root inside of what another sink hides, at the second of the two."""
    seen: dict[str, str] = {}
    for pipeline, settings in pipelines.items():
        for path, root, sink in _roots(settings.sinks):
            for other, owner in seen.items():
                if root == other or _hides(root, other) or _hides(other, root):
                    raise problem_at((pipeline, "sinks", *path), VALUE_ERROR, _message(owner, same=root == other))
            seen[root] = f"sink {sink!r} of pipeline {pipeline!r}"
    return pipelines


def _hides(root: str, other: str) -> bool:
    return f"{other}/".startswith(f"{root}/{HIDDEN}/")


def _roots(sinks: tuple[NamedSink, ...]) -> Iterator[tuple[Path, str, str]]:
    for index, sink in enumerate(sinks):
        config = sink.use.config
        for setting, root in config.owned_roots().items() if isinstance(config, OwnsRoots) else ():
            yield (index, sink.use.name, *setting), root.rstrip("/"), sink.name


def _message(owner: str, *, same: bool) -> str:
    if same:
        return f"is the root of {owner} already; one would delete what the other has staged, give each its own root"
    return f"and the root of {owner} must not lie in the folder `{HIDDEN}` of the other; give each its own root"
