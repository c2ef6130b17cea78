"""The sink in a task: rows become documents, which are visible as soon as the server has acknowledged them.

A batch is finished when each of its documents is acknowledged or a dead letter. One that is written twice is there
once, because ids are the records' own.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from holdfast.buckets.bucket import Bucket
from holdfast.buckets.staged_file import StagingAttempt
from holdfast.deadletters.staging import LetterFiles, LetterStaging
from holdfast.errors import Unavailable
from holdfast.flow.fault import Fault
from holdfast.flow.staging import StagedBatch, Stager, Staging
from holdfast.leases.lease import Json
from holdfast.sinks.opensearch.bulk_body import OpenBody
from holdfast.sinks.opensearch.bulk_request import Poster, Target
from holdfast.sinks.opensearch.bulk_sender import Sender
from holdfast.sinks.opensearch.concurrency import AdaptiveLimit
from holdfast.sinks.opensearch.dead_letter_index import LettersToIndex
from holdfast.sinks.opensearch.document_ids import Numbers
from holdfast.sinks.opensearch.documents import ORIGIN, Form
from holdfast.sinks.opensearch.fields import MADE, VALUE
from holdfast.sinks.opensearch.outage_reports import TroubleAddress

MAX_WAITING_LETTERS = 8 << 20
"""Bytes of a batch's dead letters that may wait in memory. Refusals come late and in any order: the more of them are
sorted at a time, the fewer files they become."""


@dataclass(frozen=True)
class Pace:
    """How fast one task sends, and how long it waits."""

    max_bytes: int = 10_000_000
    max_count: int = 5000
    concurrency: int = 4
    slow_after: float = 10.0
    patience: float = 30.0


@dataclass(frozen=True)
class OpenSearchStager(Stager):
    target: Target
    form: Form
    letters: Bucket | LettersToIndex
    """Where dead letters go: to files in a bucket, or to an index."""
    pace: Pace = field(default_factory=Pace)
    trouble: TroubleAddress | None = None
    """Where the node listens while a task waits for the cluster."""

    def columns(self, fields: Any) -> Mapping[str, Any]:
        """The document, and the columns that templates name."""
        from pyspark.sql import functions as sql

        if _has_documents(fields):
            return {VALUE: None, **self._named(fields)}
        whole = sql.struct(*(sql.col(f"`{name.replace('`', '``')}`") for name in fields.names))
        return {MADE: sql.to_json(whole), **self._named(fields)}

    def plain_columns(self, fields: Any) -> Mapping[str, Any] | None:
        return self.columns(fields) if _has_documents(fields) else dict.fromkeys(fields.names)

    def _named(self, fields: Any) -> dict[str, None]:
        named = self.form.names | {name.split(".")[0] for name in self.form.names}
        return dict.fromkeys(name for name in fields.names if name in named)

    def begin(self) -> OpenSearchStaging:
        return OpenSearchStaging(self)


def _has_documents(fields: Any) -> bool:
    from pyspark.sql.types import BinaryType, StringType

    kind = fields[VALUE].dataType if VALUE in fields.names else None
    return isinstance(kind, BinaryType) or (isinstance(kind, StringType) and len(fields.names) == 1)


class OpenSearchStaging(Staging):
    """One attempt of one task. Requests are under way on threads of its own."""

    def __init__(self, stager: OpenSearchStager) -> None:
        pace = stager.pace
        self._form = stager.form
        self._open = OpenBody(pace.max_bytes, pace.max_count)
        self._limit = AdaptiveLimit(pace.concurrency, pace.slow_after)
        poster = Poster(stager.target, pace.concurrency)
        tell = (lambda _reason: None) if stager.trouble is None else stager.trouble.tell
        self._sender = Sender(poster, self._limit, pace.concurrency, pace.patience, tell)
        self._letters = _letter_staging(stager.letters, self._sender)
        self._numbers: defaultdict[str, Numbers] = defaultdict(Numbers)
        self._refused: defaultdict[str, int] = defaultdict(int)

    def write(self, batch: StagedBatch, items: Any, rows: Any, place: str = "") -> int:  # noqa: ARG002 - no places
        self._sender.check(batch.id)
        unfit = 0
        for entries, faults in self._form.entries(batch, self._numbers[batch.id], items, rows):
            for body in self._open.add(entries):
                self._sender.send(body)
            if faults:
                self._letters.write(batch, faults)
                unfit += len(faults)
        self._bury_refused(batch)
        self._letters.flush_if_many(batch)
        return unfit

    def bury(self, batch: StagedBatch, faults: Sequence[tuple[int, Fault]]) -> None:
        self._sender.check(batch.id)
        self._letters.write(batch, faults)

    def finish(self, batch: StagedBatch) -> Json:
        records = self._records(batch)
        for body in self._open.rest():
            self._sender.send(body)
        self._sender.wait(batch.id)
        if self._bury_refused(batch):
            self._sender.wait(batch.id)
        told = {"files": self._letters.finish(batch), "dead": self._refused[batch.id]}
        self._sender.forget(batch.id)
        return {**told, **records, **vars(self._sender.tally()), "limit": round(self._limit.now, 2)}

    def _records(self, batch: StagedBatch) -> Json:
        """For the receipt, where ids are made from them and processors may have moved rows to other tasks."""
        numbers = self._numbers.pop(batch.id, Numbers())
        if self._form.document_id != ORIGIN:
            return {}
        numbers.check()
        return {"records": numbers.packed()} if batch.changed else {}

    def late_unfit(self, batch: StagedBatch) -> int:
        return self._refused.pop(batch.id, 0)

    def abandon(self, batch: StagedBatch) -> None:
        self._open.forget(batch.id)
        self._numbers.pop(batch.id, None)
        with suppress(Exception):
            self._letters.abandon(batch)
        self._refused.pop(batch.id, None)

    def close(self) -> None:
        with suppress(Unavailable):
            self._sender.close()

    def _bury_refused(self, batch: StagedBatch) -> bool:
        refused = self._sender.refused(batch.id)
        if refused:
            self._letters.write(batch, refused)
            self._refused[batch.id] += len(refused)
        return bool(refused)


def _letter_staging(letters: Bucket | LettersToIndex, sender: Sender) -> LetterStaging:
    if isinstance(letters, LettersToIndex):
        return letters.begin(sender.send)
    return LetterFiles(StagingAttempt(letters), MAX_WAITING_LETTERS)
