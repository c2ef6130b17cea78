"""Access to an S3 bucket: address, credentials, and what a probe found about its server. Picklable; hides secrets."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias
from urllib.parse import urlencode

from holdfast.config.aws import AwsIdentity

Staging: TypeAlias = Literal["auto", "multipart", "copy"]
SCHEME = "s3://"
PART_SIZE = 8 << 20
PATIENCE = 60.0
SMALLEST_PART = 5 << 20
_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")


@dataclass(frozen=True, slots=True)
class ObjectSettings:
    """What written objects have besides their bytes. If nothing is set, the bucket's own settings apply."""

    storage_class: str | None = None
    encryption: str | None = None
    kms_key_id: str | None = None
    tags: tuple[tuple[str, str], ...] = ()

    def parameters(self) -> dict[str, str]:
        """Return the parameters of requests that create objects."""
        given = {
            "StorageClass": self.storage_class,
            "ServerSideEncryption": self.encryption,
            "SSEKMSKeyId": self.kms_key_id,
            "Tagging": urlencode(self.tags) or None,
        }
        return {name: value for name, value in given.items() if value is not None}


@dataclass(frozen=True, slots=True)
class S3Access:
    """How to reach a bucket. Equal ones share a client."""

    bucket: str
    endpoint_url: str | None = None
    region: str | None = None
    identity: AwsIdentity = AwsIdentity()
    path_style: bool = False
    patience: float = PATIENCE
    """Seconds to wait for a response. A request is not repeated after that many seconds either."""
    owner: str | None = None
    """Account that must own the bucket."""
    written: ObjectSettings = ObjectSettings()

    def session(self) -> Any:
        """Return a boto3 session with the credentials of this access."""
        return self.identity.session(self.region)


@dataclass(frozen=True, slots=True)
class Traits:
    """How to stage, and which requests can be prevented from overwriting. Found by `holdfast.buckets.s3_probe`.

    `multipart` stages every file as an upload that is not completed, `copy` as a hidden object that is copied; `mixed`
    copies files of less than one part, because that takes half the requests, and completes uploads of larger ones.
    """

    staging: Literal["multipart", "copy", "mixed"]
    conditional_complete: bool
    conditional_copy: bool


def split_root(root: str) -> tuple[str, str]:
    """Bucket and key prefix of `s3://bucket/prefix`. Raises `ValueError` for an invalid root."""
    bucket, _, prefix = root.removeprefix(SCHEME).partition("/")
    prefix = prefix.strip("/")
    if not root.startswith(SCHEME) or not _BUCKET.fullmatch(bucket):
        raise ValueError(f"{root!r} names no bucket; write s3://bucket/prefix")
    if prefix and any(part in {"", ".", ".."} or not part.isprintable() for part in prefix.split("/")):
        raise ValueError(f"{root!r} has a prefix with an empty part, a dot or a control character")
    return bucket, f"{prefix}/" if prefix else ""
