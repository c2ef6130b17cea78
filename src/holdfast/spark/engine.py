"""The engine on Spark: one job per round reads, processes and stages its batches.

Where Spark itself fails a job, because a Python worker died or a processor raised, batches that the source doubts are
left out. Otherwise the round is cut in halves until the failing batch is alone; the others are staged and reported.
"""

from __future__ import annotations

import itertools
import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from holdfast.errors import BatchError, Unavailable
from holdfast.flow.batch import Batch
from holdfast.flow.engine import Engine, Failed, Report
from holdfast.flow.pipeline import Pipeline
from holdfast.flow.source import MayChange, ReadsByConnector, Source
from holdfast.spark.failures import how_it_ended, is_of_the_host, quieten, readable, session_is_gone
from holdfast.spark.job import doubts_of, run_job

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CLOSE_PATIENCE = 2.0
CANCELLED = "the round was cancelled"
WATCH_EVERY = 5.0
"""Seconds between two calls of the source's `doubts` while a job runs; most jobs are done before the first."""

_NUMBERS = itertools.count(1)
"""Of all engines of this process; the address of one that was closed may be that of the next."""


@dataclass
class Round:
    """The batches of one call of `submit`. `wanted` and `cancelled` are changed by the caller's thread only."""

    group: str
    pipeline: Pipeline
    batches: list[Batch]
    wanted: set[str]
    cancelled: threading.Event = field(default_factory=threading.Event)


class SparkEngine(Engine):
    """Carries the rounds of all pipelines of a node. The caller owns the session, which stays open.

    Up to `rounds` run at the same time; Spark gives free cores to the older one first.
    """

    def __init__(self, spark: SparkSession, pipelines: Mapping[str, Pipeline], *, rounds: int = 2) -> None:
        quieten()
        self.job_group = f"holdfast-{next(_NUMBERS)}"
        """How the names of this engine's job groups begin; no other engine of the process has it."""
        self._spark = spark
        self._pipelines = dict(pipelines)
        self._limit = rounds
        self._todo: queue.SimpleQueue[Round | None] = queue.SimpleQueue()
        self._outcomes: queue.SimpleQueue[Report | Round] = queue.SimpleQueue()
        self._rounds: list[Round] = []
        self._submitted = 0
        self._gone: str | None = None
        self._closed = False
        # They live as long as the engine: the JVM keeps a thread for each Python thread that ever called it.
        self._threads = [threading.Thread(target=self._work, daemon=True) for _ in range(rounds)]
        for thread in self._threads:
            thread.start()

    def room(self) -> int:
        return 0 if self._gone or self._closed else self._limit - len(self._rounds)

    def submit(self, pipeline: str, batches: Sequence[Batch]) -> None:
        self._submitted += 1
        group = f"{self.job_group}-{self._submitted}"
        carried = Round(group, self._pipelines[pipeline], list(batches), {batch.id for batch in batches})
        self._rounds.append(carried)
        self._todo.put(carried)

    def poll(self, timeout: float) -> list[Report]:
        """As in the interface, but raises `Unavailable`, once, when the Spark session is gone."""
        deadline = time.monotonic() + timeout
        reports = self._collect(max(0.0, timeout))
        while not reports and not self._gone and (left := deadline - time.monotonic()) > 0:
            reports = self._collect(left)
        if not reports and self._gone:
            gone, self._gone, self._limit = self._gone, None, 0
            raise Unavailable(gone)
        self._repeat_cancels()
        return reports

    def cancel(self, batch_ids: Sequence[str]) -> None:
        """As in the interface. The job continues for other batches of its round; it is stopped if there are none."""
        for carried in self._rounds:
            carried.wanted.difference_update(batch_ids)
            if not carried.wanted:
                self._stop(carried)

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            for carried in self._rounds:
                carried.wanted.clear()
                self._stop(carried)
            for _ in self._threads:
                self._todo.put(None)
            deadline = time.monotonic() + CLOSE_PATIENCE
            for thread in self._threads:
                thread.join(max(0.0, deadline - time.monotonic()))

    # --- on the caller's thread --------------------------------------------------------------------------------

    def _collect(self, timeout: float) -> list[Report]:
        """The reports that have come in, without those of cancelled batches; waits up to `timeout` for the first."""
        reports: list[Report] = []
        try:
            outcome = self._outcomes.get(timeout=timeout) if timeout else self._outcomes.get_nowait()
            while True:
                if isinstance(outcome, Round):
                    self._rounds.remove(outcome)
                elif self._is_wanted(outcome.batch_id):
                    reports.append(outcome)
                outcome = self._outcomes.get_nowait()
        except queue.Empty:
            return reports

    def _is_wanted(self, batch_id: str) -> bool:
        """Whether a report is the first one of its batch, and the batch was not cancelled."""
        for carried in self._rounds:
            if batch_id in carried.wanted:
                carried.wanted.remove(batch_id)
                return True
        return False

    def _stop(self, carried: Round) -> None:
        carried.cancelled.set()
        self._cancel_jobs(carried)

    def _cancel_jobs(self, carried: Round) -> None:
        # Without the JVM there is no job to stop.
        with suppress(Exception):
            self._spark.sparkContext.cancelJobGroup(carried.group)

    def _repeat_cancels(self) -> None:
        # Spark does not cancel a job that starts after the call.
        for carried in self._rounds:
            if carried.cancelled.is_set():
                self._stop(carried)

    # --- on the engine's threads -------------------------------------------------------------------------------

    def _work(self) -> None:
        while (carried := self._todo.get()) is not None:
            left = {batch.id for batch in carried.batches}
            reason = CANCELLED
            try:
                for report in self._reports_of(carried):
                    left.discard(report.batch_id)
                    self._outcomes.put(report)
            except Exception as error:  # noqa: BLE001 - this thread must live, and every batch must be reported
                reason = readable(error)
                if self._is_gone(error):
                    # Nothing is reported: one of these batches may have killed it, and must not count as innocent.
                    self._gone = how_it_ended(self._spark, error, self._running())
                    left.clear()
            for batch_id in left:
                self._outcomes.put(Failed(batch_id, reason, unavailable=True))
            self._outcomes.put(carried)

    def _running(self) -> list[str]:
        """The partitions whose batches have not been reported, of all rounds: each may have ended the session."""
        leases = [
            batch.lease for carried in list(self._rounds) for batch in carried.batches if batch.id in carried.wanted
        ]
        return [f"{lease.pipeline}/{lease.key}" for lease in leases]

    def _is_gone(self, error: BaseException) -> bool:
        """Whether the session can run no more jobs. The error of a single job never means that."""
        return session_is_gone(self._spark, error)

    def _reports_of(self, carried: Round) -> Iterator[Report]:
        """Reports of all batches; fewer if the round was cancelled. Raises when the session is gone."""
        about = f"{carried.batches[0].lease.pipeline}: {len(carried.batches)} batches"
        self._spark.sparkContext.setJobGroup(carried.group, about, interruptOnCancel=True)
        todo: list[Sequence[Batch]] = [carried.batches]
        while todo and not carried.cancelled.is_set():
            batches = todo.pop()
            try:
                with watched(carried.pipeline.source, batches, partial(self._cancel_jobs, carried)):
                    reports = run_job(self._spark, carried.pipeline, batches)
                yield from reports
            except Exception as error:
                if carried.cancelled.is_set() or self._is_gone(error):
                    raise
                reports, retries = _after_failure(carried.pipeline.source, batches, error)
                yield from reports
                todo += retries


def _after_failure(
    source: Source, batches: Sequence[Batch], error: Exception
) -> tuple[list[Report], list[Sequence[Batch]]]:
    """After Spark has failed a job: reports of batches that are decided, and the batches of the jobs to try next."""
    try:
        doubts = doubts_of(source, batches)
    except Unavailable as away:
        return [Failed(batch.id, str(away), unavailable=True, what="source") for batch in batches], []
    reports: list[Report] = [Failed(batch_id, reason) for batch_id, reason in doubts.items()]
    left = [batch for batch in batches if batch.id not in doubts]
    if doubts or not left:
        return reports, [left] if left else []
    if len(left) > 1:
        half = len(left) // 2
        return [], [left[half:], left[:half]]
    reason = str(error) if isinstance(error, BatchError) else readable(error)
    if isinstance(source, ReadsByConnector) and source.is_away(str(error)):
        return [Failed(left[0].id, reason, unavailable=True, what="source")], []
    return [Failed(left[0].id, reason, unavailable=is_of_the_host(error))], []


@contextmanager
def watched(source: Source, batches: Sequence[Batch], cancel: Callable[[], None]) -> Iterator[None]:
    """Call `cancel`, at most once and never after the block, when the source doubts one of the batches.

    A task may wait long for records that no longer exist, and delay the whole job.
    """
    if not isinstance(source, MayChange):
        yield
        return
    over, lock = threading.Event(), threading.Lock()

    def watch() -> None:
        while not over.wait(WATCH_EVERY):
            doubts = {}
            with suppress(Exception):  # a source that does not respond is not a reason to cancel
                doubts = dict(source.doubts(batches))
            if doubts:
                with lock:
                    if not over.is_set():
                        cancel()
                return

    threading.Thread(target=watch, daemon=True).start()
    try:
        yield
    finally:
        with lock:
            over.set()
