"""The processor `filter`: keeps the rows for which a condition is true."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from holdfast.config import Options
from holdfast.flow.processor import Processor
from holdfast.flow.source import FAULT_COLUMN
from holdfast.registry import Plugin

NAME = "filter"


class FilterConfig(Options):
    """The rows to keep."""

    where: str = Field(
        min_length=1, description="Condition in Spark SQL; rows for which it is false or null are dropped."
    )


class Filter(Processor):
    """Keeps rows for which the condition is true, and every row with a fault."""

    name = NAME
    touches_faults = False

    def __init__(self, where: str) -> None:
        self._where = where

    @property
    def changes_rows(self) -> bool:
        return False

    def apply(self, frame: Any) -> Any:
        from pyspark.sql import functions as sql

        return frame.where(sql.col(FAULT_COLUMN).isNotNull() | sql.expr(self._where))


PLUGIN = Plugin(NAME, FilterConfig, lambda config: Filter(config.where), "Keep rows for which a condition is true.")
