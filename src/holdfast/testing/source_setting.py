"""What a subclass of `SourceBehaviour` defines, and how the suite plans and reads, without an engine."""

from __future__ import annotations

import json
import pickle
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from holdfast.errors import BatchError, SourceUnavailable
from holdfast.flow.batch import Batch, Close, Cut, Done, Limits, Plan, Wait
from holdfast.flow.fault import BATCH, CUT, UNAVAILABLE, dead_letter, decode_fault, record_fault
from holdfast.flow.letter import Letter, LetterId, letter_of, new_letters
from holdfast.flow.source import (
    BATCH_COLUMN,
    FAULT_COLUMN,
    ITEM_COLUMN,
    OPTIONAL_COLUMNS,
    SYSTEM_COLUMNS,
    CutsShort,
    Source,
)
from holdfast.flow.staging import StagedBatch
from holdfast.leases.lease import Counts, Json, Lease, Ownership, Partition, Status, new_lease

PIPELINE = "suite"
MANY_ROUNDS = 500
OUR_COLUMNS = frozenset((*SYSTEM_COLUMNS, *OPTIONAL_COLUMNS))


@dataclass(frozen=True)
class ReadBatch:
    """A batch, the rows of its records in order of items, and the position after it."""

    batch: Batch
    rows: list[dict[str, Any]]
    end: Json


class SourceSetting:
    """What a subclass of `SourceBehaviour` defines, and methods that use a source as the loop does."""

    records: int
    """Number of records in all partitions; at least two in each."""
    small = Limits(max_bytes=64, max_records=2)
    """Limits under which a partition takes several batches."""
    run = ""
    """Set to True for a source that is only used by runs."""
    positions_are_items = True
    """Set to False for `OffsetPositions` whose offsets are not the items of the rows."""

    @abstractmethod
    def make_source(self) -> Source:
        """A new instance over the same data. Data that an earlier instance has deleted is restored."""

    def make_unreachable_source(self) -> Source | None:
        """A source whose server or folder does not respond; None if that cannot happen."""
        return None

    def partitions(self, source: Source, state: dict[str, Any] | None = None) -> list[Partition]:
        """The partitions that discovery finds. Override it for a source of runs."""
        return [found for found in source.discover({} if state is None else state) if found is not None]

    def pass_time(self, seconds: float) -> None:
        """Let time pass for the source that was made last; called when its plan is to wait."""

    def make_source_beside(self) -> Source:
        """Another instance over the remaining data, while the first still reads. It is not opened."""
        return self.make_source()

    # --- as the loop uses a source -----------------------------------------------------------------------------

    @contextmanager
    def opened(self) -> Iterator[Source]:
        source = self.make_source()
        try:
            source.open()
            yield source
        finally:
            source.close()

    def leases(self, source: Source) -> list[Lease]:
        rows = [new_lease(PIPELINE, found, "w", run=self.run, now=0.0) for found in self.partitions(source)]
        return [replace(row, ownership=Ownership(Status.ASSIGNED, "node", 1)) for row in rows]

    def plan(self, source: Source, lease: Lease, limits: Limits) -> Plan:
        """The plan when all existing records are due."""
        (plan,) = source.plan([lease], limits)
        for _ in range(3):
            if not isinstance(plan, Wait):
                break
            self.pass_time(max(plan.seconds, 1.0))
            (plan,) = source.plan([lease], limits)
        return plan

    def planned(self, source: Source, leases: Sequence[Lease], limits: Limits) -> list[Batch]:
        """The next batch of each lease that has one."""
        plans = [(lease, self.plan(source, lease, limits)) for lease in leases]
        for lease, plan in plans:
            assert isinstance(plan, Cut | Wait | Done | Close), f"{lease.key} cannot be planned: {plan!r}"
        return [
            Batch(f"b{number}", lease, source.name(lease), plan)
            for number, (lease, plan) in enumerate(plans)
            if isinstance(plan, Cut)
        ]

    def walk(self, source: Source, spark: Any, limits: Limits) -> dict[str, list[ReadBatch]]:
        """By key, every batch of every partition; the batches of a round are read in one call, as by a node."""
        return self._walked(source, spark, self.leases(source), limits)

    def walk_of(self, source: Source, spark: Any, lease: Lease, limits: Limits) -> list[ReadBatch]:
        return self._walked(source, spark, [lease], limits)[lease.key]

    def _walked(
        self, source: Source, spark: Any, leases: Sequence[Lease], limits: Limits
    ) -> dict[str, list[ReadBatch]]:
        parts: dict[str, list[ReadBatch]] = {lease.key: [] for lease in leases}
        going = list(leases)
        for _ in range(MANY_ROUNDS):
            batches = self.planned(source, going, limits)
            if not batches:
                return parts
            rows = read_batches(source, spark, batches)
            going = []
            for batch in batches:
                part = finished(source, batch, rows[batch.id])
                before = [earlier.end for earlier in parts[batch.lease.key][-1:]]
                assert before in ([], [batch.cut.start]), "a batch does not begin where the last one ended"
                parts[batch.lease.key].append(part)
                going.append(at(batch.lease, part.end, len(part.rows)))
        raise AssertionError(f"{MANY_ROUNDS} batches and no end: the source does not advance")


def through_json(value: Any) -> Any:
    """The value after a round trip through the store's JSON."""
    return json.loads(json.dumps(value))


def at(lease: Lease, position: Json, processed: int = 0) -> Lease:
    """The lease after a commit that ended at this position."""
    counts = lease.progress.counts + Counts(processed, processed)
    return replace(lease, progress=replace(lease.progress, position=through_json(position), counts=counts))


def records(parts: Sequence[ReadBatch]) -> list[dict[str, Any]]:
    """The rows of all batches, without the columns that identify the batch."""
    return [{name: cell for name, cell in row.items() if name != BATCH_COLUMN} for part in parts for row in part.rows]


def columns_of(rows: Any) -> list[str]:
    """The columns of what `Source.read` returned."""
    return list(rows.schema.names)


def finished(source: Source, batch: Batch, rows: list[dict[str, Any]]) -> ReadBatch:
    """The batch as the engine would report it: cut short where the source has cut it."""
    cuts = {row[ITEM_COLUMN]: decode_fault(row[FAULT_COLUMN]).raw for row in rows if _kind(row) == CUT}
    if not cuts:
        return ReadBatch(batch, rows, batch.cut.end)
    end = min(cuts)
    kept = [row for row in rows if row[ITEM_COLUMN] < end]
    if (named := cuts[end]) is not None:
        return ReadBatch(batch, kept, json.loads(named))
    assert isinstance(source, CutsShort), "only a source with CutsShort may cut a batch short without its position"
    return ReadBatch(batch, kept, source.cut_short(batch, end))


def letters_of(batch: StagedBatch, items: Sequence[int]) -> list[Letter]:
    """The letters that a sink would keep for these records, which are small."""
    sent = pickle.loads(pickle.dumps(batch))  # noqa: S301 - our own bytes
    made = new_letters(sent, [(item, record_fault("bad", b"")) for item in items])
    lines = [dead_letter(batch.pipeline, batch.key, letter.item, letter.fault, letter.more) for letter in made]
    return [letter_of(json.loads(line), LetterId("file", number), None, None) for number, line in enumerate(lines)]


def comparable(row: Mapping[str, Any]) -> dict[str, Any]:
    """The data columns, with times as numbers: Spark's have the zone of this host, and Arrow's have their own."""
    data = {name: value for name, value in row.items() if name not in OUR_COLUMNS}
    return {name: value.timestamp() if isinstance(value, datetime) else value for name, value in data.items()}


def read_batches(
    source: Source, spark: Any, batches: Sequence[Batch], columns: frozenset[str] | None = None
) -> dict[str, list[dict[str, Any]]]:
    """The rows of each batch by its id, in order of items. Raises as the engine does for faults of a batch."""
    found: dict[str, list[dict[str, Any]]] = {batch.id: [] for batch in batches}
    numbers = {number: batch.id for number, batch in enumerate(batches)}
    for row in _rows(source.read(spark, batches, columns)):
        if _kind(row) == UNAVAILABLE:
            raise SourceUnavailable(decode_fault(row[FAULT_COLUMN]).reason)
        if _kind(row) == BATCH:
            raise BatchError(decode_fault(row[FAULT_COLUMN]).reason)
        key = row[BATCH_COLUMN]
        found[numbers.get(key, key)].append({**row, BATCH_COLUMN: numbers.get(key, key)})
    return {key: sorted(rows, key=lambda row: int(row[ITEM_COLUMN])) for key, rows in found.items()}


def _rows(rows: Any) -> Iterator[dict[str, Any]]:
    """Rows of a frame, or of tasks, which are pickled as for real tasks."""
    if hasattr(rows, "collect"):
        yield from (row.asDict(recursive=True) for row in rows.collect())
        return
    sent = pickle.loads(pickle.dumps(rows))  # noqa: S301 - our own bytes
    for task in range(sent.tasks):
        for portion in sent.rows(task):
            yield from portion.to_pylist()


def _kind(row: dict[str, Any]) -> str | None:
    fault = row.get(FAULT_COLUMN)
    return None if fault is None else decode_fault(fault).kind
