"""Publish: make committed batches visible, then clear their receipts from the rows.

A node that holds a lease with receipts publishes them first, whether it made the commit itself or found it. All sinks
must have published before the row moves on. Publishing is safe even if the lease is lost: it only repeats what was
committed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from holdfast.errors import Halt, LeaseLost, StagedDataGone
from holdfast.events import BatchPublished, PartitionCompleted, Unreachable
from holdfast.flow.holdings import Held, Holdings
from holdfast.flow.pipeline import Pipeline, ReportsEvents, TimedStep, call_isolated, reported
from holdfast.flow.sink import KeepsStaged, Publication, PublishesFiles, PublishResult
from holdfast.flow.source import PublishingListener
from holdfast.leases import transitions
from holdfast.leases.coordinator import Coordinator
from holdfast.leases.lease import Lease, Status
from holdfast.leases.writes import Change

COMMITS_PER_STEP = 100
FILES_PER_STEP = 1000
"""Maximum number of commits and files published in one step of the loop, unless one commit has more files."""
FIRST_WAIT = 0.5
LONGEST_WAIT = 30.0


class Publisher:
    """Publishes the pending commits among a pipeline's holdings."""

    def __init__(self, coordinator: Coordinator, pipeline: Pipeline, holdings: Holdings) -> None:
        self._coordinator = coordinator
        self._listener = pipeline.source if isinstance(pipeline.source, PublishingListener) else None
        self._sinks = pipeline.sinks
        self._filing = {name: sink for name, sink in pipeline.sinks.items() if isinstance(sink, PublishesFiles)}
        self._keeping = {name: sink for name, sink in pipeline.sinks.items() if isinstance(sink, KeepsStaged)}
        self._reporters = [sink for sink in pipeline.sinks.values() if isinstance(sink, ReportsEvents)]
        self._holdings = holdings

    def publish_pending(self, begin_step: Callable[[], None]) -> None:
        """Publish pending commits in order, step by step; `begin_step` is called before each step.

        Ends after one heartbeat interval; the rest is published in the next turn.
        """
        self._emit_noticed()
        clock, until = self._coordinator.world.clock, None
        waiting = self._holdings.ready(
            clock.monotonic(), lambda held: held.admitted and held.pending and not held.gone and not held.restaging
        )
        for portion in self._portions(waiting) if waiting else ():
            if until is None:
                until = clock.monotonic() + self._coordinator.session.timing.heartbeat
            elif clock.monotonic() > until:
                return
            begin_step()
            with TimedStep(self._coordinator.world, self._coordinator.pipeline, "publish"):
                self.publish(portion)

    def publish(self, pending: Sequence[Held]) -> None:
        """Try each commit once. A commit that cannot be published is put off, halted, or marked to be rebuilt."""
        results = self._through_all_sinks(pending)
        done = [held for held in pending if self._settled(held, results[held.lease.key])]
        self._clear_receipts(done)
        self.notify_source([held.lease for held in pending if not held.pending])

    def notify_source(self, rows: Sequence[Lease]) -> None:
        """Notify the source that everything before the positions of these rows is visible."""
        if self._listener is None:
            return
        with reported(self._coordinator.world.emit, f"{self._coordinator.pipeline}: `published` of the source"):
            self._listener.published(rows)

    def _emit_noticed(self) -> None:
        for sink in self._reporters:
            for event in sink.noticed():
                self._coordinator.world.emit(event)

    def _portions(self, pending: Sequence[Held]) -> Iterator[list[Held]]:
        portion: list[Held] = []
        files = 0
        for held in pending:
            more = self._files(held)
            if portion and (files + more > FILES_PER_STEP or len(portion) == COMMITS_PER_STEP):
                yield portion
                portion, files = [], 0
            portion.append(held)
            files += more
        if portion:
            yield portion

    def _files(self, held: Held) -> int:
        receipts = held.lease.commit.receipts or {}
        return sum(sink.files_in(receipts[name]) for name, sink in self._filing.items() if name in receipts)

    def publication(self, held: Held, sink: str) -> Publication | None:
        """The publication of that sink for the lease; None if the sink staged nothing."""
        receipts = held.lease.commit.receipts or {}
        return Publication(held.lease, held.name, receipts[sink]) if sink in receipts else None

    def _through_all_sinks(self, pending: Sequence[Held]) -> dict[str, dict[str, PublishResult | Exception]]:
        """Results by partition and sink; an error that a sink raises for one commit affects that commit only."""
        results = {held.lease.key: self._unknown_sinks(held) for held in pending}
        for name, sink in self._sinks.items():
            given = [(held, made) for held in pending if (made := self.publication(held, name))]
            returned = call_isolated(sink.publish, [publication for _, publication in given])
            for (held, _), result in zip(given, returned, strict=True):
                results[held.lease.key][name] = result
        return results

    def _unknown_sinks(self, held: Held) -> dict[str, PublishResult | Exception]:
        unknown = [name for name in held.lease.commit.receipts or {} if name not in self._sinks]
        return {name: Halt(f"a commit waits for sink {name!r}, which is no longer configured") for name in unknown}

    def _settled(self, held: Held, results: Mapping[str, PublishResult | Exception]) -> bool:
        """Whether all sinks have published the commit; if not, halts it, marks it to be rebuilt, or puts it off."""
        errors = {name: result for name, result in results.items() if result is not None}
        halts = [result for result in errors.values() if isinstance(result, Halt)]
        gone = tuple(name for name, result in errors.items() if isinstance(result, StagedDataGone))
        if halts or gone:
            # What a long-lived batch has done since the commit is done again.
            self._holdings.cancel([held])
        if halts:
            self._coordinator.halt(held.lease, str(halts[0]))
            self._holdings.drop(held)
        elif gone:
            held.gone = gone
        elif errors:
            self.put_off(held, next(iter(errors.values())))
        return not errors

    def put_off(self, held: Held, error: Exception) -> None:
        """Try this commit again after a pause, because the sink does not respond."""
        world = self._coordinator.world
        pause = world.jittered(min(LONGEST_WAIT, FIRST_WAIT * 2.0 ** min(held.waits, 10)))
        world.emit(Unreachable("sink", str(error), pause, self._coordinator.pipeline))
        held.put_off(world.clock.monotonic() + pause)

    def _clear_receipts(self, done: Sequence[Held]) -> None:
        if not done:
            return
        now = self._coordinator.now()
        changes = [(held.lease, _receipts_cleared(held, now)) for held in done]
        results = list(zip(done, self._coordinator.write_each(changes), strict=True))
        self._discard_leftovers([held for held, result in results if not isinstance(result, LeaseLost)])
        for held, result in results:
            if isinstance(result, LeaseLost):
                self._holdings.cancel([held])
                self._holdings.drop(held)
            else:
                self.published(held, result)

    def published(self, held: Held, row: Lease) -> None:
        """Record that all sinks have published the row's last commit; drop the lease if the partition is complete."""
        emit = self._coordinator.world.emit
        emit(BatchPublished(row.pipeline, row.key, row.commit.sequence, held.found_pending))
        held.lease, held.waits, held.found_pending = row, 0, False
        self._holdings.published(held)
        if row.status is Status.COMPLETED:
            emit(PartitionCompleted(row.pipeline, row.key, row.progress.counts.processed))
            self._holdings.drop(held)

    def _discard_leftovers(self, cleared: Sequence[Held]) -> None:
        for name, sink in self._keeping.items():
            done = [made for held in cleared if (made := self.publication(held, name)) is not None]
            if done:
                with reported(
                    self._coordinator.world.emit, f"{self._coordinator.pipeline}: `discard_staged` of sink {name!r}"
                ):
                    sink.discard_staged(done)


def _receipts_cleared(held: Held, now: float) -> Change:
    commit_id, finish = held.lease.commit.commit_id, held.complete_after_publish

    def change(row: Lease) -> Lease:
        cleared = transitions.published(row, commit_id, now)
        return transitions.complete(cleared, now) if finish else cleared

    return change
