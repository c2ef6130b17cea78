"""The processor: maps a DataFrame to a DataFrame, or Arrow rows to Arrow rows inside the staging task."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from holdfast.flow.staging import StagedBatch


class TaskStep(ABC):
    """A step on Arrow record batches. Picklable; one instance serves one attempt of one task."""

    @abstractmethod
    def inputs(self, wanted: frozenset[str] | None) -> frozenset[str] | None:
        """The data columns that the step needs in order to produce `wanted`; None stands for all columns."""

    @abstractmethod
    def apply(self, batch: StagedBatch, rows: Any) -> Any:
        """The rows of one batch after this step; other batches may have other columns.

        Keeps the system columns (`holdfast.flow.source.SYSTEM_COLUMNS`), may set a fault where there is none, and may
        add an output folder (`OUTPUT_FOLDER_COLUMN`). A row may be left out; a row with a fault may not. An exception
        fails the batch.
        """


class Processor(ABC):
    """One step between reading and staging. Lazy: it adds to the plan and runs nothing."""

    may_fault: bool = False
    """Whether the processor sets faults; the engine then keeps each record as it was read until the last processor."""

    keeps_rows: bool = False
    """Whether the processor neither drops nor adds rows. Otherwise the engine counts the rows that it drops."""
    touches_faults: bool = True
    """Whether the processor may set faults, or drop rows that have one: the engine checks that it drops none."""

    @property
    def name(self) -> str:
        """The name for people."""
        return type(self).__name__

    @property
    def changes_rows(self) -> bool:
        """Whether the processor may change data columns, or make several rows from one row.

        A step that only leaves rows out does not.
        """
        return True

    @abstractmethod
    def apply(self, frame: Any) -> Any:
        """The frame with this step added.

        Must keep the system columns (`holdfast.flow.source.SYSTEM_COLUMNS`) and every row that carries a fault.
        """

    def in_task(self) -> TaskStep | None:
        """The same work as a step inside the staging task, which saves a trip through Python; None if impossible.

        It is used for the last processors of a pipeline. Its columns may then differ by topic, which one DataFrame
        cannot have.
        """
        return None
