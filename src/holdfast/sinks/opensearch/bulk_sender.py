"""Sends bodies on a few threads until each document is acknowledged or refused; only failed documents are retried.

A 429 slows the sender down and fails nothing; a 413 splits the body. If nothing of a body succeeds for `patience`
seconds, the sender gives up with `SinkUnavailable`, and the batch is read again when the cluster is back. The outage is
reported long before that.
"""

from __future__ import annotations

import random
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np

from holdfast.errors import BatchError, SinkUnavailable
from holdfast.flow.fault import Fault
from holdfast.sinks.opensearch.bulk_body import Body
from holdfast.sinks.opensearch.bulk_request import BulkClient, BulkOutcome, Busy, ClusterAway, RequestRefused
from holdfast.sinks.opensearch.bulk_response import Verdicts

FIRST_PAUSE, LONGEST_PAUSE = 0.1, 5.0
BUSY_TRIES = 3
"""A body that is rejected this often in a row may be larger than the server ever accepts: it is halved."""
BROKEN_TRIES = 5
"""A document on which the server fails more often than this is refused."""
REPORT_AFTER = 10.0
"""Seconds without progress after which an outage is reported, and between two such reports."""


@dataclass
class Tally:
    """Counts of requests and documents since the last call of `BulkSender.tally`."""

    requests: int = 0
    size: int = 0
    documents: int = 0
    conflicts: int = 0
    retried: int = 0
    """Documents that were sent again."""
    rejected: int = 0
    """Documents that were rejected because the server was overloaded."""


@dataclass
class BatchState:
    """The documents of one batch so far."""

    in_flight: int = 0
    refused: list[tuple[int, Fault]] = field(default_factory=list)
    error: Exception | None = None


class BulkSender:
    """The sender of one task.

    The task's thread calls the methods from `send` to `close`; deliveries call the others on threads of the pool.
    """

    def __init__(
        self,
        client: BulkClient,
        concurrency: AdaptiveConcurrency,
        *,
        threads: int,
        patience: float,
        report_outage: Callable[[str], None] = lambda _reason: None,
    ) -> None:
        """`report_outage` is called with the reason if nothing succeeds for a while; it must not block."""
        self._client = client
        self._concurrency = concurrency
        self._patience = patience
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="holdfast-bulk")
        self._states: defaultdict[str, BatchState] = defaultdict(BatchState)
        self._tally = Tally()
        self._given_up: SinkUnavailable | None = None
        self._report_outage = report_outage
        self._last_error = ""
        self._bodies_in_flight = 0
        self._progress_at = 0.0
        self._changed = threading.Condition()
        self._closed = threading.Event()

    def send(self, body: Body) -> None:
        """Send the body in the background. Blocks while as many bodies are in flight as the server accepts."""
        with self._changed:
            for part in body.parts:
                self._states[part.batch.id].in_flight += len(part)
            if not self._bodies_in_flight:
                self._note_progress()
            self._bodies_in_flight += 1
        while not self._concurrency.acquire(REPORT_AFTER / 10):
            self._check_progress()
        self._pool.submit(self._deliver_or_fail, body)

    def wait(self, batch_id: str) -> None:
        """Block until no document of the batch is in flight. Raises the batch's error, if any."""
        with self._changed:
            state = self._states[batch_id]
            while not self._changed.wait_for(lambda: state.in_flight == 0, REPORT_AFTER / 10):
                self._check_progress()
        self.check(batch_id)

    def check(self, batch_id: str) -> None:
        """Raise the batch's error, if there is one so far."""
        error = self._states[batch_id].error
        if error is not None:
            raise error

    def refused(self, batch_id: str) -> list[tuple[int, Fault]]:
        """Documents of the batch that were refused since the last call."""
        with self._changed:
            state = self._states[batch_id]
            refused, state.refused = state.refused, []
        return refused

    def forget(self, batch_id: str) -> None:
        """Drop the state of the batch."""
        with self._changed:
            self._states.pop(batch_id, None)

    def tally(self) -> Tally:
        """The counts since the last call."""
        with self._changed:
            tally, self._tally = self._tally, Tally()
        return tally

    def close(self) -> None:
        """Send nothing more. Blocks until the requests in flight have ended."""
        self._closed.set()
        self._pool.shutdown()
        self._client.close()

    def _check_progress(self) -> None:
        """Report an outage if nothing has succeeded for a while."""
        with self._changed:
            idle = time.monotonic() - self._progress_at
            if idle < REPORT_AFTER:
                return
            reason = self._last_error or f"no response for {idle:.0f} seconds"
            self._progress_at += idle
        self._report_outage(reason)

    def _note_progress(self) -> None:
        self._progress_at, self._last_error = time.monotonic(), ""

    # --- on the sender's threads -------------------------------------------------------------------------------

    def _deliver_or_fail(self, body: Body) -> None:
        try:
            self._deliver(body)
        except Exception as error:  # noqa: BLE001 - any error fails the batches of the body
            self._fail(body, error)
        finally:
            self._concurrency.release()
            with self._changed:
                self._bodies_in_flight -= 1
                for part in body.parts:
                    self._states[part.batch.id].in_flight -= len(part)
                self._changed.notify_all()

    def _deliver(self, body: Body) -> None:
        """Send the body, or parts of it, until every document is decided."""
        bodies = [body]
        while bodies:
            bodies += reversed(_Delivery(self, bodies.pop()).run())

    def _fail(self, body: Body, error: Exception) -> None:
        with self._changed:
            for part in body.parts:
                self._states[part.batch.id].error = error

    def post(self, body: Body) -> BulkOutcome:
        """Send the body once, and count it."""
        if self._given_up is not None:
            raise self._given_up
        if self._closed.is_set():
            raise SinkUnavailable("the task has ended")
        began = time.monotonic()
        outcome = self._client.post(body)
        is_busy = isinstance(outcome, Busy) or (isinstance(outcome, Verdicts) and outcome.busy > 0)
        if is_busy or isinstance(outcome, ClusterAway):
            self._concurrency.rejected(began)
        else:
            self._concurrency.succeeded(began)
        with self._changed:
            self._tally.requests += 1
            self._tally.size += body.size
            self._tally.rejected += len(body) if isinstance(outcome, Busy) else getattr(outcome, "busy", 0)
        return outcome

    def pause(self, attempts: int) -> None:
        """Wait before the next attempt, longer after each; not at all when the task has ended."""
        longest = min(LONGEST_PAUSE, FIRST_PAUSE * 2.0 ** min(attempts, 10))
        self._closed.wait(longest * random.uniform(0.5, 1.0))

    def give_up(self, reason: str) -> SinkUnavailable:
        """Send nothing more in this task. Returns the error to raise."""
        self._given_up = SinkUnavailable(reason)
        return self._given_up

    @property
    def patience(self) -> float:
        return self._patience

    def record(self, body: Body, verdicts: Verdicts) -> None:
        """Record the documents that are decided."""
        if verdicts.closed:
            raise BatchError(f"the run does not accept documents any more: {verdicts.closed}")
        decided = len(body) - len(verdicts.retry) - len(verdicts.broken)
        if body.letters and verdicts.refused:
            raise BatchError(f"the index of dead letters refuses a letter: {verdicts.refused[0][1]}")
        refused = [index for index, _ in verdicts.refused]
        reasons = dict(verdicts.refused)
        with self._changed:
            if decided:
                self._note_progress()
            if not body.letters:
                self._tally.documents += decided - len(refused)
                self._tally.conflicts += len(verdicts.conflicts)
            first = 0
            for part, indexes in body.by_part(refused):
                state = self._states[part.batch.id]
                for index in indexes.tolist():
                    state.refused.append((int(part.items[index]), part.fault(index, reasons[first + index])))
                first += len(part)

    def record_retry(self, documents: int, reason: str) -> None:
        """Record that this many documents are sent again, and why."""
        with self._changed:
            self._tally.retried += documents
            self._last_error = reason


class _Delivery:
    """The attempts to deliver one body, which shrinks to the documents that are not decided."""

    def __init__(self, sender: BulkSender, body: Body) -> None:
        self._sender = sender
        self._body = body
        self._attempts = 0
        self._busy = 0
        self._failures = np.zeros(len(body), np.int64)
        self._give_up_at = time.monotonic() + sender.patience

    def run(self) -> Sequence[Body]:
        """Send until the outcome of every document is known. Returns smaller bodies if they must be sent instead."""
        while len(self._body):
            outcome = self._sender.post(self._body)
            if isinstance(outcome, RequestRefused):
                return self._halves(outcome.reason)
            if isinstance(outcome, Verdicts):
                self._record(outcome)
                continue
            self._busy = self._busy + 1 if isinstance(outcome, Busy) else 0
            if self._busy >= BUSY_TRIES and len(self._body) > 1:
                return self._body.halves()
            self._wait(outcome.reason)
        return ()

    def _record(self, verdicts: Verdicts) -> None:
        self._failures[[index for index, _ in verdicts.broken]] += 1
        hopeless = [broken for broken in verdicts.broken if self._failures[broken[0]] > BROKEN_TRIES]
        verdicts.broken = [broken for broken in verdicts.broken if broken not in hopeless]
        verdicts.refused = sorted([*verdicts.refused, *hopeless])
        self._sender.record(self._body, verdicts)
        retried = sorted([*verdicts.retry, *(index for index, _ in verdicts.broken)])
        if len(retried) < len(self._body):
            self._give_up_at = time.monotonic() + self._sender.patience
        self._body, self._busy, self._failures = self._body.chosen(retried), 0, self._failures[retried]
        if retried:
            self._wait(verdicts.reason or verdicts.broken[0][1])

    def _wait(self, reason: str) -> None:
        if time.monotonic() >= self._give_up_at:
            raise self._sender.give_up(reason)
        self._sender.record_retry(len(self._body), reason)
        self._sender.pause(self._attempts)
        self._attempts += 1

    def _halves(self, reason: str) -> Sequence[Body]:
        if len(self._body) > 1:
            return self._body.halves()
        self._sender.record(self._body, Verdicts(refused=[(0, reason)]))
        return ()


INITIAL_LIMIT = 2.0


class AdaptiveConcurrency:
    """Limits the requests in flight. The task's thread acquires; the sending threads report the result and release."""

    def __init__(self, most: int, slow_after: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._most = float(most)
        self._slow_after = slow_after
        self._clock = clock
        self._limit = min(INITIAL_LIMIT, self._most)
        self._in_flight = 0
        self._lowered_at = float("-inf")
        self._changed = threading.Condition()

    @property
    def limit(self) -> float:
        """The current limit; only whole requests count."""
        return self._limit

    def acquire(self, timeout: float | None = None) -> bool:
        """Wait until another request may be sent. False if none may after `timeout` seconds."""
        with self._changed:
            free = self._changed.wait_for(lambda: self._in_flight < int(self._limit), timeout)
            self._in_flight += free
        return free

    def release(self) -> None:
        """Note that a request has ended, with any result."""
        with self._changed:
            self._in_flight -= 1
            self._changed.notify_all()

    def succeeded(self, began: float) -> None:
        """Note that the server has accepted a request that was sent at `began`."""
        if self._clock() - began > self._slow_after:
            self.rejected(began)
            return
        with self._changed:
            self._limit = min(self._most, self._limit + 1.0 / self._limit)
            self._changed.notify_all()

    def rejected(self, began: float) -> None:
        """Note that the server is overloaded. Of requests that were in flight at the same time, only one counts."""
        with self._changed:
            if began >= self._lowered_at:
                self._limit = max(1.0, self._limit / 2.0)
                self._lowered_at = self._clock()
