"""Tests whether a server gives the guarantees of exactly-once, with objects below `_holdfast/staging/.probe/`.

A probe can show that a server is wrong; it cannot prove that it is right.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Self

from holdfast.buckets.s3_staged import HIDDEN
from holdfast.errors import Refused, Unavailable
from holdfast.s3.access import Staging, Traits
from holdfast.s3.client import Denied, Exists, Missing, Unable
from holdfast.s3.objects import S3Objects

RACES = 6
RACERS = 4
_MARK = "holdfast-probe"


@dataclass(frozen=True, slots=True)
class Finding:
    """Whether one way of staging works, and whether publishing this way can be prevented from overwriting."""

    holds: bool
    conditional: bool = False


def probe(objects: S3Objects, wanted: Staging) -> tuple[Traits, str]:
    """How to stage on this server, and a message for people.

    Raises `Refused` when the server is not safe to use, `Unavailable` when it does not respond.
    """
    bench = Bench(objects, f"{HIDDEN}probe/{uuid.uuid4().hex}/")
    try:
        with bench.cleaned_up():
            bench.check_create()
            uploads, copies = bench.try_uploads(), bench.try_copies()
    except (Denied, Unable) as refusal:
        raise Refused(f"{refusal}; see which permissions the sink `files` needs on S3") from refusal
    traits = choose(objects, wanted, uploads, copies)
    return traits, describe(traits)


def choose(objects: S3Objects, wanted: Staging, uploads: Finding, copies: Finding) -> Traits:
    """The safest way to stage; among equally safe ones, the one with the fewest requests."""
    flags = (uploads.conditional, copies.conditional)
    if wanted == "auto" and uploads.holds and copies.conditional:
        return Traits("mixed", *flags)
    if uploads.holds and wanted != "copy":
        return Traits("multipart", *flags)
    if copies.holds and wanted != "multipart":
        return Traits("copy", *flags)
    raise Refused(
        f"the server of s3://{objects.client.access.bucket} cannot stage by {wanted!r}: unpublished data could be "
        "visible, or would not be published as it was staged. Set s3.staging to auto, or use another server"
    )


def describe(traits: Traits) -> str:
    """The traits as a message for people."""
    how = {
        "mixed": "small files are staged as hidden objects and copied, large ones as uploads that are not completed",
        "multipart": "files are staged as uploads that are not completed",
        "copy": "files are staged as hidden objects and copied",
    }[traits.staging]
    uploads_safe = traits.conditional_complete or traits.staging == "copy"
    copies_safe = traits.conditional_copy or traits.staging == "multipart"
    safe = "publishing overwrites nothing" if uploads_safe and copies_safe else "before publishing the key is looked at"
    return f"conditional create holds; {how}; {safe}"


class Bench:
    """The objects of one probe."""

    def __init__(self, objects: S3Objects, folder: str) -> None:
        self._objects = objects
        self._client = objects.client
        self._folder = folder

    @contextmanager
    def cleaned_up(self) -> Iterator[None]:
        try:
            yield
        finally:
            with suppress(Unavailable):
                self._objects.delete(list(self._objects.keys(self._folder)))

    def check_create(self) -> None:
        """Raise `Refused` unless exactly one of several creates succeeds, both in sequence and concurrently."""
        key = f"{self._folder}once"
        if self._objects.read(key) is not None or not self._objects.create(key, b"first"):
            raise Refused(f"the server of {self._where()} shows an object that was never written")
        wins = [self._objects.create(key, b"second")]
        for race in range(RACES):
            racing = partial(self._objects.create, f"{self._folder}race-{race}")
            winners = self._client.each(racing, [str(racer).encode() for racer in range(RACERS)])
            wins.append(sum(winners) != 1)
        if any(wins) or self._objects.read(key) != b"first":
            raise Refused(
                f"the server of {self._where()} lets two writers create one object: it does not honour "
                "`If-None-Match: *` on PUT, so nodes could overwrite each other's files. Use a server that does"
            )

    def try_uploads(self) -> Finding:
        """Check that an upload is invisible until completed, keeps its metadata, and may be completed twice."""
        key = f"{self._folder}upload"
        try:
            with _Upload(self._objects, key, b"uploaded") as first, _Upload(self._objects, key, b"other") as second:
                if self._objects.metadata(key) is not None or list(self._objects.keys(key)):
                    return Finding(holds=False)
                first.complete({})
                with suppress(Missing, Exists):
                    first.complete({})
                holds = self._shows(key, b"uploaded")
                return Finding(holds, holds and self._keeps_out(key, second.complete, b"uploaded"))
        except (Missing, Exists, Unable):
            return Finding(holds=False)

    def try_copies(self) -> Finding:
        """Check that a copy keeps its metadata and whether it can be prevented from overwriting."""
        source, key = f"{self._folder}source", f"{self._folder}copy"
        try:
            self._objects.put(source, b"copied", {_MARK: source})
            other = f"{self._folder}other"
            self._objects.put(other, b"other", {})
            self._copy(source, key, {})
            holds = self._shows(key, b"copied", source)
            return Finding(holds, holds and self._keeps_out(key, partial(self._copy, other, key), b"copied"))
        except (Missing, Exists, Unable):
            return Finding(holds=False)

    def _copy(self, source: str, key: str, condition: dict[str, str]) -> None:
        named = {"Bucket": self._client.access.bucket, "Key": self._objects.full(source)}
        self._client.call("copy_object", Key=self._objects.full(key), CopySource=named, **condition)

    def _shows(self, key: str, data: bytes, mark: str | None = None) -> bool:
        return self._objects.read(key) == data and (self._objects.metadata(key) or {}).get(_MARK) == (mark or key)

    def _keeps_out(self, key: str, overwrite: Any, present: bytes) -> bool:
        """Whether a conditional request leaves an existing object unchanged and returns an error."""
        try:
            overwrite({"IfNoneMatch": "*"})
        except Exists:
            return self._objects.read(key) == present
        except (Missing, Unable):
            return False
        return False

    def _where(self) -> str:
        return f"s3://{self._client.access.bucket}"


class _Upload:
    """An upload with all its parts. It is aborted at the end unless it was completed."""

    def __init__(self, objects: S3Objects, key: str, data: bytes) -> None:
        self._client = objects.client
        self._key = objects.full(key)
        begun = self._client.call("create_multipart_upload", Key=self._key, Metadata={_MARK: key})
        self._named = {"Key": self._key, "UploadId": begun["UploadId"]}
        self._etag = self._client.call("upload_part", **self._named, PartNumber=1, Body=data)["ETag"]

    def complete(self, condition: dict[str, str]) -> None:
        parts = {"Parts": [{"ETag": self._etag, "PartNumber": 1}]}
        self._client.call("complete_multipart_upload", **self._named, MultipartUpload=parts, **condition)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(Missing, Unavailable):
            self._client.call("abort_multipart_upload", **self._named)
