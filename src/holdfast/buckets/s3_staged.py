"""Staged objects on S3 after their writer has closed them: check, publish, discard and list them.

A handle is `{"place"}` for a hidden object, which is published by copying it, and `{"place", "key", "upload"}` for an
upload that is not completed, which is published by completing it. A listing returns the same handles, so that a sweep
can compare them with receipts. If an object exists at the final key, its metadata shows whether it was made from this
staged key.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from holdfast.buckets.bucket import Published, StagedFile
from holdfast.buckets.s3_writer import REGISTERED
from holdfast.flow.names import OURS
from holdfast.leases.lease import Json
from holdfast.s3.access import Traits
from holdfast.s3.client import Exists, Missing
from holdfast.s3.objects import STAGED_KEY, S3Objects

STAGING = f"{OURS}/staging/"
HIDDEN = f"{STAGING}."
"""Keys with this prefix are not staged objects: names made from data never begin with a dot."""
_SECOND_LOOK = 0.5
_MOST_REMEMBERED = 10_000


@dataclass
class Remembered:
    """Uploads of this process, by upload id. A cache that saves two requests for each upload.

    A closed upload never changes, and a completed one need not be aborted.
    """

    parts: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    completed: set[str] = field(default_factory=set)

    def saw(self, upload: str, parts: list[dict[str, Any]]) -> None:
        if len(self.parts) < _MOST_REMEMBERED:
            self.parts[upload] = parts

    def published(self, upload: str) -> None:
        if len(self.completed) < _MOST_REMEMBERED:
            self.completed.add(upload)


class S3Staged:
    """Operations on handles. All may be repeated, also by several nodes at a time."""

    def __init__(self, objects: S3Objects, memory: Remembered) -> None:
        self._objects = objects
        self._client = objects.client
        self._memory = memory

    def is_there(self, file: StagedFile) -> bool:
        handle = checked(file.handle)
        if "upload" in handle:
            parts = self._parts(file)
            if parts is not None:
                self._memory.saw(handle["upload"], parts)
            return parts is not None
        return self._objects.metadata(handle["place"]) is not None

    def publish(self, file: StagedFile, traits: Traits) -> Published:
        """Make the object visible. If the server cannot be prevented from overwriting, the key is read first."""
        handle = checked(file.handle)
        conditional = traits.conditional_complete if "upload" in handle else traits.conditional_copy
        if not conditional and (present := self._look(file)) is not None:
            return present
        condition = {"IfNoneMatch": "*"} if conditional else {}
        try:
            done = self._complete(file, condition) if "upload" in handle else self._copy(file, condition)
        except (Missing, Exists):
            done = False
        return Published.DONE if done else self._decided(file)

    def _complete(self, file: StagedFile, condition: dict[str, str]) -> bool:
        parts = self._memory.parts.pop(file.handle["upload"], None) or self._parts(file)
        if parts is not None:
            self._client.call(
                "complete_multipart_upload",
                Key=self._objects.full(file.key),
                UploadId=file.handle["upload"],
                MultipartUpload={"Parts": parts},
                **condition,
            )
            self._memory.published(file.handle["upload"])
        return parts is not None

    def _copy(self, file: StagedFile, condition: dict[str, str]) -> bool:
        source = {"Bucket": self._client.access.bucket, "Key": self._objects.full(file.handle["place"])}
        self._client.call("copy_object", Key=self._objects.full(file.key), CopySource=source, **condition)
        return True

    def _parts(self, file: StagedFile) -> list[dict[str, Any]] | None:
        """The parts that completing the upload needs; None if it is gone or differs from what was closed."""
        key, upload, after = self._objects.full(file.handle["key"]), file.handle["upload"], 0
        parts: list[dict[str, Any]] = []
        size = 0
        while True:
            try:
                page = self._client.call("list_parts", Key=key, UploadId=upload, PartNumberMarker=after)
            except Missing:
                return None
            for part in page.get("Parts", ()):
                parts.append({"ETag": part["ETag"], "PartNumber": part["PartNumber"]})
                size += part["Size"]
            if not page.get("IsTruncated"):
                break
            after = page["NextPartNumberMarker"]
        return None if not parts or (file.size is not None and file.size != size) else parts

    def _decided(self, file: StagedFile) -> Published:
        """Which object is at the final key, after this call could not create it."""
        present = self._look(file)
        if present is None:
            # Another node may be completing it at this very moment; a false "gone" would cost a rebuild.
            time.sleep(_SECOND_LOOK)
            present = self._look(file)
        return present or Published.GONE

    def _look(self, file: StagedFile) -> Published | None:
        metadata = self._objects.metadata(file.key)
        if metadata is None:
            return None
        if metadata.get(STAGED_KEY) == file.handle["place"]:
            return Published.DONE
        # Made from another staged key: the same bytes, staged by another try, are as good.
        return Published.DONE if self._objects.sha256(file.key) == file.sha256 else Published.FOREIGN

    def discard(self, handles: list[Json]) -> None:
        """Abort uploads, then delete their registry objects and the hidden objects."""
        ours = [checked(handle) for handle in handles]
        self._client.each(self._abort, [handle for handle in ours if "upload" in handle])
        self._objects.delete([handle["place"] + (REGISTERED if "upload" in handle else "") for handle in ours])

    def _abort(self, handle: dict[str, str]) -> None:
        if handle["upload"] in self._memory.completed:
            self._memory.completed.discard(handle["upload"])
            return
        try:
            self._client.call(
                "abort_multipart_upload", Key=self._objects.full(handle["key"]), UploadId=handle["upload"]
            )
        except Missing:
            return

    def under(self, prefix: str) -> Iterator[tuple[str, Json]]:
        """Staged key and handle of every staged object, from the names of hidden and registry objects."""
        for key in self._objects.keys(prefix):
            if not key.startswith(STAGING) or key.startswith(HIDDEN):
                continue
            if not key.endswith(REGISTERED):
                yield key, {"place": key}
            elif (registered := self._objects.read(key)) is not None:
                yield key.removesuffix(REGISTERED), json.loads(registered)


def checked(handle: Json) -> dict[str, str]:
    """Check a handle, which comes from a row of the store: it must never name a published object."""
    if not isinstance(handle, dict) or not str(handle.get("place", "")).startswith(STAGING):
        raise ValueError(f"{handle!r} is not a staged object")
    return handle
