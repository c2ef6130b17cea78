"""A world whose sink shows what is staged at once, as an index of documents does: a commit may complete a partition.

What must hold: whatever a commit passes is in the index by then; a partition is complete only at its end, with or
without a second sink whose files are still to be published.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from holdfast.flow.batch import Batch
from holdfast.flow.engine import Staged
from holdfast.flow.sink import Publication, PublishResult, Sink, VisibleWhenStaged
from holdfast.flow.staging import Stager
from holdfast.leases.lease import Json, Lease, Status
from tests.simulation.engine import SimulatedEngine
from tests.simulation.files_oracle import FilesOracle
from tests.simulation.fleet import Fleet
from tests.simulation.host import Host
from tests.simulation.source import offset_of

INDEX = "index"
HIDDEN = 0.2
"""How likely a batch has something beside its documents, such as dead letters, which is visible once published."""


class VisibleOracle(FilesOracle):
    """Judges commits by what the index holds; `documents` are partition and item."""

    documents: set[tuple[str, int]]

    def committed(self, before: Lease, row: Lease) -> None:
        start, end = offset_of(before.progress.position), offset_of(row.progress.position)
        if row.commit.receipts is None and self.buckets:
            self.fail(f"{row.key}: commit {row.commit.sequence} is settled and its files are not published")
        if row.commit.receipts is None and any((row.key, item) not in self.documents for item in range(start, end)):
            self.fail(f"{row.key}: commit {row.commit.sequence} passes items that nobody can see")
        if row.status is Status.COMPLETED and end != self.number_of(row):
            self.fail(f"{row.key}: is complete at {end}")
        if row.commit.receipts is not None:
            super().committed(before, _files_of(row))

    def receipts_changed(self, before: Lease, row: Lease) -> None:
        super().receipts_changed(_files_of(before), _files_of(row))

    def decided(self, row: Lease) -> None:
        super().decided(_files_of(row))

    def judge_end(self) -> None:
        super().judge_end()
        for key, number in self.numbers.items():
            missing = [item for item in range(number) if (key, item) not in self.documents]
            row = self.live(key)
            if missing and row is not None and row.status is Status.COMPLETED:
                self.fail(f"{key}: is complete, and the index does not have {missing}")


def _files_of(row: Lease) -> Lease:
    """The row with the receipts of files alone."""
    receipts = row.commit.receipts
    if receipts is None:
        return row
    files = {name: receipt for name, receipt in receipts.items() if name != INDEX}
    return replace(row, commit=replace(row.commit, receipts=files))


class IndexSink(Sink, VisibleWhenStaged):
    """An index that all nodes write to."""

    name = INDEX

    def __init__(self, documents: set[tuple[str, int]]) -> None:
        self._documents = documents

    def stager(self) -> Stager:
        raise NotImplementedError("simulated executors write documents without a connection")

    def receipt(self, parts: Sequence[Json]) -> Json:
        raise NotImplementedError("the simulated engine makes receipts")

    def is_visible(self, receipt: Json) -> bool:
        return not receipt["hidden"]

    def publish(self, publications: Sequence[Publication]) -> list[PublishResult]:
        for publication in publications:
            self._documents |= {(publication.lease.key, item) for item in publication.receipt["hidden"]}
        return [None] * len(publications)


class IndexingEngine(SimulatedEngine):
    """Executors that write documents as they stage; the last item of some batches is hidden until it is published."""

    documents: set[tuple[str, int]]

    def _stage(self, batch: Batch) -> Staged:
        staged = super()._stage(batch)
        items = list(range(offset_of(batch.cut.start), offset_of(staged.end)))
        hidden = items[-1:] if self._kernel.random() < HIDDEN else []
        self.documents |= {(batch.lease.key, item) for item in items if item not in hidden}
        receipts: Mapping[str, Json] = {**staged.receipts, INDEX: {"hidden": hidden}}
        return replace(staged, receipts=receipts)


class VisibleFleet(Fleet):
    """Nodes of a pipeline into an index, in half of the worlds beside files."""

    oracle: VisibleOracle
    engine_type = IndexingEngine

    def files_oracle(self) -> FilesOracle:
        self.documents: set[tuple[str, int]] = set()
        self.files_beside = self.kernel.random() < 0.5
        oracle = VisibleOracle(self.kernel, self.data, self.knobs.max_retries)
        oracle.documents = self.documents
        return oracle

    @property
    def number_of_buckets(self) -> int:
        return int(self.files_beside)

    def sinks(self, host: Host) -> dict[str, Sink]:
        return {INDEX: IndexSink(self.documents), **super().sinks(host)}

    def files_engine(self, name: str, host: Host) -> SimulatedEngine:
        engine = super().files_engine(name, host)
        assert isinstance(engine, IndexingEngine)
        engine.documents = self.documents
        return engine
