"""The sink `opensearch` on the node: it checks and prepares the cluster; tasks write the documents.

Staging makes documents visible, so that only files of dead letters, if there are any, are left to be published. That is
exactly-once as long as ids follow from records: a document that is written twice exists once.
"""

from __future__ import annotations

import queue
import socket
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import urlsplit

from holdfast.buckets.bucket import Bucket
from holdfast.buckets.root import bucket_of
from holdfast.buckets.sink_root import SinkRoot, staged_files
from holdfast.config.aws import AwsIdentity
from holdfast.deadletters.letter_files import FileLetters
from holdfast.deadletters.letter_topic import LetterTopic, letter_topic
from holdfast.errors import Halt, Refused, SinkUnavailable, StagedDataGone, Unavailable, UsageError
from holdfast.events import DocumentsIndexed, Event, Unreachable
from holdfast.flow.batch import Batch, Name
from holdfast.flow.letter import CommittedLetters
from holdfast.flow.pipeline import ReportsEvents
from holdfast.flow.sink import (
    KeepsLetters,
    KeepsStaged,
    Publication,
    PublishesFiles,
    PublishResult,
    Restages,
    Sink,
    StagesByBatch,
    VisibleWhenStaged,
)
from holdfast.flow.staging import receipt_files
from holdfast.leases.lease import Json, Lease
from holdfast.observe.addresses import allowed, resolved
from holdfast.sinks.opensearch.access import Access, AwsAccess, Tls
from holdfast.sinks.opensearch.bulk_body import check_records_together
from holdfast.sinks.opensearch.bulk_request import BulkTarget
from holdfast.sinks.opensearch.bulk_sender import LONGEST_PAUSE
from holdfast.sinks.opensearch.config import ID_KINDS, OpenSearchConfig
from holdfast.sinks.opensearch.dead_letter_index import LISTS, IndexLetters, LetterIndex, letters_index
from holdfast.sinks.opensearch.documents import EntryBuilder
from holdfast.sinks.opensearch.index_setup import IndexSetup
from holdfast.sinks.opensearch.staging import OpenSearchStager, OutageListener, SendLimits
from holdfast.sinks.opensearch.templates import IndexName, Template, index_name_of

SUMS = ("documents", "conflicts", "dead", "requests", "retried", "rejected", "size")


class OpenSearchSink(
    Sink, StagesByBatch, KeepsStaged, VisibleWhenStaged, PublishesFiles, Restages, KeepsLetters, ReportsEvents
):
    """Documents in a search index, and dead letters in a bucket or in an index of their own."""

    def __init__(
        self,
        name: str,
        stager: OpenSearchStager,
        setup: IndexSetup,
        bucket: Bucket | None = None,
        max_ahead: float | None = None,
        letter_topic: LetterTopic | None = None,
    ) -> None:
        """`bucket` is where dead letters go, if they go to files. `letter_topic` gets copies of all letters.

        `max_ahead` as in the settings.
        """
        self.name = name
        self._stager = stager
        self._setup = setup
        self._bucket = bucket
        self._max_ahead = max_ahead
        self._letter_topic = letter_topic
        self._root = None if bucket is None else SinkRoot(bucket, name, self.progress, "root of the dead letters")
        self._pipeline = ""
        self._events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._listening = threading.Lock()
        self._listener: OutageListener | None = None

    def open(self, pipeline: str, *, durable: bool) -> str:
        self._pipeline = pipeline
        _check_addresses(self._setup.access.hosts)
        verdict = self._setup.apply()
        copies = [] if self._letter_topic is None else [self._letter_topic.check()]
        if self._root is None:
            self._indexed_letters(pipeline).prepare()
            return "; dead letters: ".join([verdict, *copies])
        letters = self._root.open(pipeline, durable=durable)
        return f"{verdict}; dead letters: {'; '.join([letters, *copies])}"

    def close(self) -> None:
        if self._root is not None:
            self._root.close()
        if self._listener is not None:
            self._listener.close()

    def letter_box(self, pipeline: str) -> CommittedLetters:
        if self._bucket is not None:
            return FileLetters(self._bucket)
        return self._indexed_letters(pipeline)

    def _indexed_letters(self, pipeline: str) -> IndexLetters:
        letters = self._stager.letters
        index = (letters.index if isinstance(letters, LetterIndex) else None) or letters_index(pipeline)
        return IndexLetters(self._setup.access, index, pipeline, self.name)

    def stager(self) -> OpenSearchStager:
        return self._stager

    def stager_for(self, batches: Sequence[Batch]) -> OpenSearchStager:
        # Not before the first round: the Spark session, which has the node's address, is started after the sink.
        with self._listening, suppress(OSError):
            self._listener = self._listener or OutageListener()
        named_after_times = bool(self._stager.entries.time_fields)
        bounds = {batch.id: batch.until(self.name, self._max_ahead) for batch in batches if named_after_times}
        until = {batch_id: time for batch_id, time in bounds.items() if time is not None}
        outages = None if self._listener is None else self._listener.reporter
        return replace(self._stager, outages=outages, until=until)

    def receipt(self, parts: Sequence[Json]) -> Json:
        check_records_together([part["records"] for part in parts if part.get("records") is not None])
        files = receipt_files(parts)
        sums = {name: sum(part[name] for part in parts) for name in SUMS}
        if parts:
            limit = min(part["limit"] for part in parts)
            self._events.put(DocumentsIndexed(self._pipeline, self.name, **sums, limit=limit))
        until = next((part["until"] for part in parts if "until" in part), None)
        receipt = {"documents": sums["documents"], "dead": sums["dead"], "files": files}
        lists = [name for part in parts for name in part.get(LISTS, ())]
        return receipt | ({} if until is None else {"until": until}) | ({LISTS: lists} if lists else {})

    def noticed(self) -> list[Event]:
        events: list[Event] = []
        with suppress(queue.Empty):
            while True:
                events.append(self._events.get_nowait())
        reason = None if self._listener is None else self._listener.last_reason()
        if reason is not None:
            events.append(Unreachable("sink", reason, LONGEST_PAUSE, self._pipeline))
        return events

    def is_visible(self, receipt: Json) -> bool:
        return not receipt["files"] and not receipt.get(LISTS)

    def publish(self, publications: Sequence[Publication]) -> list[PublishResult]:
        return [self._publish(publication) for publication in publications]

    def _publish(self, publication: Publication) -> PublishResult:
        files = staged_files(publication.receipt)
        if files and self._root is None:
            return Halt(f"sink {self.name!r} has dead letters in files, but its settings name no folder for them")
        try:
            if files and self._root is not None:
                self._root.publish(files)
            if self._letter_topic is not None:
                self._letter_topic.publish(self.letter_box(publication.lease.pipeline), publication, self.progress)
        except (Halt, StagedDataGone, Unavailable) as trouble:
            return trouble
        return None

    def mend(self, publication: Publication, fresh: Json) -> Json:
        """The receipt after documents were written again under the same ids.

        Published letters are never overwritten.
        """
        return {**fresh, "token": publication.receipt["token"]}

    def discard_staged(self, publications: Sequence[Publication]) -> None:
        if self._root is not None:
            self._root.discard_staged(publications)

    def sweep(self, taken: Sequence[tuple[Lease, Name]]) -> None:
        if self._root is not None:
            self._root.sweep(taken)


def _check_addresses(hosts: Sequence[str]) -> None:
    """Raise `Refused` for an address at which this host's credentials can be read, such as a metadata service."""
    for host in hosts:
        parts = urlsplit(host)
        try:
            found = resolved(parts.hostname or "", parts.port or 443)
        except socket.gaierror as error:
            raise SinkUnavailable(f"{host} cannot be resolved: {error.strerror}") from error
        for address in found:
            if not allowed(address, private=True):
                raise Refused(f"{host} resolves to {address}, which cannot be a search cluster")


# --- settings become a sink ------------------------------------------------------------------------------------------


def build_sink(name: str, config: OpenSearchConfig) -> OpenSearchSink:
    """The sink of that name, not yet connected."""
    access, index = cluster_access(config), _index_name(config)
    letters = LettersTarget.of(name, config)
    target = BulkTarget(access, index.constant, config.pipeline, config.version is not None)
    stager = OpenSearchStager(target, entry_builder(config), letters.kept, send_limits(config))
    setup = _index_setup(name, config, access)
    return OpenSearchSink(name, stager, setup, letters.bucket, config.max_ahead, letters.topic)


@dataclass(frozen=True)
class LettersTarget:
    """Where a sink keeps dead letters: in a bucket or in an index, with copies in a topic if there is one."""

    kept: Bucket | LetterIndex
    bucket: Bucket | None
    topic: LetterTopic | None

    @classmethod
    def of(cls, name: str, config: OpenSearchConfig) -> LettersTarget:
        letters = config.dead_letters
        bucket = None if letters.file is None else bucket_of(letters.file, letters.s3)
        topic = letter_topic(letters.kafka, (*(config.owned_roots().values() or sorted(config.hosts)), name))
        index = LetterIndex(name, letters.index, copied=letters.kafka is not None)
        return cls(index if bucket is None else bucket, bucket, topic)


def cluster_access(config: OpenSearchConfig) -> Access:
    """How to reach the cluster. Raises `UsageError` for a file that cannot be read."""
    tls, aws = config.tls, config.aws
    try:
        authority = None if tls.ca_file is None else Path(tls.ca_file).read_text()
    except OSError as error:
        raise UsageError(f"tls.ca_file: cannot read {tls.ca_file}: {error.strerror}") from error
    signed = None
    if aws is not None:
        signed = AwsAccess(aws.region, aws.service, AwsIdentity.of(aws))
    return Access(
        config.hosts,
        config.username,
        config.password,
        config.api_key,
        signed,
        Tls(authority, tls.client_cert, tls.client_key, tls.verify),
        config.request_timeout,
        config.gzip,
    )


def entry_builder(config: OpenSearchConfig) -> EntryBuilder:
    """How records become documents."""
    identity = config.document_id
    return EntryBuilder(
        _index_name(config),
        Template(config.acts),
        identity if identity in ID_KINDS else Template(identity),
        None if config.routing is None else Template(config.routing),
        None if config.version is None else Template(config.version),
        config.version_type,
        config.text_field,
    )


def _index_name(config: OpenSearchConfig) -> IndexName:
    return IndexName(Template(config.index or ""), config.allowed_indexes)


def send_limits(config: OpenSearchConfig) -> SendLimits:
    return SendLimits(
        config.max_bulk_bytes, config.max_bulk_documents, config.concurrency, config.slow_after, config.patience
    )


def _index_setup(name: str, config: OpenSearchConfig, access: Access) -> IndexSetup:
    template = config.index_template
    return IndexSetup(
        access,
        _index_name(config),
        index_name_of(f"holdfast-{config.index}-{name}") if template is None else template.name,
        None if template is None else template.body,
        config.mappings,
        config.settings,
        config.data_stream,
        config.pipeline,
        config.version is not None and Template(config.acts).constant in {None, "delete"},
    )
