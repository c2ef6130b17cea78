"""Objects below one prefix of an S3 bucket: create once, read, list, delete. Names are relative to the prefix."""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from holdfast.errors import Refused, Unavailable
from holdfast.s3.client import Exists, Missing, S3Client

WRITE_ID = "holdfast-write"
PLACE = "holdfast-place"
_DELETED_AT_ONCE = 1000
_CHUNK = 1 << 20


class S3Objects:
    """The verbs on whole objects. All block; all raise `Unavailable` when the server cannot be made to answer."""

    def __init__(self, client: S3Client, prefix: str) -> None:
        self.client = client
        self.prefix = prefix

    def full(self, key: str) -> str:
        """The key in the bucket. `ValueError` for what is no key of ours."""
        if "\0" in key or any(part in {"", ".", ".."} for part in key.split("/")):
            raise ValueError(f"{key!r} is no key")
        return self.prefix + key

    def create(self, key: str, data: bytes) -> bool:
        """Create the object unless there is one. A lost answer is resolved by looking who made it."""
        write_id = uuid.uuid4().hex
        try:
            self.client.call(
                "put_object", Key=self.full(key), Body=data, IfNoneMatch="*", Metadata={WRITE_ID: write_id}
            )
        except Exists as there:
            return there.perhaps_ours and (self.metadata(key) or {}).get(WRITE_ID) == write_id
        return True

    def put(self, key: str, data: bytes | bytearray, metadata: Mapping[str, str]) -> None:
        """Write an object under a key that nobody else uses."""
        self.client.call("put_object", Key=self.full(key), Body=data, Metadata=dict(metadata))

    def read(self, key: str) -> bytes | None:
        """Its bytes; None if there is none."""
        try:
            return bytes(self.client.call("get_object", _whole, Key=self.full(key)))
        except Missing:
            return None

    def metadata(self, key: str) -> dict[str, str] | None:
        """What was written with it; None if there is none."""
        try:
            return dict(self.client.call("head_object", Key=self.full(key)).get("Metadata", {}))
        except Missing:
            return None

    def size(self, key: str) -> int | None:
        """How many bytes it has; None if there is none."""
        try:
            return int(self.client.call("head_object", Key=self.full(key))["ContentLength"])
        except Missing:
            return None

    def written_at(self, key: str) -> float | None:
        """When it was created, by the server's clock; None if there is none."""
        try:
            return float(self.client.call("head_object", Key=self.full(key))["LastModified"].timestamp())
        except Missing:
            return None

    def sha256(self, key: str) -> str | None:
        """The digest of its bytes, all of which are read; None if there is none."""
        try:
            return str(self.client.call("get_object", _digest, Key=self.full(key)))
        except Missing:
            return None

    def keys(self, prefix: str) -> Iterator[str]:
        """Keys that begin with the prefix, sorted, page by page."""
        for entry in self.client.pages("list_objects_v2", "Contents", Prefix=self.prefix + prefix):
            yield entry["Key"].removeprefix(self.prefix)

    def delete(self, keys: Sequence[str]) -> None:
        """Delete these; what is gone already is passed over."""
        for start in range(0, len(keys), _DELETED_AT_ONCE):
            some = keys[start : start + _DELETED_AT_ONCE]
            wanted = {"Objects": [{"Key": self.full(key)} for key in some], "Quiet": True}
            errors = self.client.call("delete_objects", Delete=wanted).get("Errors", ())
            for error in errors:
                if error.get("Code") not in {"NoSuchKey", "NotFound"}:
                    raise Unavailable(f"cannot delete {error.get('Key')}: {error.get('Code')}")

    def move(self, key: str, to: str) -> bool:
        """As `Bucket.move`. Both are there for a moment."""
        size, there = self.size(key), self.size(to)
        if size is None:
            return there is not None
        if there is not None and (there != size or self.sha256(to) != self.sha256(key)):
            raise Refused(f"another object is at {to}; nothing was moved")
        if there is None:
            source = {"Bucket": self.client.access.bucket, "Key": self.full(key)}
            self.client.call("copy_object", Key=self.full(to), CopySource=source)
            if self.size(to) != size:
                raise Unavailable(f"{to} is no copy of {key}, which was not touched")
        self.delete([key])
        return True


def _whole(answer: Mapping[str, Any]) -> bytes:
    return bytes(answer["Body"].read())


def _digest(answer: Mapping[str, Any]) -> str:
    digest = hashlib.sha256()
    for chunk in answer["Body"].iter_chunks(_CHUNK):
        digest.update(chunk)
    return digest.hexdigest()
