"""Redrive of a function: a task gives the records of dead letters to the handler, as a worker does with a shard.

A record that fails once more, or is not acknowledged although the function requires acks, becomes another letter. Rows
that the handler returns are staged for the other sinks, and committed with the letters that made them.
"""

from __future__ import annotations

import time
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from holdfast.errors import BatchError
from holdfast.flow.batch import Name
from holdfast.flow.fault import Fault
from holdfast.flow.shards import StreamRecord
from holdfast.flow.staging import StagedBatch, Stager, Staging
from holdfast.functions.events import EventOrigin, TriggerInfo
from holdfast.functions.output import Output, OutputSinks
from holdfast.functions.record_letters import RECORD_COLUMN, RecordLetters, record_of_row
from holdfast.functions.settings import FunctionConfig
from holdfast.functions.shard_calls import DeadRecord
from holdfast.functions.worker import FunctionWorker
from holdfast.leases.lease import Json

UNACKED = "the handler returned, and the record was not acknowledged"
WITH_UNACKED = "the handler made its rows together with those of a record that was not acknowledged"
NOT_HANDLED = "too many records before this one were not acknowledged, so that the handler did not get it"
LOOK_EVERY = 0.02


@dataclass(frozen=True)
class HandlerStager(Stager):
    """Hands rows of `StreamRecordRebuilder` to the handler."""

    config: FunctionConfig
    letters: RecordLetters
    ack_within: float
    """Seconds for which acks are awaited after the last record."""
    names: Mapping[str, Name]
    """By batch, the stream and the number of the shard from which its records came."""
    output: OutputSinks | None = None
    """The other sinks of the pipeline; None if there are none."""

    @property
    def feeds(self) -> Collection[str]:  # type: ignore[override]
        return () if self.output is None else tuple(self.output.stagers)

    def columns(self, fields: Any) -> Mapping[str, Any]:  # noqa: ARG002 - the rebuilder's one
        return {RECORD_COLUMN: None}

    def begin(self) -> HandlerStaging:
        return HandlerStaging(self)


class HandlerStaging(Staging):
    """Gathers the records of each batch; the handler gets them when the batch is complete."""

    def __init__(self, stager: HandlerStager) -> None:
        self._stager = stager
        self._records: dict[str, list[StreamRecord]] = {}
        self._dead: dict[str, list[DeadRecord]] = {}
        self._refused: dict[str, Mapping[str, int]] = {}
        """By batch and sink, the rows that the other sinks have refused at once."""
        self._others: Mapping[str, Staging] = {}

    def feed(self, others: Mapping[str, Staging]) -> None:
        self._others = others

    def write(self, batch: StagedBatch, items: Any, rows: Any, output_folder: str = "") -> int:  # noqa: ARG002
        records = [record_of_row(row) for row in rows.column(RECORD_COLUMN).to_pylist()]
        self._records.setdefault(batch.id, []).extend(records)
        return 0

    def bury(self, batch: StagedBatch, faults: Sequence[tuple[int, Fault]]) -> None:
        self._stager.letters.bury(batch, faults)

    def finish(self, batch: StagedBatch) -> Json:
        """Calls the handler for every record of the batch.

        Raises `BatchError` if the function must stop at one of them.
        """
        stager, name = self._stager, self._stager.names[batch.id]
        trigger = TriggerInfo(name=batch.pipeline.rpartition("|")[2])
        number = int(name.label) if name.label.isdigit() else 0
        worker = FunctionWorker(stager.config, trigger=trigger)
        worker.sinks = stager.output
        try:
            worker.assign(batch.key, EventOrigin(name.stream, number, trigger), None)
            handled = _handled(worker, batch.key, self._records.pop(batch.id, []), stager.ack_within)
        finally:
            worker.close()
        if stager.output is not None and handled.output:
            rows_of = replace(batch, changed=True, several_rows=True, reader=None)
            refused = stager.output.write(self._others, rows_of, handled.output)
            self._refused[batch.id] = dict(zip(self._others, refused, strict=True))
        stager.letters.keep_of_batch(batch, handled.dead)
        self._dead[batch.id] = handled.dead
        return {}

    def late_unfit(self, batch: StagedBatch) -> int:
        at_once = self._refused.get(batch.id, {})
        # The other sinks get the same rows: what one refuses, another may have refused too.
        refused = [at_once.get(name, 0) + other.late_unfit(batch) for name, other in self._others.items()]
        return len(self._dead.get(batch.id, ())) + max(refused, default=0)

    def chosen_letters(self, batch: StagedBatch) -> int:
        return max((other.chosen_letters(batch) for other in self._others.values()), default=0)

    def letter_reason(self, batch: StagedBatch) -> str | None:
        dead = self._dead.get(batch.id)
        found = [dead[0].error.partition("\n")[0]] if dead else []
        found += [reason for other in self._others.values() if (reason := other.letter_reason(batch)) is not None]
        return next(iter(found), None)

    def abandon(self, batch: StagedBatch) -> None:
        self._records.pop(batch.id, None)


@dataclass
class _Handled:
    """What became of records: those that failed, and the rows of the others."""

    dead: list[DeadRecord] = field(default_factory=list)
    output: list[Output] = field(default_factory=list)

    def take(self, worker: FunctionWorker) -> None:
        for progress in worker.progress(_Offsets()):
            self.dead += progress.letters
            self.output += progress.output

    def take_complete(self, made: Sequence[Output], records: Sequence[StreamRecord], unacked: Collection[int]) -> None:
        """Take the rows of calls whose records are all acknowledged; those of the others come with the next letters.

        Rows do not say which record of a call they are for: all records of such a call become letters.
        """
        offsets = [record.offset for record in records]
        for output in made:
            of_call = records[bisect_left(offsets, output.first) : bisect_right(offsets, output.offset)]
            acked = [record for record in of_call if record.offset not in unacked]
            if len(acked) == len(of_call):
                self.output.append(output)
            else:
                self.dead += [DeadRecord(record, WITH_UNACKED, 1) for record in acked]


def _handled(worker: FunctionWorker, shard: str, records: Sequence[StreamRecord], ack_within: float) -> _Handled:
    """Give the records to the handler, with the retries that the function allows."""
    worker.feed(shard, records)
    calls, handled, give_up = worker.shards[shard], _Handled(), float("inf")
    while (due := worker.wake_at()) is not None or (calls.waiting and calls.stopped is None):
        now = time.monotonic()
        # Without a time, the next record waits for the acks of those before it.
        give_up = float("inf") if due is not None else min(give_up, now + ack_within)
        if now >= give_up:
            break
        time.sleep(LOOK_EVERY if due is None else max(0.0, due - now))
        worker.step()
        handled.take(worker)
    if calls.stopped is not None:
        raise BatchError(calls.stopped)
    left = list(calls.waiting)
    worker.drain([shard])
    give_up = time.monotonic() + ack_within
    while not calls.settled and time.monotonic() < give_up:
        time.sleep(LOOK_EVERY)
        worker.step()
    worker.close()
    handled.take(worker)
    unacked = [record for record in records if calls.acks.is_out(record.offset)]
    handled.dead += [DeadRecord(record, UNACKED, 1) for record in unacked]
    if calls.output is not None:
        handled.take_complete(calls.output.take(None), records, {record.offset for record in unacked})
    handled.dead += [DeadRecord(record, NOT_HANDLED, 0) for record in left]
    return handled


class _Offsets:
    """The `Positions` of a redrive, which stores no positions."""

    def position_at(self, offset: int) -> Json:
        return offset

    def position_after(self, offset: int) -> Json:
        return offset + 1
