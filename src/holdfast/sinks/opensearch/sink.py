"""The sink `opensearch` on the node: it checks and prepares the cluster; documents are written by the tasks.

Staging makes documents visible, so that publish has nothing to do but to publish the dead letters' files if there are
any. That is exactly-once as far as ids are the records' own: what a batch writes twice is there once.
"""

from __future__ import annotations

import queue
import socket
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

from holdfast.buckets.bucket import Bucket
from holdfast.buckets.root import bucket_of
from holdfast.buckets.sink_root import SinkRoot, staged_files
from holdfast.deadletters.letter_files import FileLetters
from holdfast.errors import Halt, Refused, SinkUnavailable, StagedDataGone, Unavailable, UsageError
from holdfast.events import DocumentsIndexed, Event, Unreachable
from holdfast.flow.batch import Batch, Name
from holdfast.flow.letter import LetterBox
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
from holdfast.leases.lease import Json, Lease
from holdfast.observe.addresses import allowed, resolved
from holdfast.sinks.opensearch.access import Access, AwsAccess, Tls
from holdfast.sinks.opensearch.bulk_request import Target
from holdfast.sinks.opensearch.bulk_sender import LONGEST_PAUSE
from holdfast.sinks.opensearch.config import WORDS, OpenSearchConfig
from holdfast.sinks.opensearch.dead_letter_index import IndexLetters, LettersToIndex, letters_index
from holdfast.sinks.opensearch.document_ids import check_apart
from holdfast.sinks.opensearch.documents import Form
from holdfast.sinks.opensearch.index_setup import Setup
from holdfast.sinks.opensearch.outage_reports import TroubleListener
from holdfast.sinks.opensearch.staging import OpenSearchStager, Pace
from holdfast.sinks.opensearch.templates import IndexName, Template, index_name_of

SUMS = ("documents", "conflicts", "dead", "requests", "retried", "rejected", "size")


class OpenSearchSink(
    Sink, StagesByBatch, KeepsStaged, VisibleWhenStaged, PublishesFiles, Restages, KeepsLetters, ReportsEvents
):
    """Documents in a search index, and dead letters in a bucket or an index of their own."""

    def __init__(self, name: str, stager: OpenSearchStager, setup: Setup, bucket: Bucket | None = None) -> None:
        """`bucket` is where dead letters go, if they go to files."""
        self.name = name
        self._stager = stager
        self._setup = setup
        self._bucket = bucket
        self._root = None if bucket is None else SinkRoot(bucket, name, self.progress, "root of the dead letters")
        self._pipeline = ""
        self._heard: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._listening = threading.Lock()
        self._listener: TroubleListener | None = None

    def open(self, pipeline: str, *, durable: bool) -> str:
        self._pipeline = pipeline
        _check_addresses(self._setup.access.hosts)
        verdict = self._setup.apply()
        if self._root is None:
            self._indexed_letters(pipeline).prepare()
            return verdict
        return f"{verdict}; dead letters: {self._root.open(pipeline, durable=durable)}"

    def close(self) -> None:
        if self._root is not None:
            self._root.close()
        if self._listener is not None:
            self._listener.close()

    def letter_box(self, pipeline: str) -> LetterBox:
        if self._bucket is not None:
            return FileLetters(self._bucket)
        return self._indexed_letters(pipeline)

    def _indexed_letters(self, pipeline: str) -> IndexLetters:
        letters = self._stager.letters
        index = (letters.index if isinstance(letters, LettersToIndex) else None) or letters_index(pipeline)
        return IndexLetters(self._setup.access, index, pipeline, self.name)

    def stager(self) -> OpenSearchStager:
        return self._stager

    def stager_for(self, batches: Sequence[Batch]) -> OpenSearchStager:  # noqa: ARG002 - stages all batches alike
        # Not before the first round: only then is there a Spark session that knows the node's address.
        with self._listening, suppress(OSError):
            self._listener = self._listener or TroubleListener()
        return self._stager if self._listener is None else replace(self._stager, trouble=self._listener.address)

    def receipt(self, parts: Sequence[Json]) -> Json:
        check_apart([part["records"] for part in parts if part.get("records") is not None])
        sums = {name: sum(part[name] for part in parts) for name in SUMS}
        if parts:
            limit = min(part["limit"] for part in parts)
            self._heard.put(DocumentsIndexed(self._pipeline, self.name, **sums, limit=limit))
        files = sorted((file for part in parts for file in part["files"]), key=lambda file: str(file["key"]))
        return {"documents": sums["documents"], "dead": sums["dead"], "files": files}

    def noticed(self) -> list[Event]:
        heard: list[Event] = []
        with suppress(queue.Empty):
            while True:
                heard.append(self._heard.get_nowait())
        trouble = None if self._listener is None else self._listener.heard()
        if trouble is not None:
            heard.append(Unreachable("sink", trouble, LONGEST_PAUSE, self._pipeline))
        return heard

    def is_visible(self, receipt: Json) -> bool:
        return not receipt["files"]

    def publish(self, publications: Sequence[Publication]) -> list[PublishResult]:
        return [self._publish(publication) for publication in publications]

    def _publish(self, publication: Publication) -> PublishResult:
        files = staged_files(publication.receipt)
        if not files:
            return None
        if self._root is None:
            return Halt(f"sink {self.name!r} has dead letters in files, but its settings name no folder for them")
        try:
            self._root.publish(files)
        except (Halt, StagedDataGone, Unavailable) as trouble:
            return trouble
        return None

    def mend(self, publication: Publication, fresh: Json) -> Json:
        """Documents were only written once more. Letters that are published already are never overwritten."""
        return {**fresh, "token": publication.receipt["token"]}

    def discard_staged(self, publications: Sequence[Publication]) -> None:
        if self._root is not None:
            self._root.discard_staged(publications)

    def sweep(self, taken: Sequence[tuple[Lease, Name]]) -> None:
        if self._root is not None:
            self._root.sweep(taken)


def _check_addresses(hosts: Sequence[str]) -> None:
    """Raise `Refused` for an address that gives away this host's credentials, and that no cluster can have."""
    for host in hosts:
        parts = urlsplit(host)
        try:
            found = resolved(parts.hostname or "", parts.port or 443)
        except socket.gaierror as error:
            raise SinkUnavailable(f"{host} cannot be found: {error.strerror}") from error
        for address in found:
            if not allowed(address, private=True):
                raise Refused(f"{host} is at {address}, where no search cluster can be")


# --- settings become a sink ------------------------------------------------------------------------------------------


def sink_of(name: str, config: OpenSearchConfig) -> OpenSearchSink:
    """The sink of that name, not yet connected."""
    access, letters = access_of(config), config.dead_letters
    bucket = None if letters.file is None else bucket_of(letters.file, letters.s3)
    target = Target(access, Template(config.index).constant, config.pipeline, config.version is not None)
    kept = LettersToIndex(name, letters.index) if bucket is None else bucket
    stager = OpenSearchStager(target, form_of(config), kept, _pace_of(config))
    return OpenSearchSink(name, stager, _setup_of(name, config, access), bucket)


def access_of(config: OpenSearchConfig) -> Access:
    """How the cluster is reached. Raises `UsageError` for a file that cannot be read."""
    tls, aws = config.tls, config.aws
    try:
        authority = None if tls.ca_file is None else Path(tls.ca_file).read_text()
    except OSError as error:
        raise UsageError(f"tls.ca_file: cannot read {tls.ca_file}: {error.strerror}") from error
    signed = None
    if aws is not None:
        signed = AwsAccess(aws.region, aws.service, aws.access_key_id, aws.secret_access_key, aws.session_token)
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


def form_of(config: OpenSearchConfig) -> Form:
    """What a record becomes."""
    identity = config.document_id
    return Form(
        _index_of(config),
        Template(config.acts),
        identity if identity in WORDS else Template(identity),
        None if config.routing is None else Template(config.routing),
        None if config.version is None else Template(config.version),
        config.version_type,
        config.text_field,
    )


def _index_of(config: OpenSearchConfig) -> IndexName:
    return IndexName(Template(config.index), config.allowed_indexes)


def _pace_of(config: OpenSearchConfig) -> Pace:
    return Pace(
        config.max_bulk_bytes, config.max_bulk_documents, config.concurrency, config.slow_after, config.patience
    )


def _setup_of(name: str, config: OpenSearchConfig, access: Access) -> Setup:
    given = config.index_template
    return Setup(
        access,
        _index_of(config),
        index_name_of(f"holdfast-{config.index}-{name}") if given is None else given.name,
        None if given is None else given.body,
        config.mappings,
        config.settings,
        config.data_stream,
        config.pipeline,
        config.version is not None and Template(config.acts).constant in {None, "delete"},
    )
