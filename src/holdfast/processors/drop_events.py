"""The processor `drop_events`: drops the rows for which a condition is true."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from holdfast.config import Options
from holdfast.flow.processor import Processor
from holdfast.flow.source import FAULT_COLUMN
from holdfast.registry import Plugin

NAME = "drop_events"


class DropConfig(Options):
    """The rows to drop."""

    drop_when: str = Field(min_length=1, description="Condition in Spark SQL; rows for which it is true are dropped.")


class DropEvents(Processor):
    """Drops rows; rows with a fault stay."""

    name = NAME
    touches_faults = False

    def __init__(self, config: DropConfig) -> None:
        self._when = config.drop_when

    @property
    def changes_rows(self) -> bool:
        return False

    def apply(self, frame: Any) -> Any:
        from pyspark.sql import functions as sql

        is_dropped = sql.coalesce(sql.expr(self._when), sql.lit(False))
        return frame.where(sql.col(FAULT_COLUMN).isNotNull() | ~is_dropped)


PLUGIN = Plugin(NAME, DropConfig, DropEvents, "Drop rows for which a condition is true.")
