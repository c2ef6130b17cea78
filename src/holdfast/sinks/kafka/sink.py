"""The sink `kafka` on the node: sends each commit in one transaction and only once, however often it is published."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

import msgspec

from holdfast.buckets.bucket import Bucket, StagedFile
from holdfast.buckets.root import S3Options, bucket_of, root_identity
from holdfast.buckets.sink_root import SinkRoot, staged_files
from holdfast.config.kafka_client import client_properties
from holdfast.deadletters.letter_files import FileLetters
from holdfast.errors import Halt, StagedDataGone, Unavailable
from holdfast.flow.batch import Name
from holdfast.flow.letter import LetterBox
from holdfast.flow.sink import (
    KeepsLetters,
    KeepsStaged,
    Publication,
    PublishesFiles,
    PublishResult,
    Restages,
    Sink,
    VisibleWhenStaged,
    Witness,
)
from holdfast.flow.staging import receipt_files
from holdfast.leases.lease import Json, Lease
from holdfast.sinks.kafka.config import KafkaSinkConfig
from holdfast.sinks.kafka.messages import Message, MessageColumns
from holdfast.sinks.kafka.producers import CommitProducer, SentCommit
from holdfast.sinks.kafka.staging import OUTBOX, KafkaStager

_decoder = msgspec.msgpack.Decoder(list[tuple[bytes | None, bytes | None, list[tuple[str, bytes | None]], int]])


class KafkaSink(Sink, KeepsStaged, PublishesFiles, Restages, KeepsLetters):
    """Messages of a topic. Rows wait in files below a root, where dead letters are kept, too."""

    def __init__(self, name: str, bucket: Bucket, stager: KafkaStager, producer: CommitProducer) -> None:
        self.name = name
        self._bucket = bucket
        self._stager = stager
        self._producer = producer
        self._root = SinkRoot(bucket, name, self.progress)

    def open(self, pipeline: str, *, durable: bool) -> str:
        partitions = self._producer.partitions()
        self._stager = replace(self._stager, partitions=partitions)
        topic = f"topic {self._stager.topic} has {partitions} partitions"
        return f"{topic}; {self._root.open(pipeline, durable=durable)}"

    def close(self) -> None:
        self._producer.close()
        self._root.close()

    def stager(self) -> KafkaStager:
        return self._stager

    def letter_box(self, pipeline: str) -> LetterBox:  # noqa: ARG002 - the root is one pipeline's
        return FileLetters(self._bucket)

    def receipt(self, parts: Sequence[Json]) -> Json:
        times = [part["staged_at"] for part in parts if "staged_at" in part]
        made = {"staged_at": min(times)} if times else {}
        return {"rows": sum(part["rows"] for part in parts), "files": receipt_files(parts), **made}

    def publish(self, publications: Sequence[Publication]) -> list[PublishResult]:
        results: list[PublishResult] = []
        away: Unavailable | None = None
        for publication in publications:
            # Brokers that do not respond are waited for once: a step publishes many commits.
            results.append(self._publish(publication) if away is None else away)
            away = results[-1] if isinstance(results[-1], Unavailable) else None
            self.progress()
        return results

    def _publish(self, publication: Publication) -> PublishResult:
        files = staged_files(publication.receipt)
        outbox = [file for file in files if file.key.startswith(OUTBOX)]
        try:
            if outbox:
                self._send(publication, outbox)
            self._root.publish([file for file in files if not file.key.startswith(OUTBOX)])
        except (Halt, StagedDataGone, Unavailable) as trouble:
            return trouble
        return None

    def _send(self, publication: Publication, outbox: Sequence[StagedFile]) -> None:
        commit, made_at = publication.lease.commit, publication.receipt.get("staged_at", math.inf)
        sent = SentCommit(commit.sequence, commit.commit_id, made_at)
        self._producer.send(publication.name, sent, self._messages(outbox), self.progress)

    def _messages(self, outbox: Sequence[StagedFile]) -> Iterator[Iterator[Message]]:
        """The messages of each file."""
        for file in outbox:
            place = file.handle if isinstance(file.handle, str) else file.handle["place"]
            data = self._bucket.read(place)
            if data is None:
                raise StagedDataGone(f"the rows that wait in {place} are gone")
            yield (Message(*fields) for fields in _decoder.decode(data))

    def mend(self, publication: Publication, fresh: Json) -> Json:
        """The receipt of the fresh rows: nothing of the commit was sent, or its staged data would not be needed."""
        return {**fresh, "token": publication.receipt["token"]}

    def discard_staged(self, publications: Sequence[Publication]) -> None:
        self._root.discard_staged(publications)

    def sweep(self, taken: Sequence[tuple[Lease, Name]]) -> None:
        self._root.sweep(taken)


class TransactionalKafkaSink(KafkaSink, Witness):
    """Exactly once: each commit is one transaction, and the topic witnesses it."""

    def witness(self, taken: Sequence[tuple[Lease, Name]]) -> list[Halt | Unavailable | None]:
        try:
            found = self._producer.last_commits([name for _, name in taken])
        except Unavailable as away:
            return [away for _ in taken]
        return [self._judged(lease, last) for (lease, _), last in zip(taken, found, strict=True)]

    def _judged(self, lease: Lease, last: SentCommit | None) -> Halt | None:
        if last is None or last.sequence <= lease.commit.sequence:
            return None
        return Halt(
            f"sink {self.name!r} has sent commit {last.sequence} of {lease.key!r}, which the store does not know: the "
            f"store is at commit {lease.commit.sequence} and has lost what came after it"
        )


class DirectKafkaSink(KafkaSink, VisibleWhenStaged):
    """At least once: tasks have sent the rows when they are done."""

    def is_visible(self, receipt: Json) -> bool:
        return not receipt["files"]


def build_sink(name: str, config: KafkaSinkConfig) -> KafkaSink:
    """The sink of that name, not yet connected."""
    # Rows are read back before they are sent, which is impossible while they are parts of an upload.
    s3 = config.s3 or (S3Options() if config.root.startswith("s3:") else None)
    bucket = bucket_of(config.root, None if s3 is None else s3.model_copy(update={"staging": "copy"}))
    columns = MessageColumns(config.value, config.key, config.headers, config.partition, config.max_message_bytes)
    properties = {**client_properties(config), "message.max.bytes": str(config.max_message_bytes)}
    direct = config.delivery == "at_least_once"
    stager = KafkaStager(bucket, columns, config.topic, properties, direct=direct)
    producer = CommitProducer(properties, config.topic, root_identity(config.root, config.s3))
    made = DirectKafkaSink if direct else TransactionalKafkaSink
    return made(name, bucket, stager, producer)
