"""Routes as columns of the frame, where Spark's optimiser sees their conditions."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING

from holdfast.config.sinks import DEFAULT_ROUTE
from holdfast.errors import Refused
from holdfast.flow.pipeline import Routes
from holdfast.spark.failures import Planning, readable

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

ROUTE_COLUMN = "_holdfast_to_"
"""Prefix of the columns that are true for the rows of a sink with routes."""


def routed(frame: DataFrame, routes: Routes, planning: Planning) -> tuple[dict[str, Column], dict[str, str]]:
    """Columns that are true where a row belongs to a sink, by name; and by sink the name of its column.

    Sinks with the same routes share a column. Raises `Refused` for text that is not a condition over these rows.
    """
    matching = _matching(frame, routes, planning)
    columns: dict[str, Column] = {}
    names: dict[frozenset[str], str] = {}
    for of_sink in map(frozenset, routes.by_sink.values()):
        if of_sink not in names:
            names[of_sink] = f"{ROUTE_COLUMN}{len(names)}"
            columns[names[of_sink]] = _any([matching[route] for route in sorted(of_sink)]).alias(names[of_sink])
    return columns, {sink: names[frozenset(of_sink)] for sink, of_sink in routes.by_sink.items()}


def _matching(frame: DataFrame, routes: Routes, planning: Planning) -> dict[str, Column]:
    """By route, whether a row matches; never null."""
    matching = {}
    for name, text in routes.conditions.items():
        with planning("routes", name):
            matching[name] = _condition(frame, name, text)
    return matching | {DEFAULT_ROUTE: ~_any(list(matching.values()))}


def _condition(frame: DataFrame, name: str, text: str) -> Column:
    from pyspark.errors import PySparkException
    from pyspark.sql import functions as sql
    from pyspark.sql.types import BooleanType

    try:
        condition = sql.expr(text)
        kind = frame.select(condition).schema[0].dataType
    except PySparkException as wrong:
        raise Refused(f"route {name!r}: {readable(wrong)}") from wrong
    if not isinstance(kind, BooleanType):
        raise Refused(f"route {name!r} must be true or false, and is of type {kind.simpleString()}")
    return sql.coalesce(condition, sql.lit(False))


def _any(conditions: Sequence[Column]) -> Column:
    from pyspark.sql import functions as sql

    return reduce(or_, conditions, sql.lit(False))
