"""The processor `add_entries`: adds columns with a value or an expression."""

from __future__ import annotations

from typing import Any, Self

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from holdfast.config import Options
from holdfast.config.plugins import PLAIN_ERROR
from holdfast.flow.processor import Processor
from holdfast.processors._expressions import refuse_ours
from holdfast.registry import Plugin

NAME = "add_entries"


class Addition(Options):
    """A column to add."""

    key: str = Field(min_length=1, description="Name of the column.")
    value: str | bool | int | float | None = Field(None, description="A value that is the same for every row.")
    value_expression: str | None = Field(
        None, min_length=1, description="Expression in Spark SQL, such as `upper(name)`, instead of `value`."
    )
    add_when: str | None = Field(
        None, min_length=1, description="Condition in Spark SQL for the rows that get the value. Default: all rows."
    )
    overwrite_if_key_exists: bool = Field(
        False,
        description="Replace the values of an existing column. By default only its nulls are replaced.",
    )

    @model_validator(mode="after")
    def _has_value(self) -> Self:
        if (self.value is None) == (self.value_expression is None):
            raise PydanticCustomError(PLAIN_ERROR, "give either `value` or `value_expression`")
        return self


class AddConfig(Options):
    """The columns to add."""

    entries: tuple[Addition, ...] = Field(min_length=1, description="Columns in order; each may use those before it.")


class AddEntries(Processor):
    name = NAME
    keeps_rows = True
    touches_faults = False

    def __init__(self, config: AddConfig) -> None:
        self._entries = config.entries

    def apply(self, frame: Any) -> Any:
        refuse_ours((entry.key for entry in self._entries), NAME)
        for entry in self._entries:
            frame = frame.withColumn(entry.key, _value(frame, entry))
        return frame


def _value(frame: Any, entry: Addition) -> Any:
    from pyspark.sql import functions as sql

    from holdfast.spark.columns import quoted

    made = sql.lit(entry.value) if entry.value_expression is None else sql.expr(entry.value_expression)
    before = sql.col(quoted(entry.key)) if entry.key in frame.columns else None
    if before is not None and not entry.overwrite_if_key_exists:
        made = sql.coalesce(before, made.cast(frame.schema[entry.key].dataType))
    if entry.add_when is None:
        return made
    applies = sql.coalesce(sql.expr(entry.add_when), sql.lit(False))
    return sql.when(applies, made).otherwise(sql.lit(None) if before is None else before)


PLUGIN = Plugin(NAME, AddConfig, AddEntries, "Add columns with a value or an expression.")
