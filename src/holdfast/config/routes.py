"""Routes of a pipeline: conditions by name, and the sinks that ask for them."""

from __future__ import annotations

from collections.abc import Collection
from typing import Annotated

from pydantic import AfterValidator, Field
from pydantic_core import PydanticCustomError

from holdfast.config.plugins import Name, NamedSink, problem_at
from holdfast.config.units import VALUE_ERROR
from holdfast.registry import did_you_mean

DEFAULT_ROUTE = "_default"
"""Stands for the rows that no route matches."""


def _check_route_name(name: str) -> str:
    if name.startswith("_"):
        raise PydanticCustomError(VALUE_ERROR, f"begins with '_'; such names, as {DEFAULT_ROUTE}, have a meaning")
    return name


RouteName = Annotated[Name, AfterValidator(_check_route_name)]
Condition = Annotated[str, Field(min_length=1)]


def routes_are_known(sinks: tuple[NamedSink, ...], routes: Collection[str]) -> None:
    """Refuse a sink that asks for a route which the pipeline does not have, at the route's name."""
    for index, sink in enumerate(sinks):
        for place, route in enumerate(sink.routes or ()):
            if route not in routes and route != DEFAULT_ROUTE:
                message = f"is no route of this pipeline{_hint(route, routes)}"
                raise problem_at((index, "routes", place), VALUE_ERROR, message)


def _hint(route: str, routes: Collection[str]) -> str:
    if not routes:
        return "; it has none, give them as `routes` beside `sinks`"
    return did_you_mean(route, [*routes, DEFAULT_ROUTE]) or f"; it has {', '.join(routes)}"
