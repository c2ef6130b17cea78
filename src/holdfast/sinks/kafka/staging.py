"""The sink `kafka` in a task: messages wait in staged files until their commit is sent, or are sent at once."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from holdfast.buckets.bucket import Bucket, OpenFile, StagingAttempt
from holdfast.deadletters.staging import LetterFiles
from holdfast.errors import Unavailable
from holdfast.flow.fault import Fault, record_fault
from holdfast.flow.names import OURS
from holdfast.flow.staging import StagedBatch, Stager, Staging
from holdfast.leases.lease import Json
from holdfast.sinks.kafka.messages import Message, MessageColumns
from holdfast.sinks.kafka.producers import DirectProducer, partition_count

OUTBOX = f"{OURS}/outbox/"
FILE_BYTES = 8 << 20
"""Bytes of messages after which another file begins: a node reads a file at a time."""
MAX_WAITING_LETTERS = 256 << 10


@dataclass(frozen=True)
class KafkaStager(Stager):
    """How messages are staged. If `direct`, they are sent at once, at least once."""

    bucket: Bucket
    columns_of: MessageColumns
    topic: str
    properties: Mapping[str, Any]
    """Of the client."""
    direct: bool = False
    partitions: int = 0
    """How many partitions the topic has at least."""

    def columns(self, fields: Any) -> Mapping[str, Any]:
        return self.columns_of.needed(list(fields.names))

    def warm_up(self) -> None:
        self.bucket.warm_up()

    def begin(self) -> KafkaStaging:
        return KafkaStaging(self)


@dataclass
class _Waiting:
    """The entries and messages of one batch in this task."""

    entries: list[dict[str, Json]] = field(default_factory=list)
    messages: list[Message] = field(default_factory=list)
    first: int = 0
    last: int = 0
    size: int = 0
    rows: int = 0
    reason: str | None = None


class KafkaStaging(Staging):
    """One attempt of one task."""

    def __init__(self, stager: KafkaStager) -> None:
        self._stager = stager
        self._attempt = StagingAttempt(stager.bucket)
        self._letters = LetterFiles(self._attempt, MAX_WAITING_LETTERS)
        self._batches: dict[str, _Waiting] = {}
        self._direct = DirectProducer(stager.properties, stager.topic) if stager.direct else None
        self._partitions, self._is_counted = stager.partitions, False

    def write(self, batch: StagedBatch, items: Any, rows: Any, output_folder: str = "") -> int:  # noqa: ARG002
        waiting, refused = self._batches.setdefault(batch.id, _Waiting()), []
        messages = self._stager.columns_of.messages(rows)
        for number, (item, message) in enumerate(zip(items.to_pylist(), messages, strict=True)):
            if isinstance(message, str):
                refused.append((number, item, message))
            elif (reason := self._lacks(message.partition)) is not None:
                refused.append((number, item, reason))
            elif self._direct is not None:
                self._direct.send(message)
                waiting.rows += 1
            else:
                self._keep(batch, waiting, item, message)
        self._refuse(batch, rows, refused)
        return len(refused)

    def _lacks(self, partition: int) -> str | None:
        """Why a message cannot go to this partition; None if it can.

        The producer would wait in vain for a missing one.
        """
        if partition >= self._partitions and not self._is_counted:
            self._partitions = partition_count(self._stager.properties, self._stager.topic)
            self._is_counted = True
        if partition < self._partitions:
            return None
        return f"topic {self._stager.topic} has no partition {partition}; it has {self._partitions}"

    def _keep(self, batch: StagedBatch, waiting: _Waiting, item: int, message: Message) -> None:
        # A file is sent as a whole, in the order of its first item: one with a lower item begins anew.
        if waiting.messages and ((waiting.size >= FILE_BYTES and item != waiting.last) or item < waiting.first):
            self._close_file(batch, waiting)
        if not waiting.messages:
            waiting.first = item
        waiting.messages.append(message)
        waiting.last, waiting.size, waiting.rows = item, waiting.size + message.size, waiting.rows + 1

    def _close_file(self, batch: StagedBatch, waiting: _Waiting) -> None:
        key = f"{OUTBOX}{waiting.first:020d}"
        file = OpenFile(self._attempt.stage(batch, key), key, waiting.first)
        file.write_line(waiting.last, msgspec.msgpack.encode(waiting.messages), rows=len(waiting.messages))
        waiting.entries.append(file.close())
        waiting.messages, waiting.size = [], 0

    def _refuse(self, batch: StagedBatch, rows: Any, refused: Sequence[tuple[int, int, str]]) -> None:
        if not refused:
            return
        from holdfast.formats._json_objects import raw_records

        raws, is_value = raw_records(rows.take([number for number, _, _ in refused]))
        form = batch.raw_form(is_value=is_value)
        faults = zip(refused, raws, strict=True)
        self.bury(batch, [(item, replace(record_fault(why, raw), form=form)) for (_, item, why), raw in faults])

    def bury(self, batch: StagedBatch, faults: Sequence[tuple[int, Fault]]) -> None:
        waiting = self._batches.setdefault(batch.id, _Waiting())
        if faults:
            waiting.reason = waiting.reason or faults[0][1].reason
        self._letters.write(batch, faults)

    def letter_reason(self, batch: StagedBatch) -> str | None:
        return self._batches[batch.id].reason if batch.id in self._batches else None

    def finish(self, batch: StagedBatch) -> Json:
        waiting = self._batches.setdefault(batch.id, _Waiting())
        if waiting.messages:
            self._close_file(batch, waiting)
        if self._direct is not None:
            self._direct.flush()
        letters = self._letters.finish(batch)
        return {"rows": waiting.rows, "files": [*waiting.entries, *letters], "staged_at": time.time()}

    def abandon(self, batch: StagedBatch) -> None:
        waiting = self._batches.pop(batch.id, None)
        self._letters.abandon(batch)
        with suppress(Unavailable):
            self._stager.bucket.discard([] if waiting is None else [entry["staged"] for entry in waiting.entries])

    def close(self) -> None:
        if self._direct is not None:
            self._direct.close()
