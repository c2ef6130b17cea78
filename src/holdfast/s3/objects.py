"""Objects below one prefix of an S3 bucket: create once, replace by ETag, read, list, delete.

Keys are relative to the prefix.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from holdfast.errors import Refused, Unavailable
from holdfast.s3.client import Exists, Missing, S3Client

WRITE_ID = "holdfast-write"
STAGED_KEY = "holdfast-place"
_DELETED_AT_ONCE = 1000
_CHUNK = 1 << 20


class ObjectVersion(NamedTuple):
    """An object as it was at one moment."""

    data: bytes
    etag: str


class S3Objects:
    """Operations on whole objects. All block and raise `Unavailable` when the server does not respond."""

    def __init__(
        self, client: S3Client, prefix: str, observe: Callable[[Mapping[str, Any]], None] | None = None
    ) -> None:
        """`observe` is called with every response, including its headers."""
        self.client = client
        self.prefix = prefix
        self._observe = observe

    def full(self, key: str) -> str:
        """The full key in the bucket. Raises `ValueError` for an invalid key."""
        if "\0" in key or any(part in {"", ".", ".."} for part in key.split("/")):
            raise ValueError(f"{key!r} is not a key")
        return self.prefix + key

    def create(self, key: str, data: bytes) -> bool:
        """Create the object unless it exists. After a lost response, its metadata shows whether this call made it."""
        write_id = uuid.uuid4().hex
        try:
            self.client.call(
                "put_object", Key=self.full(key), Body=data, IfNoneMatch="*", Metadata={WRITE_ID: write_id}
            )
        except Exists as there:
            return there.perhaps_ours and (self.metadata(key) or {}).get(WRITE_ID) == write_id
        return True

    def replace(self, key: str, data: bytes, etag: str | None) -> str:
        """Write the object if it still has this ETag; None: if it does not exist. Returns the new ETag.

        Raises `Exists` or `Missing` otherwise. The existing object may come from an earlier attempt of the same call.
        """
        condition = {"IfNoneMatch": "*"} if etag is None else {"IfMatch": etag}
        return str(self._call("put_object", Key=self.full(key), Body=data, **condition)["ETag"])

    def put(self, key: str, data: bytes | bytearray, metadata: Mapping[str, str]) -> None:
        """Write an object under a key that no other process uses."""
        self.client.call("put_object", Key=self.full(key), Body=data, Metadata=dict(metadata))

    def read(self, key: str) -> bytes | None:
        """The object's bytes; None if it does not exist."""
        found = self.version(key)
        return None if found is None else found.data

    def read_range(self, key: str, start: int, size: int) -> bytes | None:
        """That many bytes of the object from `start` on; None if it does not exist."""
        try:
            part = f"bytes={start}-{start + size - 1}"
            found: ObjectVersion = self._call("get_object", _version, Key=self.full(key), Range=part)
        except Missing:
            return None
        return found.data

    def version(self, key: str) -> ObjectVersion | None:
        """The object's bytes and ETag; None if it does not exist."""
        try:
            found: ObjectVersion = self._call("get_object", _version, Key=self.full(key))
        except Missing:
            return None
        return found

    def metadata(self, key: str) -> dict[str, str] | None:
        """The object's metadata; None if it does not exist."""
        try:
            return dict(self.client.call("head_object", Key=self.full(key)).get("Metadata", {}))
        except Missing:
            return None

    def size(self, key: str) -> int | None:
        """The object's size; None if it does not exist."""
        try:
            return int(self.client.call("head_object", Key=self.full(key))["ContentLength"])
        except Missing:
            return None

    def written_at(self, key: str) -> float | None:
        """When the object was created, by the server's clock; None if it does not exist."""
        try:
            return float(self.client.call("head_object", Key=self.full(key))["LastModified"].timestamp())
        except Missing:
            return None

    def sha256(self, key: str) -> str | None:
        """The digest of the object's bytes, all of which are read; None if it does not exist."""
        try:
            return str(self.client.call("get_object", _digest, Key=self.full(key)))
        except Missing:
            return None

    def keys(self, prefix: str) -> Iterator[str]:
        """Keys that begin with the prefix, sorted, page by page."""
        return (entry["Key"].removeprefix(self.prefix) for entry in self._entries(prefix))

    def etags(self, prefix: str) -> Iterator[tuple[str, str]]:
        """Keys that begin with the prefix and their ETags, sorted by key, page by page."""
        return ((entry["Key"].removeprefix(self.prefix), entry["ETag"]) for entry in self._entries(prefix))

    def _entries(self, prefix: str) -> Iterator[dict[str, Any]]:
        observers = () if self._observe is None else (self._observe,)
        return self.client.pages("list_objects_v2", "Contents", *observers, Prefix=self.prefix + prefix)

    def delete_version(self, key: str, etag: str) -> None:
        """Delete the object if it still has this ETag; servers that ignore the condition delete it anyway.

        Raises `Exists` or `Missing` if it has another ETag or does not exist.
        """
        self._call("delete_object", Key=self.full(key), IfMatch=etag)

    def delete(self, keys: Sequence[str]) -> None:
        """Delete these objects; missing ones are ignored."""
        for start in range(0, len(keys), _DELETED_AT_ONCE):
            some = keys[start : start + _DELETED_AT_ONCE]
            wanted = {"Objects": [{"Key": self.full(key)} for key in some], "Quiet": True}
            errors = self.client.call("delete_objects", Delete=wanted).get("Errors", ())
            for error in errors:
                if error.get("Code") not in {"NoSuchKey", "NotFound"}:
                    raise Unavailable(f"cannot delete {error.get('Key')}: {error.get('Code')}")

    def move(self, key: str, to: str) -> bool:
        """Like `Bucket.move`. Both objects exist for a moment."""
        size, there = self.size(key), self.size(to)
        if size is None:
            return there is not None
        if there is not None and (there != size or self.sha256(to) != self.sha256(key)):
            raise Refused(f"another object is at {to}; nothing was moved")
        if there is None:
            source = {"Bucket": self.client.access.bucket, "Key": self.full(key)}
            self.client.call("copy_object", Key=self.full(to), CopySource=source)
            if self.size(to) != size:
                raise Unavailable(f"{to} is not a copy of {key}, which was not touched")
        self.delete([key])
        return True

    def _call(self, verb: str, take: Callable[[Any], Any] | None = None, /, **arguments: Any) -> Any:
        def observed(response: Any) -> Any:
            if self._observe is not None:
                self._observe(response)
            return response if take is None else take(response)

        return self.client.call(verb, observed, **arguments)


def _version(response: Mapping[str, Any]) -> ObjectVersion:
    return ObjectVersion(bytes(response["Body"].read()), str(response["ETag"]))


def _digest(response: Mapping[str, Any]) -> str:
    digest = hashlib.sha256()
    for chunk in response["Body"].iter_chunks(_CHUNK):
        digest.update(chunk)
    return digest.hexdigest()
