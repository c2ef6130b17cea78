"""Routes as columns of the frame: true where a row belongs to a sink. Spark's optimiser sees the conditions."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING

from holdfast.config.routes import DEFAULT_ROUTE
from holdfast.errors import Refused
from holdfast.flow.routes import Routes
from holdfast.spark.failures import readable

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

TAKEN = "_holdfast_to_"
"""Begins the names of these columns."""


def routed(frame: DataFrame, routes: Routes) -> tuple[dict[str, Column], dict[str, str]]:
    """Columns by name, and by sink the name of its column; sinks with the same routes share one.

    Raises `Refused` for a condition that is none over these rows.
    """
    matching = _matching(frame, routes) if routes.by_sink else {}
    columns: dict[str, Column] = {}
    names: dict[frozenset[str], str] = {}
    for asked in map(frozenset, routes.by_sink.values()):
        if asked not in names:
            names[asked] = f"{TAKEN}{len(names)}"
            columns[names[asked]] = _any([matching[route] for route in sorted(asked)]).alias(names[asked])
    return columns, {sink: names[frozenset(asked)] for sink, asked in routes.by_sink.items()}


def _matching(frame: DataFrame, routes: Routes) -> dict[str, Column]:
    """By route whether a row matches; never null."""
    matching = {name: _condition(frame, name, text) for name, text in routes.conditions.items()}
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
