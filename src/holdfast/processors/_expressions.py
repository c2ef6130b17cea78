"""Shared by processors that are Spark expressions: checks of columns, conditions, and rows on which they fail."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from holdfast.config import Options
from holdfast.errors import Refused
from holdfast.flow.source import FAULT_COLUMN
from holdfast.registry import did_you_mean

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

TAGS = "tags"


class FailingOptions(Options):
    """Settings of a processor that may fail on a row."""

    when: str | None = Field(
        None,
        min_length=1,
        description="Condition in Spark SQL; rows for which it is not true stay as they are. Default: all rows.",
    )
    on_error: Literal["dead_letter", "keep", "tag"] = Field(
        "dead_letter",
        description="What happens to a row on which the processor fails: it becomes a dead letter (`dead_letter`), "
        "or is kept "
        "with nulls for the missing values (`keep`), and with a mark in the column `tags` (`tag`).",
    )
    tags_on_failure: tuple[str, ...] = Field(
        ("failed",), min_length=1, description="Tags that `on_error: tag` adds to the column `tags`."
    )


def require(frame: DataFrame, names: Iterable[str], who: str) -> None:
    """Raise `Refused` if a column does not exist."""
    from holdfast.spark.columns import data_columns

    columns = data_columns(frame)
    for name in names:
        if name not in columns:
            hint = did_you_mean(name, columns) or f"; there are {', '.join(columns) or 'none'}"
            raise Refused(f"{who}: there is no column {name!r}{hint}")


def refuse_ours(names: Iterable[str], who: str) -> None:
    """Raise `Refused` if a column that is made or removed belongs to holdfast."""
    from holdfast.spark.columns import OUR_COLUMNS

    for name in names:
        if name in OUR_COLUMNS:
            raise Refused(f"{who}: the name {name} is reserved for holdfast")


def text_of(name: str) -> Column:
    """A column as text; bytes are read as UTF-8."""
    from pyspark.sql import functions as sql

    from holdfast.spark.columns import quoted

    return sql.col(quoted(name)).cast("string")


def applies(config: FailingOptions) -> Column:
    """Whether the condition `when` is true for a row."""
    from pyspark.sql import functions as sql

    return sql.lit(True) if config.when is None else sql.coalesce(sql.expr(config.when), sql.lit(False))


def changed(
    frame: DataFrame, config: FailingOptions, columns: Mapping[str, Column], reason: Column, drop: Iterable[str] = ()
) -> DataFrame:
    """The frame with these columns, and with `on_error` applied to the rows that have a reason.

    Where the condition `when` is not true, existing columns keep their values. `drop`: columns that are removed.
    """
    from pyspark.sql import functions as sql

    from holdfast.spark.columns import REASON_COLUMN, quoted, with_faults

    does_apply = applies(config)

    def chosen(name: str, made: Column) -> Column:
        if config.when is None:
            return made
        before = sql.col(quoted(name)) if name in frame.columns else sql.lit(None)
        return sql.when(does_apply, made).otherwise(before)

    fails = sql.when(sql.col(FAULT_COLUMN).isNull() & does_apply, reason)
    result = frame.withColumns({name: chosen(name, made) for name, made in columns.items()} | {REASON_COLUMN: fails})
    if config.on_error == "dead_letter":
        result = with_faults(result, sql.col(REASON_COLUMN))
    elif config.on_error == "tag":
        result = _tagged(result, sql.col(REASON_COLUMN).isNotNull(), config.tags_on_failure)
    return result.drop(REASON_COLUMN, *(name for name in drop if name not in columns))


def _tagged(frame: DataFrame, fails: Column, tags: Iterable[str]) -> DataFrame:
    from pyspark.sql import functions as sql

    added: Any = sql.array(*(sql.lit(tag) for tag in tags))
    none = sql.array().cast("array<string>")
    before = sql.coalesce(sql.col(TAGS), none) if TAGS in frame.columns else none
    return frame.withColumn(TAGS, sql.when(fails, sql.array_union(before, added)).otherwise(before))
