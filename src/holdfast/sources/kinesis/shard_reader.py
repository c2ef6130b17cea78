"""Reads shards of a data stream inside a task: the `ShardReader` of the source `kinesis`.

Each shard is read on its own schedule by a small pool of threads: Kinesis allows five reads per second and shard, and
each read is a request of its own. A shard that is throttled waits longer; the others do not notice.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Any

from holdfast.errors import HoldfastError, SourceUnavailable
from holdfast.flow.fair_queues import QueuedReader
from holdfast.flow.shards import MAX_ITEM, Lag, RecordsMissing, ShardEnded, ShardFailed, ShardRecords, StreamRecord
from holdfast.leases.lease import Json
from holdfast.sources.kinesis.client import (
    IteratorExpired,
    KinesisClient,
    StreamAccess,
    StreamSummary,
    Throttled,
    milliseconds,
)

THREADS = 8
KEPT = 200
"""A shard with this many records that were not fetched is not read, nor a paused one with any."""
AT_ONCE = 1000
CHECK_EVERY = 10.0
"""Seconds after which the reader looks whether the stream still is the same."""
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 5.0
"""Seconds until a shard is read again that was throttled, and when Kinesis does not respond."""
SLACK = 3600.0
"""A record that is deleted within this many seconds follows others that were."""


@dataclass(frozen=True)
class KinesisReaderFactory:
    """Opens readers of one stream. A `ReaderFactory`."""

    access: StreamAccess
    id: str
    """The id of the stream: another stream of the same name is not read."""
    on_loss: str = "halt"
    interval: float = 0.25
    """Seconds between two reads of a shard."""

    def open(self) -> KinesisReader:
        return KinesisReader(self)


@dataclass
class _Reading:
    """One shard that is being read."""

    shard: str
    position: Json
    """Where an iterator is made if there is none."""
    iterator: str | None = None
    expected: int | None = None
    """The record with which the shard must go on if nothing was deleted; None if that is not known."""
    is_new: bool = True
    """Whether the expected record was not read before."""
    due_at: float = 0.0
    pause: float = FIRST_PAUSE
    running: Future[Mapping[str, Any]] | None = None
    behind: int | None = None
    """Milliseconds behind the end of the shard."""
    ended: bool = False

    def begin_at(self, position: Json) -> None:
        """Let the next iterator begin at this position: with the record before it, to see that it still exists."""
        number = position.get("at", position.get("after")) if isinstance(position, dict) else None
        self.iterator, self.position, self.expected = None, position, None
        if isinstance(number, str) and number.isdecimal():
            self.expected, self.is_new = int(number), "at" in position

    @property
    def first(self) -> Json:
        """The position of the first record of an iterator."""
        return self.position if self.expected is None else {"at": str(self.expected)}


class KinesisReader(QueuedReader):
    """Reads shards of one stream."""

    def __init__(self, factory: KinesisReaderFactory, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._factory, self._clock = factory, clock
        self._opened: KinesisClient | None = None
        self._pool: ThreadPoolExecutor | None = None
        self._check: Future[StreamSummary] | None = None
        self._summary: StreamSummary | None = None
        self._check_at = 0.0
        self._away: str | None = None
        self._readings: dict[str, _Reading] = {}

    def add(self, shard: str, position: Json) -> None:
        self.remove(shard)
        self._readings[shard] = _Reading(shard, position)
        self._readings[shard].begin_at(position)

    def remove(self, shard: str) -> None:
        self._readings.pop(shard, None)
        self._queues.drop(shard)

    def fetch_by_shard(self, limit: int, timeout: float) -> Sequence[ShardRecords]:
        deadline = self._clock() + timeout
        while True:
            self._look_after_stream()
            self._collect()
            records = self._queues.take(limit)
            self._report_ends()
            self._send()
            if records or self._reports:
                return records
            now = self._clock()
            if now >= deadline:
                if self._away is not None:
                    raise SourceUnavailable(self._away)
                return records
            self._wait(deadline - now)

    def lag(self, shard: str) -> Lag:
        reading = self._readings.get(shard)
        return Lag(None, None if reading is None else reading.behind)

    def position_at(self, offset: int) -> Json:
        return {"at": str(offset)}

    def position_after(self, offset: int) -> Json:
        return {"after": str(offset)}

    def item_of(self, offset: int) -> int | None:
        return record_number(offset)

    def close(self) -> None:
        pool, self._pool, client, self._opened = self._pool, None, self._opened, None
        if pool is not None:
            pool.shutdown(wait=False, cancel_futures=True)
        if client is not None:
            client.close()
        self._readings.clear()

    # --- requests --------------------------------------------------------------------------------------------------

    def _client(self) -> KinesisClient:
        if self._opened is None:
            self._opened = KinesisClient(self._factory.access, THREADS)
        return self._opened

    def _threads(self) -> ThreadPoolExecutor:
        if self._pool is None:
            self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="holdfast-kinesis")
        return self._pool

    def _look_after_stream(self) -> None:
        """Check from time to time that the stream is still the same; shards are read only once that is known."""
        if self._check is not None and self._check.done():
            check, self._check = self._check, None
            try:
                self._summary, self._away = check.result(), None
            except Exception as error:  # noqa: BLE001 - a stream that cannot be described does not end the worker
                self._away, self._check_at = _words(error), self._clock() + FIRST_PAUSE
            if self._summary is not None and self._summary.id != self._factory.id:
                for shard in list(self._readings):
                    self._fail(shard, f"stream {self._factory.access.stream} was deleted and created again", halt=True)
        elif self._check is None and self._clock() >= self._check_at:
            self._check_at = self._clock() + CHECK_EVERY
            self._check = self._threads().submit(self._client().summary)

    def _send(self) -> None:
        """Read the shards that are due and of which few records are queued."""
        now = self._clock()
        for reading in self._readings.values() if self._summary is not None else ():
            if self._is_wanted(reading) and now >= reading.due_at:
                reading.due_at = now + self._factory.interval
                reading.running = self._threads().submit(self._read, reading.shard, reading.iterator, reading.first)

    def _is_wanted(self, reading: _Reading) -> bool:
        """Whether more of a shard should be read, once it is time."""
        most = 1 if reading.shard in self._queues.paused else KEPT
        return reading.running is None and not reading.ended and len(self._queues.waiting(reading.shard)) < most

    def _read(self, shard: str, iterator: str | None, position: Json) -> Mapping[str, Any]:
        client = self._client()
        return client.records(iterator or client.iterator(shard.rpartition("/")[2], position), AT_ONCE)

    def _wait(self, longest: float) -> None:
        running = [reading.running for reading in self._readings.values() if reading.running is not None]
        pending: list[Future[Any]] = [*running, *([] if self._check is None else [self._check])]
        now = self._clock()
        due = min((reading.due_at for reading in self._readings.values() if self._is_wanted(reading)), default=now + 1)
        longest = max(0.001, min(longest, due - now))
        if pending:
            wait(pending, longest, FIRST_COMPLETED)
        else:
            time.sleep(longest)

    # --- responses -------------------------------------------------------------------------------------------------

    def _collect(self) -> None:
        for reading in list(self._readings.values()):
            if reading.running is None or not reading.running.done():
                continue
            running, reading.running = reading.running, None
            try:
                self._learn(reading, running.result())
                reading.pause, self._away = FIRST_PAUSE, None
            except IteratorExpired:
                reading.begin_at(reading.position)
                reading.due_at = 0.0
            except SourceUnavailable as error:
                reading.due_at = self._clock() + reading.pause
                reading.pause = min(LONGEST_PAUSE, reading.pause * 2)
                if not isinstance(error, Throttled):
                    self._away = str(error)
            except Exception as error:  # noqa: BLE001 - whatever it is, the other shards go on
                self._fail(reading.shard, _words(error))

    def _learn(self, reading: _Reading, response: Mapping[str, Any]) -> None:
        records = [_record(reading.shard, record) for record in response["Records"]]
        reading.behind = response.get("MillisBehindLatest")
        if records and reading.expected is not None and not self._goes_on(reading, records):
            return
        if records:
            reading.position = self.position_after(records[-1].offset)
            self._queues.put(reading.shard, records)
        following = response.get("NextShardIterator")
        reading.iterator, reading.ended = following, following is None

    def _goes_on(self, reading: _Reading, records: list[StreamRecord]) -> bool:
        """Check that a shard continues where it was left, and drop the record read before; False if it halts."""
        expected, reading.expected = reading.expected, None
        first = records[0]
        if first.offset == expected:
            if not reading.is_new:
                del records[0]
            return True
        assert self._summary is not None
        about_to_go = first.timestamp / 1000 + self._summary.retention - SLACK < self._summary.now
        # Without traffic the last record that was read is deleted, too, and nothing is missing.
        if not reading.is_new and not about_to_go:
            return True
        halted = self._factory.on_loss == "halt"
        self._reports.append(RecordsMissing(reading.shard, expected, first.offset, halted))
        if halted:
            self.remove(reading.shard)
        return not halted

    def _report_ends(self) -> None:
        for reading in [found for found in self._readings.values() if found.ended]:
            if not self._queues.waiting(reading.shard):
                self.remove(reading.shard)
                self._reports.append(ShardEnded(reading.shard))

    def _fail(self, shard: str, error: str, *, halt: bool = False) -> None:
        self.remove(shard)
        self._reports.append(ShardFailed(shard, error, halt))


def record_number(offset: int) -> int | None:
    """The number of a record in its shard, which is a part of its sequence number; None if that has another form.

    In hexadecimal digits: 2, nine of the shard's age, one of its number, sixteen of the record, nineteen more, and 2.
    """
    digits = f"{offset:x}"
    number = offset >> 80 & (1 << 64) - 1
    is_known = len(digits) == 47 and digits[0] == digits[-1] == "2" and number <= MAX_ITEM
    return number if is_known else None


def _words(error: Exception) -> str:
    return str(error) if isinstance(error, HoldfastError) else f"{type(error).__name__}: {error}"


def _record(shard: str, record: Mapping[str, Any]) -> StreamRecord:
    key = record["PartitionKey"].encode()
    return StreamRecord(shard, int(record["SequenceNumber"]), milliseconds(record), key, (), record["Data"])
