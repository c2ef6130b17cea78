"""Sends bodies on a few threads until each document is acknowledged or refused; only failed ones are sent again.

429 slows the sender down and fails nothing; 413 splits. A body that makes no headway for the time of `patience` is
given up with `SinkUnavailable`, and what is behind it with it: the batch is read again when the cluster is back. That
nothing succeeds is told long before that.
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
from holdfast.sinks.opensearch.bulk_request import Away, Busy, Poster, TooMuch
from holdfast.sinks.opensearch.bulk_response import Verdicts
from holdfast.sinks.opensearch.concurrency import AdaptiveLimit

FIRST_PAUSE, LONGEST_PAUSE = 0.1, 5.0
BUSY_TRIES = 3
"""A body that is turned away so often in a row may be larger than the server ever takes: it is cut in halves."""
BROKEN_TRIES = 5
"""A document over which the server fails once more than so often is to blame itself."""
TELL_AFTER = 10.0
"""Seconds without any headway after which people hear of it, and between two times that they do."""


@dataclass
class Tally:
    """What sending took, since it was last asked."""

    requests: int = 0
    size: int = 0
    documents: int = 0
    conflicts: int = 0
    retried: int = 0
    """Documents that were sent once more."""
    rejected: int = 0
    """Documents that were turned away because the server had too much to do."""


@dataclass
class Account:
    """What became of one batch's documents so far."""

    out: int = 0
    refused: list[tuple[int, Fault]] = field(default_factory=list)
    error: Exception | None = None


class Sender:
    """One task's. `send`, `wait` and `account` are called by the task's own thread."""

    def __init__(
        self,
        poster: Poster,
        limit: AdaptiveLimit,
        threads: int,
        patience: float,
        tell: Callable[[str], None] = lambda _reason: None,
    ) -> None:
        """`tell` hears, on the task's own thread, why nothing has succeeded for a while; it must not block."""
        self._poster = poster
        self._limit = limit
        self._patience = patience
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="holdfast-bulk")
        self._accounts: defaultdict[str, Account] = defaultdict(Account)
        self._tally = Tally()
        self._gone: SinkUnavailable | None = None
        self._tell = tell
        self._trouble = ""
        self._under_way = 0
        self._headway_at = 0.0
        self._told = threading.Condition()
        self._closed = threading.Event()

    def send(self, body: Body) -> None:
        """Let the body go. Blocks while as many are under way as the server takes."""
        with self._told:
            for part in body.parts:
                self._accounts[part.batch.id].out += len(part)
            if not self._under_way:
                self._has_headway()
            self._under_way += 1
        while not self._limit.take(TELL_AFTER / 10):
            self._tell_of_trouble()
        self._pool.submit(self._carry, body)

    def wait(self, batch_id: str) -> None:
        """Block until nothing of the batch is under way. Raises what went wrong with it."""
        with self._told:
            account = self._accounts[batch_id]
            while not self._told.wait_for(lambda: account.out == 0, TELL_AFTER / 10):
                self._tell_of_trouble()
        self.check(batch_id)

    def check(self, batch_id: str) -> None:
        """Raise what has gone wrong with the batch so far."""
        error = self._accounts[batch_id].error
        if error is not None:
            raise error

    def refused(self, batch_id: str) -> list[tuple[int, Fault]]:
        """Documents that were refused since this was last asked."""
        with self._told:
            account = self._accounts[batch_id]
            refused, account.refused = account.refused, []
        return refused

    def forget(self, batch_id: str) -> None:
        """Nobody asks for the batch any more."""
        with self._told:
            self._accounts.pop(batch_id, None)

    def tally(self) -> Tally:
        """The sums since this was last asked."""
        with self._told:
            tally, self._tally = self._tally, Tally()
        return tally

    def close(self) -> None:
        """Send nothing more. Blocks for what is on the line."""
        self._closed.set()
        self._pool.shutdown()
        self._poster.close()

    def _tell_of_trouble(self) -> None:
        with self._told:
            idle = time.monotonic() - self._headway_at
            if idle < TELL_AFTER:
                return
            reason = self._trouble or f"no answer for {idle:.0f} seconds"
            self._headway_at += idle
        self._tell(reason)

    def _has_headway(self) -> None:
        self._headway_at, self._trouble = time.monotonic(), ""

    # --- on the sender's threads -------------------------------------------------------------------------------

    def _carry(self, body: Body) -> None:
        try:
            self._deliver(body)
        except Exception as error:  # noqa: BLE001 - whatever it is, the batches must hear of it
            self._fail(body, error)
        finally:
            self._limit.give_back()
            with self._told:
                self._under_way -= 1
                for part in body.parts:
                    self._accounts[part.batch.id].out -= len(part)
                self._told.notify_all()

    def _deliver(self, body: Body) -> None:
        """Send the body and what is left of it, until nothing is left."""
        todo = [body]
        while todo:
            todo += reversed(_Delivery(self, todo.pop()).run())

    def _fail(self, body: Body, error: Exception) -> None:
        with self._told:
            for part in body.parts:
                self._accounts[part.batch.id].error = error

    def post(self, body: Body) -> Verdicts | Away | Busy | TooMuch:
        if self._gone is not None:
            raise self._gone
        if self._closed.is_set():
            raise SinkUnavailable("the task was ended")
        began = time.monotonic()
        answer = self._poster.post(body)
        is_busy = isinstance(answer, Busy) or (isinstance(answer, Verdicts) and answer.busy > 0)
        if is_busy or isinstance(answer, Away):
            self._limit.rejected(began)
        else:
            self._limit.succeeded(began)
        with self._told:
            self._tally.requests += 1
            self._tally.size += body.size
            self._tally.rejected += len(body) if isinstance(answer, Busy) else getattr(answer, "busy", 0)
        return answer

    def pause(self, tries: int) -> None:
        """Wait a little, longer after each try; not at all when the task is over."""
        longest = min(LONGEST_PAUSE, FIRST_PAUSE * 2.0 ** min(tries, 10))
        self._closed.wait(longest * random.uniform(0.5, 1.0))

    def give_up(self, reason: str) -> SinkUnavailable:
        self._gone = SinkUnavailable(reason)
        return self._gone

    @property
    def patience(self) -> float:
        return self._patience

    def settle(self, body: Body, told: Verdicts) -> None:
        """Note what is decided."""
        decided = len(body) - len(told.again) - len(told.broken)
        if body.letters and told.refused:
            raise BatchError(f"the index of dead letters refuses one: {told.refused[0][1]}")
        places = [place for place, _ in told.refused]
        faults = dict(told.refused)
        with self._told:
            if decided:
                self._has_headway()
            if not body.letters:
                self._tally.documents += decided - len(places)
                self._tally.conflicts += len(told.conflicts)
            first = 0
            for part, own in body.apart(places):
                account = self._accounts[part.batch.id]
                for place in own.tolist():
                    account.refused.append((int(part.items[place]), part.fault(place, faults[first + place])))
                first += len(part)

    def sends_again(self, number: int, reason: str) -> None:
        """So many documents are sent once more, and why."""
        with self._told:
            self._tally.retried += number
            self._trouble = reason


class _Delivery:
    """One body on its way. It shrinks to what is to be sent again."""

    def __init__(self, sender: Sender, body: Body) -> None:
        self._sender = sender
        self._body = body
        self._tries = 0
        self._busy = 0
        self._failures = np.zeros(len(body), np.int64)
        self._give_up_at = time.monotonic() + sender.patience

    def run(self) -> Sequence[Body]:
        """Returns when all is decided, or with smaller bodies that are to be sent instead."""
        while len(self._body):
            answer = self._sender.post(self._body)
            if isinstance(answer, TooMuch):
                return self._halves(answer.reason)
            if isinstance(answer, Verdicts):
                self._settle(answer)
                continue
            self._busy = self._busy + 1 if isinstance(answer, Busy) else 0
            if self._busy >= BUSY_TRIES and len(self._body) > 1:
                return self._body.halves()
            self._wait(answer.reason)
        return ()

    def _settle(self, told: Verdicts) -> None:
        self._failures[[place for place, _ in told.broken]] += 1
        hopeless = [one for one in told.broken if self._failures[one[0]] > BROKEN_TRIES]
        told.broken = [one for one in told.broken if one not in hopeless]
        told.refused = sorted([*told.refused, *hopeless])
        self._sender.settle(self._body, told)
        again = sorted([*told.again, *(place for place, _ in told.broken)])
        if len(again) < len(self._body):
            self._give_up_at = time.monotonic() + self._sender.patience
        self._body, self._busy, self._failures = self._body.chosen(again), 0, self._failures[again]
        if again:
            self._wait(told.reason or told.broken[0][1])

    def _wait(self, reason: str) -> None:
        if time.monotonic() >= self._give_up_at:
            raise self._sender.give_up(reason)
        self._sender.sends_again(len(self._body), reason)
        self._sender.pause(self._tries)
        self._tries += 1

    def _halves(self, reason: str) -> Sequence[Body]:
        if len(self._body) > 1:
            return self._body.halves()
        self._sender.settle(self._body, Verdicts(refused=[(0, reason)]))
        return ()
