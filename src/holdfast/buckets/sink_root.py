"""The root of one sink: its owner, and publishing and deleting of the files that tasks have staged below it.

A root belongs to one sink of one pipeline, which `_holdfast/owner.json` names. A sink decides by its own receipts what
it may delete below its root; two sinks with the same root would delete each other's committed files.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial

from holdfast.buckets.bucket import Bucket, Published, RootLock, StagedFile
from holdfast.errors import Halt, Refused, StagedDataGone, Unavailable
from holdfast.flow.batch import Name
from holdfast.flow.names import OWNER_KEY, staged_token, staging_folder
from holdfast.flow.sink import Publication
from holdfast.leases.lease import Json, Lease

DISCARDED_PORTIONS = 10
"""Portions of files that are discarded in one call; more than are published, because deleting takes less time."""


class SinkRoot:
    """The root of one sink."""

    def __init__(self, bucket: Bucket, sink: str, progress: Callable[[], None], title: str = "root") -> None:
        """`progress` is called when a portion of the files of a long call is done. Messages call the root `title`."""
        self._bucket = bucket
        self._sink = sink
        self._progress = progress
        self._title = f"the {title} of sink {sink!r}"
        self._lock: RootLock | None = None
        self._files_done = 0

    # --- the owner ---------------------------------------------------------------------------------------------

    def open(self, pipeline: str, *, durable: bool) -> str:
        """Probe the bucket and claim the root. Returns the result of the probe, for people. May be repeated.

        Raises `Refused` if the bucket is not suitable, or if the root is in use or belongs to another sink;
        `Unavailable` if the bucket does not respond.
        """
        verdict = self._bucket.probe()
        self.claim(pipeline, alone=not durable)
        return verdict.text

    def claim(self, pipeline: str, *, alone: bool) -> None:
        """Claim the root for this sink. `alone`: no other process may use it at the same time."""
        self._hold(alone=alone)
        owner = {"pipeline": pipeline, "sink": self._sink}
        if self._bucket.create(OWNER_KEY, json.dumps(owner).encode()):
            return
        present = json.loads(self._bucket.read(OWNER_KEY) or b"{}")
        if present != owner:
            raise Refused(
                f"{self._title} belongs to pipeline {present.get('pipeline')!r}, sink {present.get('sink')!r}; "
                "give this sink a root of its own"
            )

    def _hold(self, *, alone: bool) -> None:
        if self._lock is None:
            self._lock = self._bucket.lock(exclusive=alone)
        if self._lock is None:
            raise Refused(
                f"another process uses {self._title}, and one of the two has the store in_memory, which is for one "
                "process. Let both use a store that they can share, for example `sqlite`, or give this process a root "
                "of its own"
            )

    def close(self) -> None:
        """Release the root. May be repeated; never raises."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    # --- staged files ------------------------------------------------------------------------------------------

    def are_staged(self, files: Sequence[StagedFile]) -> bool:
        """Whether the staged data of all these files is still there."""
        for portion in self._bucket.portions(files):
            if not all(self._bucket.has_staged(portion)):
                return False
            self._count(len(portion))
        return True

    def publish(self, files: Sequence[StagedFile]) -> None:
        """Make the files visible under their final keys. May be repeated.

        Raises `Halt` if another object is at a key, `StagedDataGone` if a file is neither visible nor staged.
        """
        for portion in self._bucket.portions(files):
            for file, found in zip(portion, self._bucket.publish(portion), strict=True):
                if found is Published.FOREIGN:
                    raise Halt(f"another object is at the committed key {file.key}; it was not touched")
                if found is Published.GONE:
                    raise StagedDataGone(f"the staged data of {file.key} is gone")
            self._count(len(portion))

    def discard_staged(self, publications: Sequence[Publication]) -> None:
        """Delete the remaining staged data of these receipts. Never raises: a later owner sweeps it."""
        with suppress(Unavailable):
            self._discard([file.handle for each in publications for file in staged_files(each.receipt)])

    def sweep(self, taken: Sequence[tuple[Lease, Name]]) -> None:
        """Delete files of lower tokens that no row names. Never raises: a later owner sweeps too."""
        self._bucket.run_all([partial(self._sweep, lease, name) for lease, name in taken])

    def _sweep(self, lease: Lease, name: Name) -> None:
        with suppress(Unavailable):
            self._discard(self._stale(lease, name))

    def _stale(self, lease: Lease, name: Name) -> list[Json]:
        named = {_comparable(handle) for handle in self._named_handles(lease)}
        return [
            handle
            for key, handle in self._bucket.staged_under(staging_folder(name))
            if staged_token(name, key) < lease.token and _comparable(handle) not in named
        ]

    def _named_handles(self, lease: Lease) -> list[Json]:
        receipt = (lease.commit.receipts or {}).get(self._sink)
        return [] if receipt is None else [file["staged"] for file in receipt["files"]]

    def _discard(self, handles: Sequence[Json]) -> None:
        for portion in self._bucket.portions(handles, DISCARDED_PORTIONS):
            self._bucket.discard(portion)
            self._count(len(portion))

    def _count(self, files: int) -> None:
        """Report progress after every portion of files; the files of small commits are added up."""
        self._files_done += files
        if self._files_done >= self._bucket.portion:
            self._files_done = 0
            self._progress()


def staged_files(receipt: Json) -> list[StagedFile]:
    """The files that a receipt names."""
    return [StagedFile(file["staged"], file["key"], file["sha256"], file["size"]) for file in receipt["files"]]


def _comparable(handle: Json) -> str:
    return json.dumps(handle, sort_keys=True)
