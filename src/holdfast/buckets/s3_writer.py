"""An open staged object on S3: hashed and sent while it is written, with a few parts in memory at most."""

from __future__ import annotations

import hashlib
import json
from collections import deque
from concurrent.futures import Future
from functools import partial
from typing import Literal

from holdfast.errors import BatchError, Unavailable
from holdfast.leases.lease import Json
from holdfast.s3.client import Missing
from holdfast.s3.objects import STAGED_KEY, S3Objects

REGISTERED = ".upload"
"""Suffix of the name of an upload's registry object; the rest of the name is the staged key."""
IN_FLIGHT = 2
MOST_PARTS = 10_000
LARGEST_COPY = 5 << 30


class S3Writer:
    """Buffers less than one part until it is closed. Never aborts an upload: an owner with a higher token sweeps it."""

    def __init__(
        self,
        objects: S3Objects,
        staged_key: str,
        key: str,
        *,
        staging: Literal["multipart", "copy", "mixed"],
        part_size: int,
    ) -> None:
        self._objects = objects
        self._staged_key = staged_key
        # Copying needs an object of its own; an upload of the final key needs none.
        self._target = staged_key if staging == "copy" else key
        self._staging = staging
        self._part_size = part_size
        self._part = bytearray()
        self._size = 0
        self._digest = hashlib.sha256()
        self._upload: str | None = None
        self._registering: Future[None] | None = None
        self._sending: deque[Future[str]] = deque()
        self._etags: list[str] = []
        self._parts = 0
        self._whole = True

    @property
    def buffered(self) -> int:
        """Bytes in memory: the part that is being filled, and the parts that are being sent."""
        return len(self._part) + self._part_size * len(self._sending)

    def write(self, data: bytes | memoryview) -> int:
        # A file that lacks what could not be written must never be closed as if it were whole.
        whole, self._whole = self._whole, False
        view = memoryview(data).cast("B")
        self._digest.update(view)
        self._size += view.nbytes
        start = 0
        while view.nbytes - start + len(self._part) >= self._part_size:
            end = start + self._part_size - len(self._part)
            self._part += view[start:end]
            self._send()
            start = end
        self._part += view[start:]
        self._whole = whole
        return view.nbytes

    def close(self) -> tuple[Json, int, str]:
        if not self._whole:
            raise Unavailable(f"cannot write {self._staged_key}: an earlier write has failed")
        if self._upload is None and self._staging != "multipart":
            self._objects.put(self._staged_key, self._part, {STAGED_KEY: self._staged_key})
            handle: Json = {"place": self._staged_key}
        else:
            handle = self._finish_upload()
        return handle, self._size, self._digest.hexdigest()

    def _finish_upload(self) -> Json:
        if self._part or not self._parts:
            self._send()
        while self._sending:
            self._etags.append(self._sending.popleft().result())
        if self._registering is not None:
            self._registering.result()
        if self._staging != "copy":
            return {"place": self._staged_key, "key": self._target, "upload": self._upload}
        self._complete()
        self._objects.delete([self._staged_key + REGISTERED])
        return {"place": self._staged_key}

    def _send(self) -> None:
        """Begin to send the buffered part; blocks while too many parts are being sent."""
        self._check_limits()
        if self._upload is None:
            self._upload = self._begin()
        while len(self._sending) >= IN_FLIGHT:
            self._etags.append(self._sending.popleft().result())
        part, self._part = self._part, bytearray()
        self._parts += 1
        self._sending.append(self._objects.client.submit(partial(self._upload_part, self._parts, part)))

    def _check_limits(self) -> None:
        advice = "set max_file_bytes of the sink lower"
        if self._parts >= MOST_PARTS:
            raise BatchError(f"a file would have more than {MOST_PARTS} parts, which S3 does not accept; {advice}")
        if self._staging == "copy" and self._size > LARGEST_COPY:
            raise BatchError(f"a file would have more than {LARGEST_COPY >> 30} GiB, which S3 does not copy; {advice}")

    def _begin(self) -> str:
        """Begin an upload and register it, so that it can be found and aborted when this process dies.

        The first part is sent at the same time; `close` waits for the registration.
        """
        objects, target, metadata = self._objects, self._objects.full(self._target), {STAGED_KEY: self._staged_key}
        upload = str(objects.client.call("create_multipart_upload", Key=target, Metadata=metadata)["UploadId"])
        registered = json.dumps({"place": self._staged_key, "key": self._target, "upload": upload}).encode()
        self._registering = objects.client.submit(partial(objects.put, self._staged_key + REGISTERED, registered, {}))
        return upload

    def _upload_part(self, number: int, part: bytearray) -> str:
        named = {"Key": self._objects.full(self._target), "UploadId": self._upload, "PartNumber": number}
        try:
            return str(self._objects.client.call("upload_part", Body=part, **named)["ETag"])
        except Missing as gone:
            raise self._swept() from gone

    def _complete(self) -> None:
        """Complete the upload of the hidden object with this staged key."""
        parts = [{"ETag": etag, "PartNumber": number} for number, etag in enumerate(self._etags, 1)]
        named = {"Key": self._objects.full(self._target), "UploadId": self._upload}
        try:
            self._objects.client.call("complete_multipart_upload", MultipartUpload={"Parts": parts}, **named)
        except Missing as gone:
            # A response may have been lost: then the object is there, and no other process can have made it.
            if self._objects.metadata(self._staged_key) is None:
                raise self._swept() from gone

    def _swept(self) -> Unavailable:
        return Unavailable(
            f"cannot write {self._staged_key}: its upload was aborted, probably by a later owner of the lease"
        )
