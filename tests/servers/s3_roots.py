"""Buckets for tests: each on a prefix of its own of one bucket of a running server."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field

from holdfast.buckets.s3 import S3Bucket
from holdfast.config.aws import AwsIdentity
from holdfast.config.secrets import Secret
from holdfast.s3.access import S3Access, Staging
from tests.servers.s3 import ACCESS_KEY, REGION, SECRET_KEY, S3Server

BUCKET = "lake"
PART = 5 << 20


def access(port: int, bucket: str = BUCKET, secret: str = SECRET_KEY) -> S3Access:
    keys = AwsIdentity(Secret(ACCESS_KEY), Secret(secret))
    return S3Access(bucket, f"http://127.0.0.1:{port}", REGION, keys, path_style=True)


@dataclass
class S3Root:
    """An empty prefix, and what is below it as the server sees it."""

    server: S3Server
    prefix: str = field(default_factory=lambda: f"{uuid.uuid4().hex}/")

    def bucket(self, staging: Staging = "auto", port: int | None = None) -> S3Bucket:
        """A new handle, of this server or of a proxy before it."""
        return S3Bucket(access(port or self.server.port), self.prefix, staging, PART)

    def uploads(self) -> list[str]:
        """Keys of the uploads that are not completed."""
        answer = self.server.client().list_multipart_uploads(Bucket=BUCKET, Prefix=self.prefix)
        return [upload["Key"].removeprefix(self.prefix) for upload in answer.get("Uploads", [])]

    def objects(self) -> list[str]:
        """Keys of all objects, staged ones included."""
        answer = self.server.client().list_objects_v2(Bucket=BUCKET, Prefix=self.prefix)
        return [entry["Key"].removeprefix(self.prefix) for entry in answer.get("Contents", [])]
