"""The calls of one shard: which records the handler gets next, and what follows from its result.

Nothing here calls the handler or reads a clock; `worker.py` does.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from holdfast.flow.fair_queues import RecordQueue
from holdfast.flow.shards import StreamRecord
from holdfast.functions.acks import Positions, Range, ShardAcks
from holdfast.functions.events import EventBatch, EventOrigin, FunctionEvent
from holdfast.functions.outcomes import batch_failures, batch_no_acks, refusal, wants_no_ack
from holdfast.functions.output import Output, Records, ShardOutput, without
from holdfast.functions.settings import FunctionConfig
from holdfast.leases.lease import Counts, Json, Ranges, joined

MAX_LETTERS = 1000
"""A shard pauses while this many dead letters wait to be taken."""


@dataclass(slots=True)
class Call:
    """Records that the handler is given at once."""

    records: Sequence[StreamRecord]
    attempts: int = 0
    """How often these records have failed."""
    is_tracked: bool = True
    """Whether the acks know that the records are out."""


@dataclass(frozen=True, slots=True)
class DeadRecord:
    """A record that failed for the last time."""

    record: StreamRecord
    error: str
    attempts: int


@dataclass(frozen=True, slots=True)
class ShardProgress:
    """How far a shard got. Letters and position belong together: neither may be stored without the other."""

    id: str
    position: Json
    acked: tuple[Range, ...] = ()
    counts: Counts = Counts()
    """Since the last progress."""
    letters: tuple[DeadRecord, ...] = ()
    forwarded: Ranges = ()
    """Records that were acknowledged on other nodes, since the last progress."""
    output: tuple[Output, ...] = ()
    """Rows for other sinks that the records before the position have made since the last progress."""


@dataclass(slots=True)
class ShardCalls:
    """One shard in a worker. Records are handled in order; one that fails is tried again before any later one."""

    id: str
    origin: EventOrigin
    start: Json
    config: FunctionConfig
    acks: ShardAcks
    tracks: bool = True
    """Whether acks may come while a call runs or after it. Otherwise records are tracked only once they fail."""
    waiting: deque[StreamRecord] | RecordQueue = field(default_factory=deque)
    """Records that were read and not given to the handler."""
    held_until: float = 0.0
    """The shard waits until then before the next try."""
    stopped: str | None = None
    """Why nothing more is handled: a record failed for the last time and the policy is to stop."""
    draining: bool = False
    counts: Counts = Counts()
    output: ShardOutput | None = None
    """Rows for the other sinks; None if there are no other sinks."""
    _repeats: deque[Call] = field(default_factory=deque)
    _letters: list[DeadRecord] = field(default_factory=list)
    _forwarded: list[Range] = field(default_factory=list)
    _batch_due: float | None = None
    """The time at which the batch is handled even if it is not full."""
    reported: tuple[Json, tuple[Range, ...]] = field(init=False)
    """Position and ranges of the last progress."""

    def __post_init__(self) -> None:
        self.reported = self.start, self.acks.acked
        if self.config.batch is not None:
            self.waiting = RecordQueue()

    @property
    def blocked(self) -> bool:
        """Whether no new record is taken, regardless of the time."""
        return self.draining or self.stopped is not None or self.acks.full or self._is_full

    @property
    def _is_full(self) -> bool:
        """Whether `progress` must take results before more records are handled."""
        return len(self._letters) >= MAX_LETTERS or (self.output is not None and self.output.full)

    @property
    def has_records(self) -> bool:
        """Whether records wait for a call, now or later."""
        return bool(self.waiting or self._repeats)

    @property
    def is_plain(self) -> bool:
        """Whether single records may be handled one after the other, as they wait."""
        return not self._repeats and not self.blocked and (self.tracks or self.acks.in_order)

    def feed(self, records: Sequence[StreamRecord], now: float) -> None:
        """Add records that were read, in the order of the shard."""
        self.waiting.extend(records)
        if self.config.batch is not None and self._batch_due is None and self.waiting:
            self._batch_due = now + self.config.batch.timeout

    def wake_at(self, now: float) -> float | None:
        """When there is something to handle, `now` at the earliest; None until there are more records or acks."""
        if self.draining or self.stopped is not None or self._is_full:
            return None
        if self._repeats:
            return max(now, self.held_until)
        if not self.waiting or self.acks.full:
            return None
        if self.config.batch is None or len(self.waiting) >= self.config.batch.size or self._batch_due is None:
            return now
        return max(now, self._batch_due)

    def next_call(self, now: float) -> Call | None:
        """Take the records that the handler gets now; None if it gets none."""
        while (due := self.wake_at(now)) is not None and due <= now:
            if self._repeats:
                call = self._repeats.popleft()
                # What was acknowledged meanwhile is not handled again.
                call.records = [record for record in call.records if self.acks.is_out(record.offset)]
            else:
                call = self._take(1 if self.config.batch is None else self.config.batch.size)
                if self.config.batch is not None:
                    self._batch_due = now + self.config.batch.timeout if self.waiting else None
            if call.records:
                return call
        return None

    def _take(self, number: int) -> Call:
        waiting, acks = self.waiting, self.acks
        is_plain = not self.tracks and acks.in_order
        if isinstance(waiting, RecordQueue) and is_plain and (acks.last is None or waiting.first.offset > acks.last):
            # As they came: the records of a batch are made only if its handler looks at them.
            return Call(waiting.take(number), is_tracked=False)
        taken: list[StreamRecord] = []
        while waiting and len(taken) < number and not acks.full:
            record = waiting.popleft()
            if acks.deliver(record.offset):
                taken.append(record)
        return Call(taken)

    def _track(self, call: Call) -> None:
        if not call.is_tracked:
            call.is_tracked = True
            for record in call.records:
                self.acks.deliver(record.offset)

    # --- what became of a call ----------------------------------------------------------------------------------------

    def returned(
        self, call: Call, given: FunctionEvent | EventBatch, result: Any, now: float, today: float
    ) -> str | None:
        """Process the result of a call; `given` is what the handler was called with.

        Returns why records failed, if any did.
        """
        if isinstance(result, Records):
            reason = self.keep_output(call.records[0].offset, call.records[-1].offset, result)
            if reason is not None:
                self.failed(call, reason, now, today)
                return reason
            result = None
        if result is None and not call.is_tracked:
            self.acks.passed(call.records[-1].offset)
            self.counts += Counts(processed=len(call.records), succeeded=len(call.records))
            return None
        self._track(call)
        if not isinstance(given, EventBatch):
            reason = refusal(result)
            if reason is not None:
                self.failed(call, reason, now, today)
                return reason
            self._succeeded(call.records, {0} if wants_no_ack(result) else set())
            return None
        events = given.originals()
        failures = batch_failures(result, events)
        no_acks = batch_no_acks(result, events)
        good = [index for index in range(len(call.records)) if index not in failures]
        self._succeeded(
            [call.records[index] for index in good], {at for at, index in enumerate(good) if index in no_acks}
        )
        if not failures:
            return None
        reason = next(iter(failures.values()))
        self.failed(Call([call.records[index] for index in sorted(failures)], call.attempts), reason, now, today)
        return reason

    def keep_output(self, first: int, offset: int, records: Records) -> str | None:
        """Keep rows for other sinks, made by the call for these records. Returns why that is impossible."""
        if self.output is None:
            return "the handler returned records, and its pipeline has no other sink to write them to"
        return self.output.add(first, offset, records)

    def _succeeded(self, records: Sequence[StreamRecord], no_acks: set[int]) -> None:
        self.counts += Counts(processed=len(records), succeeded=len(records))
        if self.config.ack == "explicit_only":
            return
        for index, record in enumerate(records):
            if self.config.ack == "disable" or index not in no_acks:
                self.acks.ack(record.offset)

    def failed(self, call: Call, error: str, now: float, today: float) -> None:
        """The call has failed: try its records again after a pause, or give them up. `today` is seconds since 1970."""
        policy = self.config.on_error
        self._track(call)
        done = [record for record in call.records if not self.acks.is_out(record.offset)]
        if done:
            # Acknowledged by the handler before it failed.
            self.counts += Counts(processed=len(done), succeeded=len(done))
            call.records = [record for record in call.records if self.acks.is_out(record.offset)]
            if not call.records:
                return
        if policy.bisect and len(call.records) > 1:
            half = len(call.records) // 2
            self._repeats.extendleft(
                (Call(call.records[half:], call.attempts), Call(call.records[:half], call.attempts))
            )
            return
        call.attempts += 1
        used_up = policy.max_retries is not None and call.attempts > policy.max_retries
        if not used_up and not self._too_old(call, today):
            self._repeats.appendleft(call)
            # The exponent is bounded: max_retries may be unlimited.
            self.held_until = now + min(policy.max_backoff, policy.backoff * 2.0 ** min(call.attempts - 1, 60))
            return
        if policy.after_retries == "stop":
            self._repeats.appendleft(call)
            self.stopped = f"the record at offset {call.records[0].offset} failed {call.attempts} times: {error}"
            return
        self.counts += Counts(processed=len(call.records), dead=len(call.records))
        for record in call.records:
            self._letters.append(DeadRecord(record, error, call.attempts))
            self.acks.ack(record.offset)

    def _too_old(self, call: Call, today: float) -> bool:
        age = self.config.on_error.max_record_age
        return age is not None and all(today - record.timestamp / 1000 > age for record in call.records)

    def ack_elsewhere(self, ranges: Ranges) -> None:
        """Note that other nodes have acknowledged these records.

        Acks that cannot be remembered are not in the next progress.
        """
        for start, end in ranges:
            if all(self.acks.ack(offset) for offset in range(start, end)):
                self._forwarded.append((start, end))

    # --- what is reported ---------------------------------------------------------------------------------------------

    def drain(self) -> None:
        """Begin no more records; those that were read and not handled are left to the next owner. May be repeated."""
        self.draining = True
        self.waiting.clear()
        self._repeats.clear()

    @property
    def settled(self) -> bool:
        """Whether no ack can come any more for the records that the handler has got."""
        return self.acks.head is None

    def progress(self, positions: Positions) -> ShardProgress | None:
        """Take what is new since the last progress; None if nothing is new, or if the last one is not published yet."""
        if self.output is not None and self.output.waits:
            return None
        position, acked = self.acks.position(positions, self.start), self.acks.acked
        forwarded = joined(self._forwarded)
        output, waiting = tuple[Output, ...](), tuple[Range, ...]()
        if self.output is not None:
            output, waiting = self.output.take(self.acks.head), self.output.waiting
            acked, forwarded = without(acked, waiting), without(forwarded, waiting)
        if (position, acked) == self.reported and self.counts == Counts() and not (self._letters or forwarded):
            return None
        self._forwarded = [
            record for record in waiting if any(start <= record[0] < end for start, end in self._forwarded)
        ]
        taken = ShardProgress(self.id, position, acked, self.counts, tuple(self._letters), forwarded, output)
        self.reported, self.counts, self._letters = (position, acked), Counts(), []
        return taken

    def put_back(self, progress: ShardProgress, reported: tuple[Json, tuple[Range, ...]]) -> None:
        """Undo `progress`, which could not be stored; `reported` is what was reported before it."""
        self.reported, self.counts = reported, progress.counts + self.counts
        self._letters = [*progress.letters, *self._letters]
        self._forwarded = [*progress.forwarded, *self._forwarded]
        if self.output is not None:
            self.output.put_back(progress.output)
