"""Finds stores, sources, processors, sinks and formats.

A package offers a plugin through an entry point of the group `holdfast.<kind>`. The entry point names a
module that has a `PLUGIN`, or the `Plugin` itself:

    [project.entry-points."holdfast.stores"]
    sqlite = "holdfast.stores.sqlite:PLUGIN"

A configuration file may also name a plugin as `my_package.my_module:PLUGIN`.
"""

from __future__ import annotations

import difflib
import importlib
import operator
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from types import ModuleType
from typing import Any, Literal, get_args

from holdfast.errors import UsageError

Kind = Literal["stores", "sources", "processors", "sinks", "formats"]
KINDS: tuple[Kind, ...] = get_args(Kind)

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_MODULE_ATTRIBUTE = re.compile(r"[A-Za-z_][A-Za-z0-9_.]*:[A-Za-z_][A-Za-z0-9_.]*")


@dataclass(frozen=True)
class Plugin:
    """One plugin: its settings, and how it is built from them.

    `config` is a pydantic model; `build` is called with an instance of it.
    """

    name: str
    config: type[Any]
    build: Callable[..., Any]
    summary: str

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise ValueError(f"a plugin's name may contain only letters, digits, '_' and '-', not {self.name!r}")


@contextmanager
def needing(what: str, package: str, extra: str) -> Iterator[None]:
    """Wrap imports of an optional package: if it is missing, the `UsageError` names what to install."""
    try:
        yield
    except ImportError as error:
        raise UsageError(f"{what} needs {package}: pip install 'holdfast[{extra}]' ({error})") from error


def server(name: str) -> Callable[..., None]:
    """Return the server of this name: a function that serves until the process is asked to stop.

    Servers are the entry points of the group `holdfast.servers`; commands find them here and need not import `web`.
    Raises `UsageError` if there is none of this name.
    """
    for offer in entry_points(group="holdfast.servers", name=name):
        found: Callable[..., None] = offer.load()
        return found
    raise UsageError(f"the server {name!r} is not installed; install holdfast[web]")


class Registry:
    """The available plugins, by kind and name. A module is imported only when it is needed."""

    def __init__(
        self,
        plugins: Mapping[Kind, Iterable[Plugin]] | None = None,
        discover: Callable[[Kind], Iterable[EntryPoint]] = lambda _: (),
    ) -> None:
        self._loaded: dict[tuple[Kind, str], Plugin] = {
            (kind, plugin.name): plugin for kind, offered in (plugins or {}).items() for plugin in offered
        }
        self._discover = discover
        self._offered: dict[Kind, dict[str, list[EntryPoint]]] = {}

    @classmethod
    def installed(cls) -> Registry:
        """Return the plugins of all installed packages."""
        offers = cache(entry_points)  # reads the metadata of every package
        return cls(discover=lambda kind: offers().select(group=f"holdfast.{kind}"))

    def names(self, kind: Kind) -> tuple[str, ...]:
        """Return the names of the plugins of this kind, sorted. Imports nothing."""
        given = {name for of_kind, name in self._loaded if of_kind == kind and ":" not in name}
        return tuple(sorted(given | self._entry_points(kind).keys()))

    def get(self, kind: Kind, name: str) -> Plugin:
        """Return the plugin of this name, or of this `module:ATTRIBUTE`. Raises `UsageError` if there is none."""
        plugin = self._loaded.get((kind, name))
        if plugin is None:
            plugin = self._loaded[kind, name] = self._load(kind, name)
        return plugin

    def _load(self, kind: Kind, name: str) -> Plugin:
        if _MODULE_ATTRIBUTE.fullmatch(name):
            return _load(kind, name, lambda: _import(name), "")
        offers = self._entry_points(kind).get(name, [])
        if not offers:
            raise UsageError(_not_installed(kind, name, self.names(kind)))
        if len(offers) > 1:
            packages = " and ".join(sorted(_package(offer) for offer in offers))
            raise UsageError(f"{singular(kind)} {name!r} is offered by {packages}; uninstall all but one")
        plugin = _load(kind, name, offers[0].load, f" of {_package(offers[0])}")
        if plugin.name != name:
            raise UsageError(
                f"{singular(kind)} {name!r} of {_package(offers[0])} has the name {plugin.name!r} in its module"
            )
        return plugin

    def _entry_points(self, kind: Kind) -> dict[str, list[EntryPoint]]:
        if kind not in self._offered:
            by_name: dict[str, list[EntryPoint]] = {}
            for offer in self._discover(kind):
                others = by_name.setdefault(offer.name, [])
                # An editable install may be found twice; the same target is not a conflict.
                if all(offer.value != other.value for other in others):
                    others.append(offer)
            self._offered[kind] = by_name
        return self._offered[kind]


def singular(kind: Kind) -> str:
    """Return the singular of a kind."""
    return kind.removesuffix("s")


def did_you_mean(word: str, candidates: Iterable[str]) -> str:
    """Return `; did you mean 'x'?` for the most similar candidate, or an empty string."""
    close = most_similar(word, candidates)
    return f"; did you mean {close!r}?" if close else ""


def most_similar(word: str, candidates: Iterable[str]) -> str:
    """Return the most similar candidate, or an empty string if none is similar."""
    return next(iter(difflib.get_close_matches(word, list(candidates), n=1)), "")


def _not_installed(kind: Kind, name: str, names: tuple[str, ...]) -> str:
    hint = did_you_mean(name, names) or ";"
    return f"{singular(kind)} {name!r} is not installed{hint} installed: {', '.join(names) or 'none'}"


def _load(kind: Kind, name: str, load: Callable[[], object], origin: str) -> Plugin:
    try:
        found = load()
        plugin = found.PLUGIN if isinstance(found, ModuleType) else found
    except (Exception, SystemExit) as error:  # a module that exits when imported must not end the command
        reason = f"{type(error).__name__}: {error}"
        raise UsageError(f"{singular(kind)} {name!r}{origin} cannot be loaded: {reason}") from error
    if not isinstance(plugin, Plugin):
        raise UsageError(f"{singular(kind)} {name!r}{origin} is not a Plugin but a {type(plugin).__name__}")
    return plugin


def _import(path: str) -> object:
    module, _, attribute = path.partition(":")
    return operator.attrgetter(attribute)(importlib.import_module(module))


def _package(offer: EntryPoint) -> str:
    return f"package {offer.dist.name!r}" if offer.dist else offer.value
