"""The processor `drop_events`: leave out the rows for which a condition holds."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from holdfast.config import Options
from holdfast.flow.processor import Processor
from holdfast.flow.source import FAULT_COLUMN
from holdfast.registry import Plugin

NAME = "drop_events"


class DropConfig(Options):
    """What goes."""

    drop_when: str = Field(min_length=1, description="Condition in Spark SQL; rows for which it is true go.")


class DropEvents(Processor):
    """Rows with a fault stay."""

    name = NAME
    touches_faults = False

    def __init__(self, config: DropConfig) -> None:
        self._when = config.drop_when

    @property
    def changes_rows(self) -> bool:
        return False

    def apply(self, frame: Any) -> Any:
        from pyspark.sql import functions as sql

        goes = sql.coalesce(sql.expr(self._when), sql.lit(False))
        return frame.where(sql.col(FAULT_COLUMN).isNotNull() | ~goes)


PLUGIN = Plugin(NAME, DropConfig, DropEvents, "Leave out rows for which a condition holds.")
