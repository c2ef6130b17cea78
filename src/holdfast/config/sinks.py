"""The sinks of pipelines: their names, the routes whose rows they get, and the roots that belong to each alone."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Annotated, Any, Protocol, runtime_checkable

from pydantic import AfterValidator, Field
from pydantic_core import PydanticCustomError

from holdfast.config.plugins import BESIDE_A_SINK, PLAIN_ERROR, Name, NamedSink, PluginUse, problem_at
from holdfast.config.units import VALUE_ERROR
from holdfast.registry import did_you_mean

DEFAULT_ROUTE = "_default"
"""Name for the rows that no route matches."""
Condition = Annotated[str, Field(min_length=1)]
HIDDEN = "_holdfast"
"""Folder below a root for manifests, staged files and dead letters."""

# --- names -----------------------------------------------------------------------------------------------------------


def give_names(sinks: Any) -> Any:
    """Name each unnamed sink after its plugin, with -2, -3 and so on if that name is taken."""
    if not isinstance(sinks, list):
        return sinks
    taken = {sink["name"] for sink in sinks if isinstance(sink, dict) and isinstance(sink.get("name"), str)}
    return [_name(sink, taken) if isinstance(sink, dict) and sink and "name" not in sink else sink for sink in sinks]


def _name(sink: dict[str, Any], taken: set[str]) -> dict[str, Any]:
    plugin = next((key for key in sink if key not in BESIDE_A_SINK), "").rpartition(":")[2]
    name, number = plugin, 1
    while name in taken:
        number += 1
        name = f"{plugin}-{number}"
    taken.add(name)
    return {**sink, "name": name}


def names_differ(sinks: tuple[NamedSink, ...]) -> tuple[NamedSink, ...]:
    """Refuse two sinks with the same name. The error is at the second name."""
    seen: set[str] = set()
    for index, sink in enumerate(sinks):
        if sink.name in seen:
            raise problem_at((index, "name"), VALUE_ERROR, "is the name of another sink of this pipeline")
        seen.add(sink.name)
    return sinks


# --- routes ----------------------------------------------------------------------------------------------------------


def _check_route_name(name: str) -> str:
    if name.startswith("_"):
        raise PydanticCustomError(
            VALUE_ERROR, f"begins with '_'; such names, for example {DEFAULT_ROUTE}, are reserved"
        )
    return name


RouteName = Annotated[Name, AfterValidator(_check_route_name)]


def routes_exist(sinks: tuple[NamedSink, ...], routes: Collection[str]) -> None:
    """Refuse a sink that names a route which the pipeline does not have. The error is at the route's name."""
    for index, sink in enumerate(sinks):
        for position, route in enumerate(sink.routes or ()):
            if route not in routes and route != DEFAULT_ROUTE:
                message = f"is not a route of this pipeline{_hint(route, routes)}"
                raise problem_at((index, "routes", position), VALUE_ERROR, message)


def _hint(route: str, routes: Collection[str]) -> str:
    if not routes:
        return "; it has no routes, give them as `routes` beside `sinks`"
    return did_you_mean(route, [*routes, DEFAULT_ROUTE]) or f"; it has {', '.join(routes)}"


# --- roots -----------------------------------------------------------------------------------------------------------


@runtime_checkable
class OwnsRoots(Protocol):
    """Settings of a sink that keeps files in roots that belong to it alone."""

    def owned_roots(self) -> Mapping[tuple[str, ...], str]:
        """Return the roots by the paths of their settings; the same root is always written the same way."""


@runtime_checkable
class ReadsFolders(Protocol):
    """Settings of a source that reads a folder of this host."""

    def reads_below(self, folder: str) -> bool:
        """Return whether files below this folder, an absolute path without links, may be read."""


def roots_are_not_read(sinks: tuple[NamedSink, ...], source: Any) -> None:
    """Refuse a root that the pipeline reads: every file that it writes would be read, and written again."""
    for path, root, _ in _roots(sinks) if isinstance(source, ReadsFolders) else ():
        if source.reads_below(root):
            message = "is read by the source of this pipeline, so that its own output would be read; use another folder"
            raise problem_at(path, VALUE_ERROR, message)


def roots_differ(pipelines: Mapping[str, Any]) -> Mapping[str, Any]:
    """Refuse two sinks with the same root, and a root in the hidden folder of another.

    The error is at the second one.
    """
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


def _roots(sinks: tuple[NamedSink, ...]) -> Iterator[tuple[tuple[str | int, ...], str, str]]:
    for index, sink in enumerate(sinks):
        config = sink.use.config
        for setting, root in config.owned_roots().items() if isinstance(config, OwnsRoots) else ():
            yield (index, sink.use.name, *setting), root.rstrip("/"), sink.name


def _message(owner: str, *, same: bool) -> str:
    if same:
        return f"is already the root of {owner}; they would delete each other's staged files, give each its own root"
    return f"and the root of {owner} must not lie in each other's folder `{HIDDEN}`; give each sink its own root"


# --- functions -------------------------------------------------------------------------------------------------------


def functions_fit(sinks: tuple[NamedSink, ...], source: PluginUse, *, processed: bool) -> None:
    """Refuse a function whose source has no shards or whose rows would be processed.

    Also refuse a source that only functions can read if the pipeline has no function.

    The settings of a sink that calls handlers have `reads_shards`; those of a source say what it is by `has_shards` and
    `only_for_functions`. A source that does not say whether it has shards is judged when the pipeline is built.
    """
    functions = [index for index, sink in enumerate(sinks) if getattr(sink.use.config, "reads_shards", False)]
    if not functions and getattr(source.config, "only_for_functions", False):
        message = f"the source {source.name} is read by functions only: use the sink `function`"
        raise problem_at((0, sinks[0].use.name), PLAIN_ERROR, message)
    for index in functions:
        if getattr(source.config, "has_shards", None) is False:
            message = f"a function reads shards, which {source.name} does not have; use stream, kafka or kinesis"
        elif processed:
            message = "a pipeline with a function has no processors and no routes: the handler does that"
        else:
            continue
        raise problem_at((index, sinks[index].use.name), PLAIN_ERROR, message)


# --- tables ----------------------------------------------------------------------------------------------------------


def tables_fit(sinks: tuple[NamedSink, ...], source: PluginUse) -> None:
    """Refuse tables that would go elsewhere than to staged indexes, and staged indexes without tables.

    The settings of a source of tables have `only_for_reindex`, those of a sink with staged indexes `stages_indexes`.
    """
    staged = [index for index, sink in enumerate(sinks) if getattr(sink.use.config, "stages_indexes", False)]
    has_tables = getattr(source.config, "only_for_reindex", False)
    if has_tables and (len(sinks) > 1 or not staged):
        index = next((index for index in range(len(sinks)) if index not in staged), 1)
        message = (
            f"the source {source.name} is read by `holdfast reindex` only: use one sink, opensearch with mode: staged"
        )
        raise problem_at((index, sinks[index].use.name), PLAIN_ERROR, message)
    if staged and not has_tables:
        message = "mode: staged is for tables of the source database; leave it out, and give index"
        raise problem_at((staged[0], sinks[staged[0]].use.name, "mode"), PLAIN_ERROR, message)


# --- topics of dead letters ------------------------------------------------------------------------------------------


@runtime_checkable
class ReadsTopics(Protocol):
    """Settings of a source that reads topics of Kafka."""

    def reads_topic(self, bootstrap_servers: str, topic: str) -> bool:
        """Return whether the source reads this topic of these brokers."""


def letters_are_not_read(sinks: tuple[NamedSink, ...], source: Any) -> None:
    """Refuse a topic of dead letters that the pipeline reads: a letter would fail again, and become another one."""
    for index, sink in enumerate(sinks):
        topic = getattr(getattr(sink.use.config, "dead_letters", None), "kafka", None)
        if topic is None or not isinstance(source, ReadsTopics):
            continue
        if source.reads_topic(topic.bootstrap_servers, topic.topic):
            message = "is read by this pipeline, so that every dead letter would become another one"
            raise problem_at((index, sink.use.name, "dead_letters", "kafka", "topic"), VALUE_ERROR, message)
