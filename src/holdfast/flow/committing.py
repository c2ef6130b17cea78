"""Commit: what the engine reports becomes one fenced write per lease. The only place where progress is decided."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from holdfast.errors import Halt, LeaseLost, StoreError
from holdfast.events import AttemptFailed, BatchCommitted, BatchRebuilt, PartitionCompleted, PartitionFailed
from holdfast.flow.engine import Advanced, Failed, Report, Staged
from holdfast.flow.held import Held, Holdings
from holdfast.flow.publishing import Publisher
from holdfast.flow.sink import Sink
from holdfast.leases import transitions
from holdfast.leases.coordinator import Coordinator
from holdfast.leases.lease import Counts, Json, Lease, Status
from holdfast.leases.transitions import Advance

OUTSIDE_PAUSE = 5.0


class Committer:
    """Turns reports into writes on the rows of one pipeline's holdings."""

    def __init__(
        self, coordinator: Coordinator, publisher: Publisher, sinks: Mapping[str, Sink], holdings: Holdings
    ) -> None:
        self._coordinator = coordinator
        self._publisher = publisher
        self._sinks = sinks
        self._holdings = holdings

    def receive(self, reports: Sequence[Report]) -> None:
        """Commit what is staged, count what failed. Reports of batches that are nobody's any more are passed over."""
        mine = [(held, report) for report in reports if (held := self._holdings.carrying(report.batch_id))]
        commits = []
        for held, report in mine:
            if isinstance(report, Failed):
                self._failed(held, report)
            elif held.batch is not None and held.batch.restages is not None:
                self._restage(held, report)
            else:
                commits.append((held, report))
        self._commit(commits)

    # --- commit ------------------------------------------------------------------------------------------------

    def _commit(self, commits: Sequence[tuple[Held, Staged | Advanced]]) -> None:
        if not commits:
            return
        now = self._coordinator.now()
        changes = [(held.lease, self._advance(held, report, now)) for held, report in commits]
        try:
            results = self._coordinator.write_each(changes)
        except StoreError as refused:
            self._commit_apart(commits, refused)
            return
        for (held, report), result in zip(commits, results, strict=True):
            self._committed(held, report, result)

    def _commit_apart(self, commits: Sequence[tuple[Held, Staged | Advanced]], refused: StoreError) -> None:
        # One row that the store refuses, such as receipts too large, must not hold up the others.
        if len(commits) > 1:
            for pair in commits:
                self._commit([pair])
        else:
            self.count_attempt(commits[0][0], f"the commit was refused: {refused}")

    def _advance(self, held: Held, report: Staged | Advanced, now: float) -> Callable[[Lease], Lease]:
        planned, commit_id = held.lease, self._coordinator.world.new_id()
        if isinstance(report, Staged):
            receipts = _receipts(held, report)
            advance = Advance(commit_id, report.end, receipts, report.counts)
        else:
            advance = Advance(commit_id, report.position, {}, report.counts, report.acked)
        return lambda row: transitions.commit(row, advance, planned, now)

    def _committed(self, held: Held, report: Staged | Advanced, result: Lease | LeaseLost) -> None:
        if isinstance(result, LeaseLost):
            self._holdings.drop(held)
            return
        held.lease = result
        counts: Counts = report.counts
        self._coordinator.world.emit(
            BatchCommitted(result.pipeline, result.key, result.commit.sequence, counts.processed, counts.dead)
        )
        if isinstance(report, Staged):
            self._holdings.recall(held)
            held.complete_after_publish = report.last
            if report.last and not held.pending:
                self.complete(held)

    # --- rebuild -----------------------------------------------------------------------------------------------

    def _restage(self, held: Held, report: Staged | Advanced) -> None:
        if isinstance(report, Advanced):
            return
        try:
            mended = self._mended(held, _receipts(held, report))
        except Halt as halt:
            self._holdings.recall(held)
            self._coordinator.halt(held.lease, str(halt))
            self._holdings.drop(held)
            return
        commit_id = held.lease.commit.commit_id
        (result,) = self._coordinator.write(
            [held.lease], lambda row, now: transitions.restage(row, commit_id, mended, now)
        )
        self._holdings.recall(held)
        if isinstance(result, LeaseLost):
            self._holdings.drop(held)
            return
        held.lease = result
        self._coordinator.world.emit(BatchRebuilt(result.pipeline, result.key, result.commit.sequence))

    def _mended(self, held: Held, fresh: Mapping[str, Json]) -> dict[str, Json]:
        mended = dict(held.lease.commit.receipts or {})
        for name in mended:
            publication = self._publisher.publication(held, name)
            if publication is not None:
                mended[name] = self._sinks[name].mend(publication, fresh[name])
        return mended

    # --- ends --------------------------------------------------------------------------------------------------

    def complete(self, held: Held) -> None:
        """Nothing is left of this partition."""
        (result,) = self._coordinator.write([held.lease], transitions.complete)
        self._holdings.drop(held)
        if isinstance(result, Lease):
            done = PartitionCompleted(result.pipeline, result.key, result.progress.counts.processed)
            self._coordinator.world.emit(done)

    def count_attempt(self, held: Held, error: str) -> None:
        """One error more: handed back with a backoff, or FAILED when the retries are used up."""
        limits = self._coordinator.policy.limits
        (result,) = self._coordinator.write(
            [held.lease], lambda row, now: transitions.fail_attempt(row, error, limits, now)
        )
        self._holdings.drop(held)
        if isinstance(result, LeaseLost):
            return
        emit = self._coordinator.world.emit
        emit(AttemptFailed(result.pipeline, result.key, result.history.attempts, error))
        if result.status is Status.FAILED:
            emit(PartitionFailed(result.pipeline, result.key, error))

    def hand_back_later(self, held: Held, seconds: float) -> None:
        """Not this node's fault or task: anybody may try after that time; counts no attempt."""
        self._coordinator.write([held.lease], lambda row, now: transitions.release(row, now, now + seconds))
        self._holdings.drop(held)

    def _failed(self, held: Held, report: Failed) -> None:
        self._holdings.recall(held)
        if report.unavailable:
            self.hand_back_later(held, self._coordinator.world.jittered(OUTSIDE_PAUSE))
        else:
            self.count_attempt(held, report.error)


def _receipts(held: Held, report: Staged) -> dict[str, Json]:
    """Receipts by sink, each with the range and the token of the batch, so that anybody can publish or rebuild it."""
    if held.batch is None:
        return {}
    told = {"from": held.batch.cut.start, "to": report.end, "token": held.batch.lease.token}
    return {sink: {**receipt, **told} for sink, receipt in report.receipts.items()}
