"""An S3 server in memory, right or wrong in ways that a test chooses. It stands for `S3Client`."""

from __future__ import annotations

import hashlib
import io
import itertools
import threading
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from holdfast.s3 import client as s3_client
from holdfast.s3.access import S3Access
from holdfast.s3.client import Exists, Missing, Unable


@dataclass
class Upload:
    key: str
    metadata: dict[str, str]
    parts: dict[int, bytes] = field(default_factory=dict)


class _Body(io.BytesIO):
    def iter_chunks(self, size: int) -> Iterator[bytes]:
        while chunk := self.read(size):
            yield chunk


class FakeS3:
    """`ignoring`: verbs that do not look at conditions. `without`: verbs that it takes no request for."""

    def __init__(
        self, *, ignoring: Iterable[str] = (), without: Iterable[str] = (), shows_uploads: bool = False
    ) -> None:
        self.access = S3Access("fake", region=uuid.uuid4().hex)
        self.objects: dict[str, tuple[bytes, dict[str, str]]] = {}
        self.uploads: dict[str, Upload] = {}
        self.requests: Counter[str] = Counter()
        self._ignoring = set(ignoring)
        self._without = set(without)
        self._shows_uploads = shows_uploads
        self._ids = itertools.count()
        self._lock = threading.RLock()
        s3_client._clients[self.access] = self  # type: ignore[assignment]

    def call(self, verb: str, take: Callable[[Any], Any] | None = None, /, **arguments: Any) -> Any:
        with self._lock:
            self.requests[verb] += 1
            if verb in self._without:
                raise Unable(f"{verb}: NotImplemented")
            condition = arguments.pop("IfNoneMatch", None)
            if condition and verb not in self._ignoring and arguments["Key"] in self.objects:
                raise Exists(perhaps_ours=False)
            answer = getattr(self, verb)(**arguments)
            return answer if take is None else take(answer)

    def each(self, do: Callable[[Any], Any], inputs: Iterable[Any]) -> list[Any]:
        return [do(given) for given in inputs]

    def submit(self, do: Callable[[], Any]) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_result(do())
        return future

    def pages(self, verb: str, items: str, **arguments: Any) -> Iterator[dict[str, Any]]:
        yield from self.call(verb, **arguments)[items]

    # --- what boto3 calls them -------------------------------------------------------------------------------------

    def put_object(self, Key: str, Body: bytes, Metadata: dict[str, str]) -> None:  # noqa: N803
        self.objects[Key] = (bytes(Body), Metadata)

    def get_object(self, Key: str, Range: str = "") -> dict[str, Any]:  # noqa: N803
        data = self._there(Key)[0]
        first, _, last = Range.removeprefix("bytes=").partition("-")
        return {"Body": _Body(data[int(first) : int(last) + 1] if Range else data), "ETag": _etag(data)}

    def head_object(self, Key: str) -> dict[str, Any]:  # noqa: N803
        data, metadata = self._there(Key)
        return {"Metadata": metadata, "ContentLength": len(data)}

    def copy_object(self, Key: str, CopySource: dict[str, str]) -> None:  # noqa: N803
        self.objects[Key] = self._there(CopySource["Key"])

    def list_objects_v2(self, Prefix: str) -> dict[str, Any]:  # noqa: N803
        hidden = {upload.key for upload in self.uploads.values()} if self._shows_uploads else set()
        return {"Contents": [{"Key": key} for key in sorted({*self.objects, *hidden}) if key.startswith(Prefix)]}

    def delete_objects(self, Delete: dict[str, Any]) -> dict[str, Any]:  # noqa: N803
        for entry in Delete["Objects"]:
            self.objects.pop(entry["Key"], None)
        return {}

    def create_multipart_upload(self, Key: str, Metadata: dict[str, str]) -> dict[str, str]:  # noqa: N803
        upload_id = f"upload-{next(self._ids)}"
        self.uploads[upload_id] = Upload(Key, Metadata)
        return {"UploadId": upload_id}

    def upload_part(self, Key: str, UploadId: str, PartNumber: int, Body: bytes) -> dict[str, str]:  # noqa: N803
        self._open(UploadId).parts[PartNumber] = bytes(Body)
        return {"ETag": _etag(Body)}

    def list_parts(self, Key: str, UploadId: str, PartNumberMarker: int) -> dict[str, Any]:  # noqa: N803
        parts = self._open(UploadId).parts.items()
        return {"Parts": [{"ETag": _etag(part), "PartNumber": number, "Size": len(part)} for number, part in parts]}

    def complete_multipart_upload(self, Key: str, UploadId: str, MultipartUpload: Any) -> None:  # noqa: N803
        upload = self._open(UploadId)
        self.objects[Key] = (b"".join(part for _, part in sorted(upload.parts.items())), upload.metadata)
        del self.uploads[UploadId]

    def abort_multipart_upload(self, Key: str, UploadId: str) -> None:  # noqa: N803
        self._open(UploadId)
        del self.uploads[UploadId]

    def _there(self, key: str) -> tuple[bytes, dict[str, str]]:
        if key not in self.objects:
            raise Missing(key)
        return self.objects[key]

    def _open(self, upload_id: str) -> Upload:
        if upload_id not in self.uploads:
            raise Missing(upload_id)
        return self.uploads[upload_id]


def _etag(data: bytes) -> str:
    return hashlib.md5(data, usedforsecurity=False).hexdigest()
