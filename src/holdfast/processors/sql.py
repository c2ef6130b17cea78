"""The processor `sql`: expressions in Spark SQL, or a query."""

from __future__ import annotations

import threading
from typing import Any, Self

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from holdfast.config import Options
from holdfast.config.plugins import PLAIN_ERROR
from holdfast.errors import Refused
from holdfast.flow.processor import Processor
from holdfast.flow.source import FAULT_COLUMN, SYSTEM_COLUMNS
from holdfast.registry import Plugin

NAME = "sql"
VIEW = "records"
# Views belong to the session, and rounds are planned by several threads.
_planning = threading.Lock()


class SqlConfig(Options):
    """Expressions, or a query."""

    select: tuple[str, ...] = Field(
        (),
        description="Columns of the result, as in SELECT: `*`, `id`, `upper(name) AS name`. holdfast's columns "
        "are always kept.",
    )
    where: str | None = Field(
        None, min_length=1, description="Condition for the rows that are kept, before `select` is applied."
    )
    query: str | None = Field(
        None,
        min_length=1,
        description="A query on the view `records`. It must keep the columns _batch, _item and _fault, as "
        "SELECT * does, and the rows whose _fault is not null.",
    )

    @model_validator(mode="after")
    def _select_or_query(self) -> Self:
        if bool(self.select) == (self.query is not None):
            raise PydanticCustomError(PLAIN_ERROR, "give either `select`, a list of expressions, or `query`")
        if self.where is not None and self.query is not None:
            raise PydanticCustomError(PLAIN_ERROR, "`where` belongs to `select`; write WHERE in the query instead")
        return self


class Sql(Processor):
    """Applies expressions, which keep rows with a fault, or a query, which must keep them."""

    name = NAME

    def __init__(self, config: SqlConfig) -> None:
        self._config = config
        self.touches_faults = config.query is not None

    def apply(self, frame: Any) -> Any:
        return _selected(frame, self._config) if self._config.query is None else _queried(frame, self._config.query)


def _selected(frame: Any, config: SqlConfig) -> Any:
    from pyspark.sql import functions as sql

    from holdfast.spark.columns import OUR_COLUMNS, data_columns, quoted

    if config.where is not None:
        frame = frame.where(sql.col(FAULT_COLUMN).isNotNull() | sql.expr(config.where))
    ours = [name for name in OUR_COLUMNS if name in frame.columns]
    every = [quoted(name) for name in data_columns(frame)]
    chosen = [text for item in config.select for text in (every if item.strip() == "*" else [item])]
    return frame.selectExpr(*ours, *chosen)


def _queried(frame: Any, query: str) -> Any:
    with _planning:
        frame.createOrReplaceTempView(VIEW)
        try:
            result = frame.sparkSession.sql(query)
        finally:
            frame.sparkSession.catalog.dropTempView(VIEW)
    dropped = [name for name in SYSTEM_COLUMNS if name not in result.columns]
    if dropped:
        raise Refused(f"{NAME}: the query dropped {', '.join(dropped)}; it must keep {', '.join(SYSTEM_COLUMNS)}")
    return result


PLUGIN = Plugin(NAME, SqlConfig, Sql, "Apply expressions in Spark SQL, or a query.")
