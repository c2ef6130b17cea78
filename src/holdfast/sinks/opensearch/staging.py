"""The sink in a task: rows become documents, which are visible as soon as the server has acknowledged them.

A batch is finished when each of its documents is acknowledged or has become a dead letter. A document that is written
twice exists once, because its id is derived from the record.
"""

from __future__ import annotations

import json
import secrets
import socket
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from holdfast.buckets.bucket import Bucket, StagingAttempt
from holdfast.deadletters.staging import LetterFiles, LetterStaging
from holdfast.errors import Refused, Unavailable
from holdfast.flow.fault import Fault
from holdfast.flow.staging import ChecksColumns, StagedBatch, Stager, Staging
from holdfast.leases.lease import Json
from holdfast.registry import did_you_mean
from holdfast.sinks.opensearch.bulk_body import OpenBody, RecordNumbers
from holdfast.sinks.opensearch.bulk_request import BulkClient, BulkTarget
from holdfast.sinks.opensearch.bulk_sender import AdaptiveConcurrency, BulkSender
from holdfast.sinks.opensearch.dead_letter_index import LISTS, LetterIndex
from holdfast.sinks.opensearch.documents import ORIGIN, SERVER, EntryBuilder
from holdfast.sinks.opensearch.fields import DOCUMENT, VALUE
from holdfast.sinks.opensearch.staged_entries import StagedEntryBuilder
from holdfast.sinks.opensearch.templates import ORIGIN_FIELDS

MAX_WAITING_LETTERS = 8 << 20
"""Bytes of a batch's dead letters that may wait in memory. Refusals come late and in any order: the more of them are
sorted at a time, the fewer files they become."""


@dataclass(frozen=True)
class SendLimits:
    """Sizes and number of a task's requests, and how long it waits."""

    max_bytes: int = 10_000_000
    max_count: int = 5000
    concurrency: int = 4
    slow_after: float = 10.0
    patience: float = 30.0


@dataclass(frozen=True)
class OpenSearchStager(Stager, ChecksColumns):
    target: BulkTarget
    entries: EntryBuilder | StagedEntryBuilder
    letters: Bucket | LetterIndex
    """Where dead letters go: to files in a bucket, or to an index."""
    limits: SendLimits = field(default_factory=SendLimits)
    outages: OutageReporter | None = None
    """Reports to the node that a task waits for the cluster."""
    until: Mapping[str, float] = field(default_factory=dict)
    """By batch: no index is named after a time later than this. For other batches it may be any time."""

    task_modules = ("opensearchpy",)

    def columns(self, fields: Any) -> Mapping[str, Any]:
        """The document, and the columns that templates use."""
        from pyspark.sql import functions as sql

        if _has_documents(fields):
            return {VALUE: None, **self._template_columns(fields)}
        whole = sql.struct(*(sql.col(f"`{name.replace('`', '``')}`") for name in fields.names))
        return {DOCUMENT: sql.to_json(whole), **self._template_columns(fields)}

    def check_columns(self, fields: Any) -> None:
        if _has_documents(fields):
            return
        for name in sorted(self.entries.names - set(ORIGIN_FIELDS)):
            if not {name, name.split(".")[0]} & set(fields.names):
                hint = did_you_mean(name, fields.names) or f"; there are {', '.join(fields.names)}"
                raise Refused(f"a template names {name!r}, and there is no such column{hint}")

    def plain_columns(self, fields: Any) -> Mapping[str, Any] | None:
        return self.columns(fields) if _has_documents(fields) else dict.fromkeys(fields.names)

    def _template_columns(self, fields: Any) -> dict[str, None]:
        used = self.entries.names | {name.split(".")[0] for name in self.entries.names}
        return dict.fromkeys(name for name in fields.names if name in used)

    def begin(self) -> OpenSearchStaging:
        return OpenSearchStaging(self)


def _has_documents(fields: Any) -> bool:
    from pyspark.sql.types import BinaryType, StringType

    kind = fields[VALUE].dataType if VALUE in fields.names else None
    return isinstance(kind, BinaryType) or (isinstance(kind, StringType) and len(fields.names) == 1)


class OpenSearchStaging(Staging):
    """One attempt of one task. Requests are sent on threads of their own."""

    def __init__(self, stager: OpenSearchStager) -> None:
        limits = stager.limits
        self._entries = stager.entries
        self._until = stager.until
        self._open = OpenBody(limits.max_bytes, limits.max_count)
        self._concurrency = AdaptiveConcurrency(limits.concurrency, limits.slow_after)
        self._sender = BulkSender(
            BulkClient(stager.target, limits.concurrency),
            self._concurrency,
            threads=limits.concurrency,
            patience=limits.patience,
            report_outage=(lambda _reason: None) if stager.outages is None else stager.outages.report,
        )
        self._letters = _letter_staging(stager.letters, self._sender)
        self._numbers: defaultdict[str, RecordNumbers] = defaultdict(RecordNumbers)
        self._refused: defaultdict[str, int] = defaultdict(int)
        self._reasons: dict[str, str] = {}
        """By batch, the reason of its first dead letter."""

    def write(self, batch: StagedBatch, items: Any, rows: Any, output_folder: str = "") -> int:  # noqa: ARG002 - no folders
        self._sender.check(batch.id)
        unfit = 0
        until = self._until.get(batch.id)
        for entries, faults in self._entries.entries(batch, self._numbers[batch.id], items, rows, until):
            for body in self._open.add(entries):
                self._sender.send(body)
            if faults:
                self._keep(batch, faults)
                unfit += len(faults)
        self._bury_refused(batch)
        self._letters.flush_if_many(batch)
        return unfit

    def bury(self, batch: StagedBatch, faults: Sequence[tuple[int, Fault]]) -> None:
        self._sender.check(batch.id)
        self._keep(batch, faults)

    def finish(self, batch: StagedBatch) -> Json:
        records = self._records(batch)
        for body in self._open.rest():
            self._sender.send(body)
        self._sender.wait(batch.id)
        if self._bury_refused(batch):
            self._sender.wait(batch.id)
        lists = self._letters.lists(batch)
        if lists:
            self._sender.wait(batch.id)
        part = {"files": self._letters.finish(batch), LISTS: lists, "dead": self._refused[batch.id]}
        if batch.id in self._until:
            part["until"] = self._until[batch.id]
        self._sender.forget(batch.id)
        return {**part, **records, **vars(self._sender.tally()), "limit": round(self._concurrency.limit, 2)}

    def _records(self, batch: StagedBatch) -> Json:
        """The records of this task, for the receipt: needed for ids by origin if processors may have moved rows."""
        numbers = self._numbers.pop(batch.id, RecordNumbers())
        if self._entries.document_id != ORIGIN:
            return {}
        numbers.check()
        return {"records": numbers.packed()} if batch.changed else {}

    def late_unfit(self, batch: StagedBatch) -> int:
        return self._refused.pop(batch.id, 0)

    def letter_reason(self, batch: StagedBatch) -> str | None:
        return self._reasons.pop(batch.id, None)

    def _keep(self, batch: StagedBatch, faults: Sequence[tuple[int, Fault]]) -> None:
        for _, fault in faults[:1]:
            self._reasons.setdefault(batch.id, fault.reason)
        # Where ids follow from records, it does no harm if other rows of a record are written a second time.
        several_rows = batch.several_rows and self._entries.document_id == SERVER
        self._letters.write(replace(batch, several_rows=several_rows), faults)

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
            self._keep(batch, refused)
            self._refused[batch.id] += len(refused)
        return bool(refused)


def _letter_staging(letters: Bucket | LetterIndex, sender: BulkSender) -> LetterStaging:
    if isinstance(letters, LetterIndex):
        return letters.begin(sender.send)
    return LetterFiles(StagingAttempt(letters), MAX_WAITING_LETTERS)


MAX_DATAGRAM_BYTES = 1200
"""A datagram of this size is not fragmented."""
MAX_REASON_LENGTH = 250
MAX_DATAGRAMS_READ = 1000


@dataclass(frozen=True)
class OutageReporter:
    """Sends reports to a node. Picklable; `key` proves that a report comes from a task of that node."""

    host: str
    port: int
    key: str

    def report(self, reason: str) -> None:
        """Send the reason. Neither blocks nor raises."""
        fields = {"key": self.key, "reason": reason[:MAX_REASON_LENGTH]}
        message = json.dumps(fields, ensure_ascii=False).encode("utf-8", "replace")
        with suppress(OSError):
            family, kind, protocol, _, address = socket.getaddrinfo(self.host, self.port, type=socket.SOCK_DGRAM)[0]
            with socket.socket(family, kind, protocol) as sender:
                sender.setblocking(False)
                sender.sendto(message, address)


class OutageListener:
    """Receives reports on the node, at the address of the Spark driver. Raises `OSError` if it cannot listen."""

    def __init__(self) -> None:
        host, bound_to = _driver_addresses()
        family, kind, protocol, _, address = socket.getaddrinfo(bound_to, 0, type=socket.SOCK_DGRAM)[0]
        self._socket = socket.socket(family, kind, protocol)
        self._socket.setblocking(False)
        self._socket.bind(address)
        self.reporter = OutageReporter(host, self._socket.getsockname()[1], secrets.token_hex(16))

    def last_reason(self) -> str | None:
        """The last reason that was reported since the previous call, if any. Does not block."""
        reason = None
        with suppress(OSError):
            for _ in range(MAX_DATAGRAMS_READ):
                reason = self._reason(self._socket.recv(MAX_DATAGRAM_BYTES)) or reason
        return reason

    def _reason(self, message: bytes) -> str | None:
        try:
            fields = json.loads(message)
            trusted = secrets.compare_digest(str(fields["key"]).encode(), self.reporter.key.encode())
            return str(fields["reason"]) if trusted else None
        except (ValueError, KeyError, TypeError):
            return None

    def close(self) -> None:
        self._socket.close()


def _driver_addresses() -> tuple[str, str]:
    """The host under which executors reach the driver, and the address to bind to; loopback without a Spark session."""
    from pyspark import SparkContext

    context = SparkContext._active_spark_context  # noqa: SLF001 - PySpark has no public way to get it
    if context is None:
        return "127.0.0.1", "127.0.0.1"
    host = context.getConf().get("spark.driver.host", "127.0.0.1") or "127.0.0.1"
    return host, context.getConf().get("spark.driver.bindAddress", host) or host
