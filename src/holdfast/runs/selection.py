"""Which past records a run takes: by offset, by time, and by the partition names that the parser sets."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from holdfast.errors import UsageError
from holdfast.flow.kafka_columns import TIMESTAMP
from holdfast.flow.processor import Processor, TaskStep
from holdfast.flow.source import FAULT_COLUMN, OUTPUT_FOLDER_COLUMN
from holdfast.flow.staging import StagedBatch


@dataclass(frozen=True)
class Between:
    """A range of offsets or times, `end` exclusive; None means no bound."""

    offsets: tuple[int, int | None] = (0, None)
    times: tuple[datetime | None, datetime | None] = (None, None)

    @property
    def by_time(self) -> bool:
        return self.times != (None, None)


def parse_between(text: str) -> Between:
    """Parse `100..200`, `100..`, or times such as `2026-01-01..2026-01-02T12:00`. Raises `UsageError`."""
    first, dots, last = text.partition("..")
    if not dots:
        raise UsageError(f"--between {text!r} must be FROM..TO, two offsets or two times; either may be left out")
    if all(part == "" or part.isdigit() for part in (first, last)):
        return Between(offsets=(int(first or 0), int(last) if last else None))
    return Between(times=(parse_time(first) if first else None, parse_time(last) if last else None))


def parse_time(text: str) -> datetime:
    """Parse a time in ISO 8601; UTC unless it names an offset. Raises `UsageError`."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise UsageError(f"{text!r} is neither an offset nor a time such as 2026-01-01T12:00:00Z") from error
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


class TimeSpan(Processor):
    """Leaves out records whose Kafka timestamp is outside the range; records with a fault stay."""

    name = "between"
    touches_faults = False

    def __init__(self, between: Between) -> None:
        self._start, self._end = between.times

    @property
    def changes_rows(self) -> bool:
        return False

    def apply(self, frame: Any) -> Any:
        from pyspark.sql import functions as sql

        within = sql.lit(True)
        if self._start is not None:
            within = within & (sql.col(TIMESTAMP) >= sql.lit(self._start))
        if self._end is not None:
            within = within & (sql.col(TIMESTAMP) < sql.lit(self._end))
        return frame.where(within | sql.col(FAULT_COLUMN).isNotNull())

    def in_task(self) -> TaskStep:
        return _TimeStep(self._start, self._end)


@dataclass(frozen=True)
class _TimeStep(TaskStep):
    start: datetime | None
    end: datetime | None

    def inputs(self, wanted: frozenset[str] | None) -> frozenset[str] | None:
        return None if wanted is None else wanted | {TIMESTAMP}

    def apply(self, batch: StagedBatch, rows: Any) -> Any:  # noqa: ARG002 - the same for every batch
        import pyarrow as pa
        import pyarrow.compute as pc

        kind = rows.schema.field(TIMESTAMP).type
        within = rows.column(FAULT_COLUMN).is_valid()
        inside = pa.array([True] * rows.num_rows)
        if self.start is not None:
            inside = pc.and_(inside, pc.greater_equal(rows.column(TIMESTAMP), pa.scalar(self.start, kind)))
        if self.end is not None:
            inside = pc.and_(inside, pc.less(rows.column(TIMESTAMP), pa.scalar(self.end, kind)))
        return rows.filter(pc.or_(within, pc.fill_null(inside, False)))


class OnlyNames(Processor):
    """Leaves out records with other partition names; records with a fault stay. Runs after the parser."""

    name = "partition_names"
    touches_faults = False

    def __init__(self, names: str) -> None:
        self._names = names.strip("/")

    @property
    def changes_rows(self) -> bool:
        return False

    def apply(self, frame: Any) -> Any:
        from pyspark.sql import functions as sql

        output_folder = sql.col(OUTPUT_FOLDER_COLUMN)
        chosen = (output_folder == self._names) | output_folder.startswith(f"{self._names}/")
        return frame.where(chosen | sql.col(FAULT_COLUMN).isNotNull())

    def in_task(self) -> TaskStep:
        return _NamesStep(self._names)


@dataclass(frozen=True)
class _NamesStep(TaskStep):
    names: str

    def inputs(self, wanted: frozenset[str] | None) -> frozenset[str] | None:
        return wanted

    def apply(self, batch: StagedBatch, rows: Any) -> Any:  # noqa: ARG002 - the same for every batch
        import pyarrow.compute as pc

        if OUTPUT_FOLDER_COLUMN not in rows.schema.names:
            raise UsageError("--partition-names needs a parser that sets names; this pipeline has none")
        folders = rows.column(OUTPUT_FOLDER_COLUMN)
        folders = folders.dictionary_decode() if hasattr(folders, "dictionary_decode") else folders
        chosen = pc.or_(pc.equal(folders, self.names), pc.starts_with(folders, f"{self.names}/"))
        return rows.filter(pc.or_(pc.fill_null(chosen, False), rows.column(FAULT_COLUMN).is_valid()))
