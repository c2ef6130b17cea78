"""Commit: turns the engine's reports into one fenced write per lease. No other module decides progress."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from holdfast.errors import Halt, LeaseLost, StoreError, Unavailable
from holdfast.events import (
    AttemptFailed,
    BatchCommitted,
    BatchRebuilt,
    DeadLettersBeyondTolerance,
    DeadLettersNearTolerance,
    Notice,
    PartitionClosed,
    PartitionCompleted,
    PartitionFailed,
    RowsDropped,
    RowsSkipped,
    Unreachable,
)
from holdfast.flow.batch import Batch, Close, Cut, Tolerance
from holdfast.flow.engine import Advanced, Failed, Report, Staged
from holdfast.flow.generations import REPLACED, NodeGeneration
from holdfast.flow.holdings import Held, Holdings, waves
from holdfast.flow.pipeline import Pipeline, TimedStep, describe
from holdfast.flow.publish import Publisher
from holdfast.flow.sink import Publication, Restages, Sink, VisibleWhenStaged
from holdfast.flow.source import AfterPublish
from holdfast.leases import transitions
from holdfast.leases.coordinator import Coordinator
from holdfast.leases.lease import Counts, Json, Lease, LetterWindow, Status
from holdfast.leases.suspicion import shown_range
from holdfast.leases.transitions import Advance, RetryLimits
from holdfast.leases.writes import until_answered

OUTSIDE_PAUSE = 5.0
NEAR_TOLERANCE = 0.5
"""The part of the allowed dead letters above which an event reports them, before the partition halts."""
_TOO_MANY_LETTERS = (
    "{0.letters} of {0.records} records are dead letters, and {1} are allowed (dead_letters.tolerance: {2.share:g} of "
    "{2.records} records). The batch ({3}) was not committed and will be read again: mend the parsing or "
    "change the tolerance, then reopen the partition. One of the reasons: {4}"
)
_NO_PARSER = (
    "the staged data of commit {0} is gone, and only the parsing of generation {1} can produce it, which no node runs: "
    "generation {2} is current. Make the parsing of generation {1} current (`holdfast generation back`, or its code "
    "under a later number), then reopen the partition"
)


class Committer:
    """Turns reports into writes on the rows of one pipeline's holdings."""

    def __init__(
        self,
        coordinator: Coordinator,
        pipeline: Pipeline,
        holdings: Holdings,
        publisher: Publisher,
        generation: NodeGeneration,
        tolerance: Tolerance | None,
    ) -> None:
        self._coordinator = coordinator
        self._completes_at_once = not isinstance(pipeline.source, AfterPublish)
        self._sinks = pipeline.sinks
        self._showing = {name: sink for name, sink in pipeline.sinks.items() if isinstance(sink, VisibleWhenStaged)}
        self._holdings = holdings
        self._publisher = publisher
        self._generation = generation
        self._tolerance = tolerance

    def commit(self, reports: Sequence[Report]) -> None:
        """Commit staged batches, and count attempts of failed ones. Reports of batches no longer held are ignored."""
        deferred = self._holdings.take_deferred()
        for wave in waves([*deferred, *reports]) if deferred or reports else ():
            self._commit_wave(wave)

    def _commit_wave(self, reports: Sequence[Report]) -> None:
        commits, away = [], []
        for report in reports:
            held = self._holdings.carrying(report.batch_id)
            if held is None or held.batch is None:
                continue
            batch = held.batch
            if isinstance(report, Advanced) and not _has_news(report, held, batch):
                continue
            if held.pending and not held.restaging:
                held.deferred.append(report)
                continue
            if not isinstance(report, Advanced):
                self._holdings.recall(held)
            if isinstance(report, Failed) and report.unavailable:
                away.append((held, report))
            elif isinstance(report, Failed):
                self.count_attempt(held, report.error)
            elif batch.restages is not None:
                self._restage(held, batch, report)
            elif self._tolerates(held, batch, report):
                commits.append((held, batch, report))
        self._commit([commit for commit in commits if self._may_commit(commit[0])])
        self._wait_for_outside(away)

    def _may_commit(self, held: Held) -> bool:
        """Whether the generation of the row has this node's parsing; if not, the lease is handed back."""
        number, world = held.lease.commit.generation, self._coordinator.world
        if until_answered(world, "store", lambda: self._generation.seal(number)):
            return True
        world.emit(Notice(REPLACED.format(self._coordinator.pipeline, number)))
        self.hand_back_later(held, self._coordinator.session.timing.timeout)
        return False

    # --- commit ------------------------------------------------------------------------------------------------

    def _commit(self, commits: Sequence[tuple[Held, Batch, Staged | Advanced]]) -> None:
        if not commits:
            return
        now = self._coordinator.now()
        changes = []
        for held, batch, report in list(commits):
            try:
                changes.append((held.lease, self._advance(held, batch, report, now)))
            except Exception as error:  # noqa: BLE001 - sinks are foreign code
                self.count_attempt(held, f"its commit could not be made: {describe(error)}")
                commits = [commit for commit in commits if commit[0] is not held]
        try:
            with TimedStep(self._coordinator.world, self._coordinator.pipeline, "commit"):
                results = self._coordinator.write_each(changes)
        except StoreError as refused:
            self._commit_each(commits, refused)
            return
        end, made = self._coordinator.world.clock.monotonic(), zip(commits, results, strict=True)
        rows = [self._committed(held, report, result, end) for (held, _, report), result in made]
        if visible := [row for row in rows if row is not None]:
            self._publisher.notify_source(visible)

    def _commit_each(self, commits: Sequence[tuple[Held, Batch, Staged | Advanced]], refused: StoreError) -> None:
        # A row that the store refuses, such as one with too large receipts, must not hold up the others.
        if len(commits) > 1:
            for commit in commits:
                self._commit([commit])
        else:
            self.count_attempt(commits[0][0], f"the commit was refused: {refused}")

    def _advance(self, held: Held, batch: Batch, report: Staged | Advanced, now: float) -> Callable[[Lease], Lease]:
        planned, commit_id = held.lease, self._coordinator.world.new_id()
        window = None if self._tolerance is None else self._tolerance.next_window(_window(planned, report))
        receipts = self._to_publish(held.lease, batch, report)
        end, state = (report.end, batch.cut.state) if isinstance(report, Staged) else (report.position, None)
        advance = Advance(commit_id, end, receipts, report.counts, report.acked, state, window, report.forwarded)
        held.complete_after_publish = isinstance(report, Staged) and report.last and self._completes_at_once
        if advance.receipts or not held.complete_after_publish:
            return lambda row: transitions.commit(row, advance, planned, now)
        return lambda row: transitions.complete(transitions.commit(row, advance, planned, now), now)

    def _to_publish(self, lease: Lease, batch: Batch, report: Staged | Advanced) -> dict[str, Json]:
        """The receipts; none if the data is visible in all sinks, so that nothing needs to be published."""
        receipts = _receipts(batch, report, batch.next_start(lease))
        showing = self._showing
        visible = (name in showing and showing[name].is_visible(receipt) for name, receipt in receipts.items())
        return {} if all(visible) else receipts

    def _committed(self, held: Held, report: Staged | Advanced, result: Lease | LeaseLost, end: float) -> Lease | None:
        """The row if everything before its position is visible, else None."""
        if isinstance(result, LeaseLost):
            self._let_go(held)
            return None
        before, held.lease = held.lease, result
        self._holdings.acknowledge(held, result)
        counts: Counts = report.counts
        size, seconds = (report.size, end - held.sent_at) if isinstance(report, Staged) else (0, None)
        done = (result.pipeline, result.key, result.commit.sequence, counts.processed, counts.dead, size, seconds)
        self._coordinator.world.emit(BatchCommitted(*done))
        if counts.dead:
            self._warn_of_letters(result, _window(before, report))
        if isinstance(report, Staged):
            for processor, rows in report.dropped.items():
                self._coordinator.world.emit(RowsDropped(result.pipeline, processor, rows))
        elif not report.receipts:
            return result
        for sink, receipt in report.receipts.items():
            if rows := receipt.get("skipped"):
                self._coordinator.world.emit(RowsSkipped(result.pipeline, sink, rows))
        if held.pending:
            return None
        self._publisher.published(held, result)
        return result

    # --- dead letters ------------------------------------------------------------------------------------------

    def _tolerates(self, held: Held, batch: Batch, report: Staged | Advanced) -> bool:
        """Whether the batch may be committed; if not, because of its dead letters, the partition is halted.

        Nothing of the batch has become visible, apart from what sinks show when they stage, and the position stays.
        """
        tolerance = self._tolerance
        if tolerance is None or not report.counts.dead:
            return True
        window = _window(held.lease, report)
        allowed = tolerance.allowed(window.records)
        if window.letters <= allowed:
            return True
        end, why = (report.end, report.letter_reason) if isinstance(report, Staged) else (report.position, None)
        reason = _TOO_MANY_LETTERS.format(
            window, allowed, tolerance, shown_range(batch.cut.start, end), why or "not known"
        )
        if self._coordinator.halt(held.lease, reason):
            lease = held.lease
            self._coordinator.world.emit(
                DeadLettersBeyondTolerance(lease.pipeline, lease.key, window.letters, window.records, allowed, why)
            )
        self._let_go(held)
        return False

    def _warn_of_letters(self, row: Lease, window: LetterWindow) -> None:
        allowed = 0 if self._tolerance is None else self._tolerance.allowed(window.records)
        if self._tolerance is not None and window.letters > NEAR_TOLERANCE * allowed:
            self._coordinator.world.emit(
                DeadLettersNearTolerance(row.pipeline, row.key, window.letters, window.records, allowed)
            )

    # --- rebuild -----------------------------------------------------------------------------------------------

    def range_to_rebuild(self, held: Held, current: int | None) -> Cut | None:
        """The range to stage again for a commit whose staged data is gone; None if this node must not do that.

        Only the parsing that made the commit can produce the same data. No node works under a generation that is not
        current, so that waiting for another node would not help: the partition halts.
        """
        made_by = held.lease.commit.generation
        if made_by == current or (current is not None and made_by < current and self._can_parse_as(made_by)):
            receipt = next(iter((held.lease.commit.receipts or {}).values()))
            gaps = tuple((first, end) for first, end in receipt.get("gaps", ()))
            return Cut(receipt["from"], receipt["to"], gaps=gaps)
        if current is None or made_by > current:
            # This node has not seen the switch yet; nodes that have can stage it again.
            self.hand_back_later(held, self._coordinator.session.timing.timeout)
            return None
        self._coordinator.halt(held.lease, _NO_PARSER.format(held.lease.commit.commit_id, made_by, current))
        self._holdings.drop(held)
        return None

    def _can_parse_as(self, generation: int) -> bool:
        return until_answered(self._coordinator.world, "store", lambda: self._generation.has_parsing_of(generation))

    def _restage(self, held: Held, batch: Batch, report: Staged | Advanced) -> None:
        if isinstance(report, Advanced):
            return
        if report.end != batch.cut.end:
            self.count_attempt(held, f"a rebuilt batch ends at {report.end} instead of {batch.cut.end}")
            return
        try:
            mended = self._mended(held, _receipts(batch, report, batch.cut.start))
        except Halt as halt:
            self._coordinator.halt(held.lease, str(halt))
            self._holdings.drop(held)
        except Unavailable as away:
            self._publisher.put_off(held, away)
        except Exception as error:  # noqa: BLE001 - sinks are foreign code
            self.count_attempt(held, f"its commit could not be mended: {describe(error)}")
        else:
            self._record_mended(held, mended)

    def _record_mended(self, held: Held, mended: Mapping[str, Json]) -> None:
        commit_id = held.lease.commit.commit_id
        (result,) = self._coordinator.write(
            [held.lease], lambda row, now: transitions.restage(row, commit_id, mended, now)
        )
        if isinstance(result, LeaseLost):
            self._holdings.drop(held)
            return
        held.lease, held.gone = result, ()
        self._coordinator.world.emit(BatchRebuilt(result.pipeline, result.key, result.commit.sequence))

    def _mended(self, held: Held, fresh: Mapping[str, Json]) -> dict[str, Json]:
        """The receipts, with those replaced whose data is gone; receipts that other sinks have published are kept."""
        mended = dict(held.lease.commit.receipts or {})
        for name in held.gone:
            publication = self._publisher.publication(held, name)
            if publication is not None:
                mended[name] = _mended_receipt(self._sinks[name], publication, fresh[name])
        return mended

    # --- ends --------------------------------------------------------------------------------------------------

    def complete(self, *helds: Held) -> None:
        """Mark these partitions as complete."""
        results = self._coordinator.write([held.lease for held in helds], transitions.complete) if helds else []
        for held, result in zip(helds, results, strict=True):
            self._holdings.drop(held)
            if isinstance(result, Lease):
                self._emit_completed(result)

    def close(self, held: Held, plan: Close) -> None:
        """Close the partition; it is complete once it has been closed often enough."""
        (result,) = self._coordinator.write(
            [held.lease], lambda row, now: transitions.close(row, now, now + plan.seconds, plan.most)
        )
        self._holdings.drop(held)
        if isinstance(result, Lease) and result.status is Status.COMPLETED:
            self._emit_completed(result)
        elif isinstance(result, Lease):
            closed = PartitionClosed(result.pipeline, result.key, result.ownership.due_at or 0.0)
            self._coordinator.world.emit(closed)

    def _emit_completed(self, row: Lease) -> None:
        done = PartitionCompleted(row.pipeline, row.key, row.progress.counts.processed)
        self._coordinator.world.emit(done)

    def count_attempt(self, held: Held, error: str, *, last: bool = False) -> None:
        """Count an error: the lease is handed back with a backoff, or FAILED after the last retry or if `last`."""
        limits = self._coordinator.policy.limits
        if last:
            limits = replace(limits, max_retries=0)
        (result,) = self._coordinator.write(
            [held.lease], lambda row, now: transitions.fail_attempt(row, error, limits, now)
        )
        self._let_go(held)
        if isinstance(result, LeaseLost):
            return
        emit = self._coordinator.world.emit
        emit(AttemptFailed(result.pipeline, result.key, result.history.attempts, error))
        if result.status is Status.FAILED:
            emit(PartitionFailed(result.pipeline, result.key, error))

    def accuse(self, reason: str) -> None:
        """Record in the rows of running batches that this node ends because of an error: one batch may be its cause."""
        limits, died = self._coordinator.policy.limits, self._coordinator.session.ended_by(reason)
        running = [(held.lease, held.batch.cut.end) for held in self._holdings.running if held.batch is not None]
        self._coordinator.write_each([(lease, _accused(end, died, limits)) for lease, end in running])

    def hand_back_later(self, held: Held, seconds: float) -> None:
        """Hand the lease back; any node may take it after that time. Does not count as an attempt."""
        self._let_go(held)  # first: no other node may begin before a long-lived batch has ended here
        self._coordinator.write([held.lease], lambda row, now: transitions.release(row, now, now + seconds))

    def _let_go(self, held: Held) -> None:
        """Drop a lease that this node no longer owns, and end a long-lived batch under it."""
        if held.batch is not None:
            self._holdings.cancel([held])
        self._holdings.drop(held)

    def put_off(self, helds: Sequence[Held], what: str, away: Exception) -> None:
        """Keep these leases and pause work on them, because the source or sink does not respond."""
        world = self._coordinator.world
        pause = world.jittered(OUTSIDE_PAUSE)
        world.emit(Unreachable(what, str(away), pause, self._coordinator.pipeline))
        for held in helds:
            held.put_off(world.clock.monotonic() + pause)

    def _wait_for_outside(self, away: Sequence[tuple[Held, Failed]]) -> None:
        """Put these batches off, with one event for all of them: hundreds may wait for the same server."""
        world = self._coordinator.world
        pause = world.jittered(OUTSIDE_PAUSE) if away else 0.0
        for what, error in {failed.what: failed.error for _, failed in reversed(away)}.items():
            world.emit(Unreachable(what, error, pause, self._coordinator.pipeline))
        for held, _ in away:
            # The lease is kept: another node would only wait for the same server.
            held.put_off(world.clock.monotonic() + pause)


def _mended_receipt(sink: Sink, publication: Publication, fresh: Json) -> Json:
    if not isinstance(sink, Restages):
        raise Halt(
            f"the staged data of {publication.receipt!r} is gone, and sink {sink.name} cannot use {fresh!r} instead"
        )
    return sink.mend(publication, fresh)


def _window(lease: Lease, report: Staged | Advanced) -> LetterWindow:
    """The window of dead letters with the records of this report."""
    return lease.progress.window.plus(report.counts, report.chosen_letters if isinstance(report, Staged) else 0)


def _accused(end: Json, died: str, limits: RetryLimits) -> Callable[[Lease], Lease]:
    return lambda row: transitions.accuse(row, end, died, limits)


def _has_news(report: Advanced, held: Held, batch: Batch) -> bool:
    """Whether the report advances the row or the last report; otherwise it is only a sign of life."""
    reached = next((late for late in reversed(held.deferred) if isinstance(late, Advanced)), held.lease.progress)
    # The row may have no position yet, or name the one at which the batch begins in another way.
    moves = report.position not in (reached.position, batch.next_start(held.lease)) or report.acked != reached.acked
    return moves or bool(report.forwarded) or report.counts != Counts()


def _receipts(batch: Batch, report: Staged | Advanced, start: Json) -> dict[str, Json]:
    """Receipts by sink, each with its range and the token of the batch, so that any node can publish or rebuild it."""
    end = report.end if isinstance(report, Staged) else report.position
    common = {"from": start, "to": end, "token": batch.lease.token}
    if batch.cut.gaps:
        common["gaps"] = batch.cut.gaps
    return {sink: {**receipt, **common} for sink, receipt in report.receipts.items()}
