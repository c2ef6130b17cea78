"""What must be true of files, for a reader who lists the bucket at any moment.

No record twice, nothing that is not committed, nothing before its manifest, nothing lost; a commit follows its
predecessor without gap or overlap; data that a commit names stays until it is visible; receipts go only when all is.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from holdfast.leases.lease import Key, Lease, Status
from tests.simulation.bucket import BucketServer, DataFile
from tests.simulation.host import Host
from tests.simulation.kernel import Kernel
from tests.simulation.oracle import PIPELINE, Oracle
from tests.simulation.source import Data, offset_of


class FilesOracle(Oracle):
    """Judges commits, publishing and the end of a pipeline that lands files."""

    def __init__(self, kernel: Kernel, data: Data, max_retries: int) -> None:
        super().__init__(kernel)
        self.buckets: dict[str, BucketServer] = {}
        self._data = data
        self._max_retries = max_retries
        self._seen: dict[str, dict[tuple[str, int], str]] = {}
        self._decided: dict[tuple[str, str, str], tuple[str, int]] = {}
        """Sink, key and digest of every file that an accepted commit named: its partition and sequence."""
        self._needed: dict[str, set[tuple[str, str]]] = {}
        """Sink and place of what the pending commit of a partition has staged."""
        self._manifests: dict[tuple[str, str, int], Mapping[str, Any]] = {}
        self._witnesses: dict[tuple[str, str, int], float] = {}
        """When each manifest was written."""
        self._taken_at: dict[tuple[str, str | None, int], float] = {}
        """When a partition came into the hands of that owner under that token."""

    def add_bucket(self, bucket: BucketServer) -> None:
        self.buckets[bucket.sink] = bucket
        self._seen[bucket.sink] = {}

    @property
    def numbers(self) -> Mapping[str, int]:
        """How many items there are, by partition."""
        return self._data.items

    def visible_items(self, sink: str) -> Mapping[tuple[str, int], str]:
        """Where every partition and item is that readers of the sink can see."""
        return self._seen[sink]

    def number_of(self, row: Lease) -> int:
        return self._data.items[row.key]

    def live(self, key: str) -> Lease | None:
        """The row of that partition."""
        return self.rows.get(Key(PIPELINE, "", key))

    # --- the store's side -----------------------------------------------------------------------------------------

    def row_written(self, row: Lease, sender: Host) -> None:
        if row.pipeline == PIPELINE and row.owner is not None:
            self._taken_at.setdefault((row.key, row.owner, row.token), self.kernel.now)
        super().row_written(row, sender)

    def committed(self, before: Lease, row: Lease) -> None:
        if before.commit.receipts is not None:
            self.fail(f"{row.key}: commit {row.commit.sequence} over one that is not published")
        receipts = row.commit.receipts or {}
        if receipts.keys() != self.buckets.keys():
            self.fail(f"{row.key}: commit {row.commit.sequence} has receipts of {sorted(receipts)} only")
        start, end = offset_of(before.progress.position), offset_of(row.progress.position)
        for receipt in receipts.values():
            span = (offset_of(receipt["from"]), offset_of(receipt["to"]))
            if span != (start, end):
                self.fail(f"{row.key}: a commit of {span} moves the position from {start} to {end}")
        self.decided(row)

    def receipts_changed(self, before: Lease, row: Lease) -> None:
        if row.commit.commit_id != before.commit.commit_id:
            self.fail(f"{row.key}: another commit under the same sequence {row.commit.sequence}")
        if row.commit.receipts is None:
            self._require_visible(before)
            self._needed.pop(row.key, None)
        else:
            self.decided(row)

    def decided(self, row: Lease) -> None:
        needed = self._needed[row.key] = set()
        for sink, receipt in (row.commit.receipts or {}).items():
            items: list[int] = []
            bucket = self.buckets[sink]
            self._require_not_behind(row, sink)
            for file in receipt["files"]:
                staged_key, key, digest = file["staged"], file["key"], file["sha256"]
                self._decided[sink, key, digest] = (row.key, row.commit.sequence)
                needed.add((sink, staged_key))
                content = bucket.staged.get(staged_key) or self._visible(sink, key, digest)
                if content is None and staged_key not in bucket.expired and not self.rollbacks:
                    self.fail(f"{row.key}: commit {row.commit.sequence} names {staged_key}, which is not staged")
                if content is not None:
                    self.file_decided(row, content)
                items.extend(range(file["first"], file["last"] + 1) if content is None else content.items)
            self._require_all_items(row, sink, receipt, items)

    def file_decided(self, row: Lease, file: DataFile) -> None:
        """The row's pending commit names this file."""

    def _require_not_behind(self, row: Lease, sink: str) -> None:
        """Whoever takes a partition looks first whether the bucket is ahead of the row."""
        written_at = self._witnesses.get((sink, row.key, row.commit.sequence))
        taken_at = self._taken_at.get((row.key, row.owner, row.token))
        if written_at is not None and taken_at is not None and written_at < taken_at:
            manifest = self._manifests[sink, row.key, row.commit.sequence]
            if manifest["commit_id"] != row.commit.commit_id:
                self.fail(f"{row.key}: commit {row.commit.sequence} was decided anew though {sink} has its manifest")

    def _require_all_items(self, row: Lease, sink: str, receipt: Mapping[str, Any], items: list[int]) -> None:
        complete = not self.buckets[sink].expired and not self.rollbacks
        start, end = offset_of(receipt["from"]), offset_of(receipt["to"])
        if complete and sorted(items) != self._data.left_between(row.key, start, end):
            self.fail(f"{row.key}: commit {start} to {end} of {sink} staged {sorted(items)}")

    def _require_visible(self, before: Lease) -> None:
        for sink, receipt in (before.commit.receipts or {}).items():
            for file in receipt["files"]:
                if self._visible(sink, file["key"], file["sha256"]) is None:
                    self.fail(f"{before.key}: receipts cleared before {file['key']} is visible in {sink}")

    def _visible(self, sink: str, key: str, digest: str) -> DataFile | None:
        present = self.buckets[sink].visible.get(key)
        return present if present is not None and present.digest == digest else None

    def rolled_back(self, rows: dict[Key, Lease]) -> None:
        super().rolled_back(rows)
        self._needed.clear()

    # --- the bucket's side ----------------------------------------------------------------------------------------

    def created(self, sink: str, key: str, data: bytes) -> None:
        """A manifest: the only objects that the product creates while it runs."""
        manifest = json.loads(data)
        start, end = offset_of(manifest["start"]), offset_of(manifest["end"])
        lost = self._data.lost_between(manifest["key"], start, end)
        if tuple(map(tuple, manifest.get("gaps", ()))) != lost:
            self.fail(f"{sink}: the manifest {key} tells of gaps {manifest.get('gaps')}, and {lost} were lost")
        self._manifests[sink, manifest["key"], manifest["sequence"]] = manifest
        self._witnesses[sink, manifest["key"], manifest["sequence"]] = self.kernel.now

    def became_visible(self, sink: str, key: str, file: DataFile) -> None:
        seen = self._seen[sink]
        for item in file.items:
            if (file.partition, item) in seen:
                self.fail(f"{sink}: item {item} of {file.partition} is in {seen[file.partition, item]} and in {key}")
            seen[file.partition, item] = key
        decided = self._decided.get((sink, key, file.digest))
        if decided is None:
            self.fail(f"{sink}: {key} is visible and no commit decided it")
            return
        manifest = self._manifests.get((sink, *decided))
        if manifest is None:
            self.fail(f"{sink}: {key} is visible before its manifest")
        elif (key, file.digest) not in [(file_entry["key"], file_entry["sha256"]) for file_entry in manifest["files"]]:
            self.fail(f"{sink}: {key} is visible and its manifest names others")

    def moved(self, sink: str, key: str, file: DataFile) -> None:
        self.fail(f"{sink}: {key} with {file.items} was taken away")

    def discarded(self, sink: str, staged_key: str) -> None:
        if self.rollbacks:
            return
        for partition, needed in self._needed.items():
            if (sink, staged_key) in needed:
                receipt = (self.rows[Key(PIPELINE, "", partition)].commit.receipts or {}).get(sink)
                for file in [] if receipt is None else receipt["files"]:
                    if file["staged"] == staged_key and self._visible(sink, file["key"], file["sha256"]) is None:
                        self.fail(f"{sink}: {staged_key} was deleted before {file['key']} was visible")

    # --- at the end -----------------------------------------------------------------------------------------------

    def judge_end(self) -> None:
        for partition, number in self._data.items.items():
            self._judge_partition(partition, number)

    def _judge_partition(self, partition: str, number: int) -> None:
        row = self.rows.get(Key(PIPELINE, "", partition))
        if row is None:
            if not self.rollbacks:
                self.fail(f"{partition}: was never found")
            return
        if row.status is Status.FAILED:
            self._judge_failed(row)
        elif row.status is not Status.COMPLETED or row.commit.receipts is not None:
            self.fail(f"{partition}: rests as {row.status} with receipts {row.commit.receipts}")
        elif partition in self._data.poison:
            self.fail(f"{partition}: is poisoned and was completed")
        else:
            self._require_complete(row, number)

    def _judge_failed(self, row: Lease) -> None:
        past = row.history
        if past.halt_reason is not None:
            self.judge_halt(row)
        elif row.key not in self._data.poison:
            self.fail(f"{row.key}: failed without poison: {past.last_error}")
        elif past.attempts != self._max_retries + 1:
            self.fail(f"{row.key}: failed after {past.attempts} attempts")

    def judge_halt(self, row: Lease) -> None:
        if not self.halts_allowed:
            self.fail(f"{row.key}: halted without cause: {row.history.halt_reason}")

    def _require_complete(self, row: Lease, number: int) -> None:
        items = self._data.left_between(row.key, 0, number)
        for sink, seen in self._seen.items():
            missing = [item for item in items if (row.key, item) not in seen]
            if missing:
                self.fail(f"{sink}: items {missing} of {row.key} are missing")
        if not self.rollbacks and row.progress.counts.processed != len(items):
            self.fail(f"{row.key}: {row.progress.counts.processed} records counted, {len(items)} there")
        if offset_of(row.progress.position) != number:
            self.fail(f"{row.key}: is complete at {row.progress.position}, and {number} items are there")
