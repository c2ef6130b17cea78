"""The files sink on the node: it publishes commits, and rebuilds those whose staged data is gone.

This is the exactly-once protocol for readers who only list the bucket. Nothing is ever overwritten or deleted: a file
is created once under its final key, from the committed bytes, after the manifest of the commit was created.
The simulator runs this code unchanged over a simulated bucket.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from holdfast.buckets.bucket import Bucket, StagedFile
from holdfast.buckets.sink_root import SinkRoot, staged_files
from holdfast.errors import BatchError, Halt, Refused, StagedDataGone, Unavailable
from holdfast.finalize.output import Finalizes
from holdfast.flow.batch import Batch, Name
from holdfast.flow.letter import CommittedLetters
from holdfast.flow.manifest import Manifest, decode_manifest, manifest_of
from holdfast.flow.names import manifest_key
from holdfast.flow.sink import (
    BoundsTimes,
    KeepsLetters,
    KeepsStaged,
    Publication,
    PublishesFiles,
    PublishResult,
    Restages,
    Sink,
    StagesByBatch,
    Witness,
)
from holdfast.flow.staging import Stager, receipt_files
from holdfast.leases.lease import Json, Lease

if TYPE_CHECKING:
    from holdfast.deadletters.letter_topic import LetterTopic
    from holdfast.sinks.files.finalizing import FilesFinalizing
    from holdfast.sinks.files.staging import FilesStager


class FilesSink(
    Sink, StagesByBatch, BoundsTimes, Witness, KeepsStaged, PublishesFiles, Restages, Finalizes, KeepsLetters
):
    """Files below one root, which belongs to this sink of this pipeline alone."""

    def __init__(
        self,
        name: str,
        bucket: Bucket,
        stager: FilesStager | None = None,
        finalizing: FilesFinalizing | None = None,
        letter_topic: LetterTopic | None = None,
        *,
        max_ahead: float | None = None,
    ) -> None:
        self.name = name
        self._bucket = bucket
        self._stager = stager
        self._finalizing = finalizing
        self._letter_topic = letter_topic
        self._max_ahead = max_ahead
        self._time_patterns = () if finalizing is None else finalizing.time_patterns
        self._root = SinkRoot(bucket, name, self.progress)

    def open(self, pipeline: str, *, durable: bool) -> str:
        verdict = self._root.open(pipeline, durable=durable)
        if not durable and next(self._bucket.keys("_holdfast/commits/"), None) is not None:
            raise Refused(
                f"the root of sink {self.name!r} has commits of an earlier run, which the store in_memory no longer "
                "has; everything would be written twice. Use a durable store, for example `sqlite`, or a new root"
            )
        return verdict if self._letter_topic is None else f"{verdict}; dead letters: {self._letter_topic.check()}"

    def close(self) -> None:
        self._root.close()

    def stager(self) -> FilesStager:
        if self._stager is None:
            raise Refused("this sink was built without a format; it can publish but not stage")
        return self._stager

    def use_time_patterns(self, patterns: Sequence[tuple[str, str]]) -> None:
        self._time_patterns = tuple(patterns)

    def stager_for(self, batches: Sequence[Batch]) -> Stager:
        bounds = {batch.id: batch.until(self.name, self._max_ahead) for batch in batches if self._time_patterns}
        until = {batch_id: time for batch_id, time in bounds.items() if time is not None}
        if self._finalizing is None and not until:
            return self.stager()
        from holdfast.sinks.files.late_records import LateRule, LateStager
        from holdfast.sinks.files.periods import FolderTimes

        rule = LateRule() if self._finalizing is None else self._finalizing.rule(batches)
        return LateStager(self.stager(), replace(rule, times=FolderTimes(self._time_patterns), until=until))

    def finalizing(self) -> FilesFinalizing | None:
        return self._finalizing

    def letter_box(self, pipeline: str) -> CommittedLetters:  # noqa: ARG002 - the root is one pipeline's
        from holdfast.deadletters.letter_files import FileLetters

        return FileLetters(self._bucket)

    def receipt(self, parts: Sequence[Json]) -> Json:
        files = receipt_files(parts)
        self._check_max_files(parts, len(files))
        # What was decided when the batch was planned, and is decided in the same way if it is staged again.
        decided = {name: part[name] for part in parts for name in ("final", "until") if name in part}
        skipped = sum(part.get("skipped", 0) for part in parts)
        return {"files": files} | decided | ({"skipped": skipped} if skipped else {})

    def _check_max_files(self, parts: Sequence[Json], number: int) -> None:
        """Raise `BatchError` if the tasks have made more than `max_files` in total: each checks only its own files."""
        if len(parts) > 1 and self._stager is not None and number > self._stager.max_files:
            raise BatchError(
                f"{len(parts)} tasks have made {number} files of this batch, and max_files of sink {self.name!r} is "
                f"{self._stager.max_files}; keep the rows of a batch in one task, or raise max_files"
            )

    def witness(self, taken: Sequence[tuple[Lease, Name]]) -> list[Halt | Unavailable | None]:
        return self._bucket.run_all([partial(self._ahead, lease, name) for lease, name in taken])

    def _ahead(self, lease: Lease, name: Name) -> Halt | Unavailable | None:
        unknown = manifest_key(name, lease.commit.sequence + 1)
        try:
            if self._bucket.read(unknown) is None:
                return None
        except Unavailable as away:
            return away
        return Halt(
            f"sink {self.name!r} has a manifest {unknown} that the store does not know: "
            f"the store is at commit {lease.commit.sequence} and has lost what came after it"
        )

    def sweep(self, taken: Sequence[tuple[Lease, Name]]) -> None:
        self._root.sweep(taken)

    def publish(self, publications: Sequence[Publication]) -> list[PublishResult]:
        return self._bucket.run_all([partial(self._publish, publication) for publication in publications])

    def _publish(self, publication: Publication) -> PublishResult:
        files = staged_files(publication.receipt)
        try:
            self._witnessed(publication, files)
            self._root.publish(files)
            if self._letter_topic is not None:
                self._letter_topic.publish(self.letter_box(publication.lease.pipeline), publication, self.progress)
        except (Halt, StagedDataGone, Unavailable) as trouble:
            return trouble
        return None

    def _witnessed(self, publication: Publication, files: Sequence[StagedFile]) -> None:
        """Create the commit's manifest, or check that it agrees with the receipt, before any file becomes visible."""
        manifest = manifest_of(publication.lease, publication.name, publication.receipt)
        # As long as there is no manifest, lost data may be staged again with other content: check before creating it.
        # The manifest is read only if it must exist already: most commits are published once, by the node that made it.
        if not self._root.are_staged(files):
            if not self._agreeing(manifest):
                raise StagedDataGone(f"staged data of commit {manifest.commit_id} is gone")
            return
        key = manifest_key(publication.name, manifest.sequence)
        if not self._bucket.create(key, manifest.encode()) and not self._agreeing(manifest):
            raise Halt(f"manifest {key} has disappeared")

    def _agreeing(self, manifest: Manifest) -> bool:
        """Whether the manifest exists. Raises `Halt` if the manifest at its key is of another commit."""
        key = manifest_key(Name(manifest.stream, manifest.label), manifest.sequence)
        present = self._bucket.read(key)
        if present is None:
            return False
        if not decode_manifest(present).agrees_with(manifest):
            raise Halt(f"store and bucket disagree: manifest {key} is not of commit {manifest.commit_id}")
        return True

    def mend(self, publication: Publication, fresh: Json) -> Json:
        old = manifest_of(publication.lease, publication.name, publication.receipt)
        if not self._agreeing(old):
            return fresh
        if not manifest_of(publication.lease, publication.name, fresh).agrees_with(old):
            raise Halt(
                f"staged data of commit {old.commit_id} is gone, its manifest is written, "
                "and reading the source again gives other files"
            )
        return {**fresh, "token": publication.receipt["token"]}

    def discard_staged(self, publications: Sequence[Publication]) -> None:
        self._root.discard_staged(publications)
