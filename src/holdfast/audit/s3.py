"""A root on S3, read only."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO

from holdfast.audit.place import STAGING, Listed, Place, is_key
from holdfast.errors import Unavailable, UsageError

TRIES = 5
CONNECTIONS = 32
CONNECT_TIMEOUT = 5.0
READ_TIMEOUT = 60.0
_ABSENT = {"NoSuchKey", "NotFound", "404"}


class S3Prefix(Place):
    """Objects below a prefix of a bucket. `options` are the sink's own settings for S3, or None."""

    def __init__(self, root: str, options: Any) -> None:
        self.root = root
        self._bucket, _, prefix = root.removeprefix("s3://").partition("/")
        self._prefix = f"{prefix.strip('/')}/" if prefix.strip("/") else ""
        self._client = _connect(options)

    def listing(self) -> Iterator[Listed]:
        for page in self._pages(Prefix=self._prefix):
            for entry in page.get("Contents", ()):
                key = entry["Key"].removeprefix(self._prefix)
                # Some servers list folders as empty objects.
                if key and not key.endswith("/") and not key.startswith(STAGING):
                    yield Listed(key, entry["Size"])

    def folders(self, prefix: str) -> Iterator[str]:
        for page in self._pages(Prefix=self._prefix + prefix, Delimiter="/"):
            for entry in page.get("CommonPrefixes", ()):
                yield entry["Prefix"].removeprefix(self._prefix + prefix).rstrip("/")

    def size(self, key: str) -> int | None:
        with self._told(key) as found:
            if is_key(key):
                answer = self._client.head_object(Bucket=self._bucket, Key=self._prefix + key)
                found.append(int(answer["ContentLength"]))
        return found[0] if found else None

    def open(self, key: str) -> BinaryIO | None:
        with self._told(key) as found:
            if is_key(key):
                found.append(self._copied(key))
        return found[0] if found else None

    def _copied(self, key: str) -> BinaryIO:
        """The object in a temporary file: readers of some formats must seek."""
        from botocore.exceptions import BotoCoreError

        for left in reversed(range(TRIES)):
            file = tempfile.TemporaryFile()  # noqa: SIM115 - the caller closes it
            try:
                answer = self._client.get_object(Bucket=self._bucket, Key=self._prefix + key)
                shutil.copyfileobj(answer["Body"], file, 1 << 20)
                file.seek(0)
            except BaseException as error:
                file.close()
                # A body that breaks off is not asked for again by botocore itself.
                if not left or not isinstance(error, BotoCoreError | OSError):
                    raise
            else:
                return file
        raise AssertionError

    def _pages(self, **arguments: Any) -> Iterator[Any]:
        with self._told(""):
            yield from self._client.get_paginator("list_objects_v2").paginate(Bucket=self._bucket, **arguments)

    @contextmanager
    def _told(self, key: str) -> Iterator[list[Any]]:
        """Where an answer is put; it stays empty if there is no such object."""
        from botocore.exceptions import BotoCoreError, ClientError

        try:
            yield []
        except ClientError as error:
            if error.response.get("Error", {}).get("Code") not in _ABSENT:
                raise Unavailable(f"cannot read {self.root}/{key}: {error}") from error
        except (BotoCoreError, OSError) as error:
            raise Unavailable(f"cannot read {self.root}/{key}: {error}") from error


def _connect(options: Any) -> Any:
    try:
        import boto3
        from botocore.config import Config
    except ImportError as error:
        raise UsageError(f"a root on S3 needs boto3; install holdfast[s3] ({error})") from error

    def given(name: str) -> Any:
        value = getattr(options, name, None)
        return value.reveal() if value is not None and hasattr(value, "reveal") else value

    config = Config(
        connect_timeout=CONNECT_TIMEOUT,
        read_timeout=READ_TIMEOUT,
        max_pool_connections=CONNECTIONS,
        retries={"total_max_attempts": TRIES, "mode": "standard"},
        response_checksum_validation="when_required",
        s3={"addressing_style": "path" if given("path_style") else "auto"},
    )
    session = boto3.session.Session(
        aws_access_key_id=given("access_key_id"),
        aws_secret_access_key=given("secret_access_key"),
        aws_session_token=given("session_token"),
        region_name=given("region"),
    )
    return session.client(
        "s3", region_name=session.region_name or "us-east-1", endpoint_url=given("endpoint_url"), config=config
    )
