"""What a subclass of `SinkBehaviour` defines, and how the suite stages and publishes."""

from __future__ import annotations

import json
import pickle
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pytest

from holdfast.flow.batch import Batch, Cut, Name
from holdfast.flow.fault import Fault, record_fault
from holdfast.flow.letter import SourceRecord
from holdfast.flow.sink import Publication, PublishResult, Sink, StagesByBatch
from holdfast.flow.staging import StagedBatch, Stager, Staging
from holdfast.leases.lease import Commit, Json, Lease, Ownership, Status

PIPELINE = "suite"
NAME = Name("orders", "0")


def record(number: int) -> str:
    """The column `value` of the record with that item."""
    return json.dumps({"id": f"{number:06d}"})


def lease_at(
    *,
    label: str = "0",
    token: int = 1,
    sequence: int = 0,
    commit_id: str = "",
    receipts: Mapping[str, Json] | None = None,
) -> Lease:
    """The row of a partition after that many commits; the last has these receipts."""
    return Lease(
        PIPELINE,
        f"orders|{label}",
        ownership=Ownership(Status.ASSIGNED, "node", token),
        commit=Commit(sequence=sequence, commit_id=commit_id, receipts=receipts),
    )


def through_json(value: Any) -> Any:
    """The value after a round trip through the store's JSON."""
    return json.loads(json.dumps(value))


@dataclass(frozen=True)
class MemoryReader:
    """A `RecordReader` whose records have the items 0, 1, and so on."""

    kept: Sequence[SourceRecord]

    def records(self, batch: StagedBatch, faults: Sequence[tuple[int, Fault]]) -> Iterator[SourceRecord]:
        return (self.kept[item] for item, _ in faults)


class SinkSetting:
    """What a subclass of `SinkBehaviour` defines, and methods that use a sink as tasks and nodes do."""

    @abstractmethod
    def make_sink(self) -> Sink:
        """A new instance over the output of this test, not opened. All instances have the same name."""

    @abstractmethod
    def visible(self) -> list[str]:
        """The column `value` of every record that a reader finds now, in any order, duplicates included."""

    def make_unreachable_sink(self) -> Sink | None:
        """A sink of the same settings whose output does not respond; None if that cannot happen."""
        return None

    @pytest.fixture
    def sink(self) -> Iterator[Sink]:
        with self.opened_beside() as made:
            yield made

    @contextmanager
    def opened_beside(self) -> Iterator[Sink]:
        """A new instance, opened as by a node."""
        made = self.make_sink()
        made.open(PIPELINE, durable=True)
        try:
            yield made
        finally:
            made.close()

    # --- as tasks do it --------------------------------------------------------------------------------------------

    def batch(self, batch_id: str = "b1", *, token: int = 1, label: str = "0") -> StagedBatch:
        """A batch of the partition with that label."""
        return StagedBatch(batch_id, PIPELINE, f"orders|{label}", Name("orders", label), token, 1, 1 << 30)

    def sent_stager(self, sink: Sink) -> Stager:
        """The sink's stager as a task has it: pickled on the node."""
        stager = sink.stager()
        if isinstance(sink, StagesByBatch):
            stager = sink.stager_for([Batch("b1", lease_at(), NAME, Cut(0, 1))])
        sent = pickle.loads(pickle.dumps(stager))  # noqa: S301 - our own bytes
        assert isinstance(sent, Stager)
        return sent

    def rows(self, numbers: Sequence[int]) -> Any:
        """The columns of these records that the stager needs. Override it for a stager that needs Spark expressions."""
        return pa.RecordBatch.from_pydict({"value": pa.array([record(number) for number in numbers], pa.string())})

    def write(self, staging: Staging, batch: StagedBatch, numbers: Sequence[int]) -> int:
        """Write good rows as the staging task does; returns how many the sink cannot hold."""
        staging.expect(batch, {""})
        return staging.write(batch, pa.array(numbers, pa.int64()), self.rows(numbers))

    def faults(self, items: Sequence[int]) -> list[tuple[int, Fault]]:
        """Faults of records with these items."""
        return [(item, record_fault("bad", f"raw {item}".encode())) for item in items]

    def part(
        self, sink: Sink, numbers: Sequence[int], *, batch_id: str = "b1", token: int = 1, label: str = "0"
    ) -> Json:
        """The part of a batch that one task staged, as returned by the task."""
        staging, batch = self.sent_stager(sink).begin(), self.batch(batch_id, token=token, label=label)
        try:
            unfit = self.write(staging, batch, numbers)
            part = staging.finish(batch)
            assert unfit + staging.late_unfit(batch) == 0, "the suite's records must fit: override `rows`"
        finally:
            staging.close()
        return through_json(part)

    def receipt(self, sink: Sink, parts: Sequence[Json], *, token: int = 1) -> Json:
        """The receipt as stored in the row."""
        made = sink.receipt([through_json(part) for part in parts])
        assert through_json(made) == made, "a receipt must survive JSON"
        return {**made, "from": {"offset": 0}, "to": {"offset": 1}, "token": token}

    def stage(
        self, sink: Sink, numbers: Sequence[int], *, batch_id: str = "b1", token: int = 1, label: str = "0"
    ) -> Json:
        """The receipt of a batch that one task has staged."""
        part = self.part(sink, numbers, batch_id=batch_id, token=token, label=label)
        return self.receipt(sink, [part], token=token)

    # --- as nodes do it --------------------------------------------------------------------------------------------

    def publication(
        self, receipt: Json, *, batch_id: str = "b1", token: int = 1, label: str = "0", sequence: int = 1
    ) -> Publication:
        """The commit of that batch on its way to readers."""
        lease = lease_at(label=label, token=token, sequence=sequence, commit_id=batch_id)
        return Publication(lease, Name("orders", label), through_json(receipt))

    def publish(
        self,
        sink: Sink,
        receipt: Json,
        *,
        batch_id: str = "b1",
        token: int = 1,
        label: str = "0",
        sequence: int = 1,
    ) -> PublishResult:
        """Publish one commit."""
        given = self.publication(receipt, batch_id=batch_id, token=token, label=label, sequence=sequence)
        (result,) = sink.publish([given])
        return result
