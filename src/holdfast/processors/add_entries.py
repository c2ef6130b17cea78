"""The processor `add_entries`: columns with a value or an expression."""

from __future__ import annotations

from typing import Any, Self

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from holdfast.config import Options
from holdfast.config.plugins import PLAIN_ERROR
from holdfast.flow.processor import Processor
from holdfast.processors._steps import refuse_ours
from holdfast.registry import Plugin

NAME = "add_entries"


class Addition(Options):
    """One column."""

    key: str = Field(min_length=1, description="The column.")
    value: str | bool | int | float | None = Field(None, description="The same value for every row.")
    value_expression: str | None = Field(
        None, min_length=1, description="Expression in Spark SQL, such as `upper(name)`; instead of `value`."
    )
    add_when: str | None = Field(None, min_length=1, description="Condition in Spark SQL; all rows unless given.")
    overwrite_if_key_exists: bool = Field(
        False,
        description="Take the place of values that are there; else only nulls of a column that exists are filled.",
    )

    @model_validator(mode="after")
    def _one_of_both(self) -> Self:
        if (self.value is None) == (self.value_expression is None):
            raise PydanticCustomError(PLAIN_ERROR, "give either `value` or `value_expression`")
        return self


class AddConfig(Options):
    """What is added."""

    entries: tuple[Addition, ...] = Field(min_length=1, description="Columns, in order; each may use those before it.")


class AddEntries(Processor):
    name = NAME
    keeps_rows = True
    touches_faults = False

    def __init__(self, config: AddConfig) -> None:
        self._entries = config.entries

    def apply(self, frame: Any) -> Any:
        refuse_ours((one.key for one in self._entries), NAME)
        for one in self._entries:
            frame = frame.withColumn(one.key, _value(frame, one))
        return frame


def _value(frame: Any, one: Addition) -> Any:
    from pyspark.sql import functions as sql

    from holdfast.spark.columns import quoted

    made = sql.lit(one.value) if one.value_expression is None else sql.expr(one.value_expression)
    before = sql.col(quoted(one.key)) if one.key in frame.columns else None
    if before is not None and not one.overwrite_if_key_exists:
        made = sql.coalesce(before, made.cast(frame.schema[one.key].dataType))
    if one.add_when is None:
        return made
    applies = sql.coalesce(sql.expr(one.add_when), sql.lit(False))
    return sql.when(applies, made).otherwise(sql.lit(None) if before is None else before)


PLUGIN = Plugin(NAME, AddConfig, AddEntries, "Add columns with a value or an expression.")
