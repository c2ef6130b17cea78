"""Redrive of a function: a task gives the records of dead letters to the handler, as a worker does with a shard.

A record that fails once more, or is not acknowledged although the function asks for that, becomes another letter.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from holdfast.errors import BatchError
from holdfast.flow.batch import Name
from holdfast.flow.fault import Fault
from holdfast.flow.shards import StreamRecord
from holdfast.flow.staging import StagedBatch, Stager, Staging
from holdfast.functions.events import EventOrigin, TriggerInfo
from holdfast.functions.record_letters import RECORD_COLUMN, RecordLetters, record_of_row
from holdfast.functions.settings import FunctionConfig
from holdfast.functions.shard_calls import DeadRecord
from holdfast.functions.worker import FunctionWorker
from holdfast.leases.lease import Json

UNACKED = "the handler returned, and the record was not acknowledged"
NOT_HANDLED = "too many records before it were not acknowledged, so that the handler did not get it"
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

    def write(self, batch: StagedBatch, items: Any, rows: Any, output_folder: str = "") -> int:  # noqa: ARG002
        records = map(record_of_row, rows.column(RECORD_COLUMN).to_pylist())
        self._records.setdefault(batch.id, []).extend(records)
        return 0

    def bury(self, batch: StagedBatch, faults: Sequence[tuple[int, Fault]]) -> None:
        self._stager.letters.bury(batch, faults)

    def finish(self, batch: StagedBatch) -> Json:
        """Calls the handler for every record of the batch. Raises `BatchError` if the function is to stop at one."""
        stager, name = self._stager, self._stager.names[batch.id]
        trigger = TriggerInfo(name=batch.pipeline.rpartition("|")[2])
        number = int(name.label) if name.label.isdigit() else 0
        worker = FunctionWorker(stager.config, trigger=trigger)
        try:
            worker.assign(batch.key, EventOrigin(name.stream, number, trigger), None)
            dead = _handled(worker, batch.key, self._records.pop(batch.id, []), stager.ack_within)
        finally:
            worker.close()
        stager.letters.keep_of_batch(batch, dead)
        self._dead[batch.id] = dead
        return {}

    def late_unfit(self, batch: StagedBatch) -> int:
        return len(self._dead.get(batch.id, ()))

    def letter_reason(self, batch: StagedBatch) -> str | None:
        dead = self._dead.get(batch.id)
        return dead[0].error.partition("\n")[0] if dead else None

    def abandon(self, batch: StagedBatch) -> None:
        self._records.pop(batch.id, None)


def _handled(
    worker: FunctionWorker, shard: str, records: Sequence[StreamRecord], ack_within: float
) -> list[DeadRecord]:
    """Let the handler have the records, with the retries that the function allows. Returns those that failed."""
    worker.feed(shard, records)
    calls, dead, give_up = worker.shards[shard], list[DeadRecord](), float("inf")
    while (due := worker.wake_at()) is not None or (calls.waiting and calls.stopped is None):
        now = time.monotonic()
        # Without a time, the next record waits for the acks of those before it.
        give_up = float("inf") if due is not None else min(give_up, now + ack_within)
        if now >= give_up:
            break
        time.sleep(LOOK_EVERY if due is None else max(0.0, due - now))
        worker.step()
        dead += _letters(worker)
    if calls.stopped is not None:
        raise BatchError(calls.stopped)
    left = list(calls.waiting)
    worker.drain([shard])
    give_up = time.monotonic() + ack_within
    while not calls.settled and time.monotonic() < give_up:
        time.sleep(LOOK_EVERY)
        worker.step()
    worker.close()
    dead += _letters(worker)
    unacked = [record for record in records if calls.acks.is_out(record.offset)]
    dead += [DeadRecord(record, UNACKED, 1) for record in unacked]
    return [*dead, *(DeadRecord(record, NOT_HANDLED, 0) for record in left)]


def _letters(worker: FunctionWorker) -> list[DeadRecord]:
    return [letter for progress in worker.progress(_Offsets()) for letter in progress.letters]


class _Offsets:
    """The `Positions` of a redrive, which stores none of them."""

    def position_at(self, offset: int) -> Json:
        return offset

    def position_after(self, offset: int) -> Json:
        return offset + 1
