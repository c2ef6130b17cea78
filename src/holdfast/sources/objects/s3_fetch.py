"""The bytes of one object on S3 in one version, streamed in ranges that grow while the reading is sequential."""

from __future__ import annotations

from typing import Any

from holdfast.errors import BatchError, Unavailable
from holdfast.s3.access import S3Access
from holdfast.s3.client import TRIES, Exists, Missing, client_of, error_code

FIRST_RANGE = 256 << 10
LARGEST_RANGE = 64 << 20
READ_THROUGH = 256 << 10
"""A gap up to this size is read and discarded; beyond it another request is cheaper."""
_OBJECT_ERRORS = {"AccessDenied", "InvalidObjectState", "AllAccessDisabled"}
"""Error codes that concern one object: it is archived, or has permissions of its own."""


class S3Fetch:
    """A `RandomBytes`. Every request names the ETag, so that bytes of two versions are never mixed."""

    def __init__(self, access: S3Access, key: str, size: int, etag: str) -> None:
        self._access, self._key, self._size, self._etag = access, key, size, etag
        self._at = 0
        self._body: Any = None
        self._left = 0
        """Bytes of the current range that have not been read yet."""
        self._range = FIRST_RANGE

    def seek(self, offset: int, /) -> int:
        ahead = offset - self._at
        if 0 < ahead <= min(READ_THROUGH, self._left):
            self.read(ahead)
        elif ahead:
            self._drop()
            self._range = FIRST_RANGE
        self._at = offset
        return offset

    def read(self, size: int = -1, /) -> bytes:
        missing = max(self._size - self._at, 0)
        if size >= 0:
            missing = min(missing, size)
        parts: list[bytes] = []
        while missing:
            parts.append(self._some(missing))
            missing -= len(parts[-1])
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def close(self) -> None:
        """Return the connection to its pool. Never raises."""
        self._drop()

    def _some(self, most: int) -> bytes:
        """Read at least one byte. A broken connection is replaced by another that continues at the same offset."""
        from botocore.exceptions import BotoCoreError

        broken: Exception | None = None
        for _ in range(TRIES):
            if not self._left:
                self._request(most)
            try:
                part = bytes(self._body.read(min(most, self._left)))
            except (BotoCoreError, OSError) as error:
                broken = error
            else:
                if part:
                    self._at += len(part)
                    self._left -= len(part)
                    return part
                broken = None
            self._drop()
        reason = broken or "the server sends fewer bytes than it announced"
        raise Unavailable(f"cannot read {self._path}: {reason}")

    def _request(self, wanted: int) -> None:
        self._drop()
        length = min(max(self._range, wanted), self._size - self._at)
        try:
            response = client_of(self._access).call(
                "get_object", Key=self._key, IfMatch=self._etag, Range=f"bytes={self._at}-{self._at + length - 1}"
            )
        except Missing:
            raise BatchError(f"{self._path} has vanished since it was found") from None
        except Exists:
            raise BatchError(
                f"{self._path} has changed since it was found: it has another ETag than {self._etag}"
            ) from None
        except Unavailable as error:
            if error_code(error.__cause__) in _OBJECT_ERRORS:
                raise BatchError(str(error)) from error
            raise
        if response["ContentLength"] != length:
            response["Body"].close()
            sent = response["ContentLength"]
            raise BatchError(f"{self._path}: {length} bytes were requested, and the server sends {sent}")
        self._body, self._left = response["Body"], length
        self._range = min(2 * length, LARGEST_RANGE)

    def _drop(self) -> None:
        if self._body is not None:
            # A body that was read to its end has returned its connection already.
            if self._left:
                self._body.close()
            self._body, self._left = None, 0

    @property
    def _path(self) -> str:
        return f"s3://{self._access.bucket}/{self._key}"
