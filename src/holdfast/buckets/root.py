"""The root of files in the settings: a folder, or a prefix of an S3 bucket."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, TypeAlias

from pydantic import AfterValidator, BeforeValidator, Field, model_validator
from pydantic_core import PydanticCustomError

from holdfast.config import AddedLater, ByteSize, Secret
from holdfast.config.aws import AwsIdentity, AwsRoleOptions
from holdfast.config.plugins import PLAIN_ERROR
from holdfast.config.units import VALUE_ERROR
from holdfast.registry import needing
from holdfast.s3.access import PART_SIZE, PATIENCE, SCHEME, SMALLEST_PART, ObjectSettings, S3Access, split_root

if TYPE_CHECKING:
    from holdfast.buckets.bucket import Bucket


_OTHER_SCHEMES = {"s3a": "write s3://", "s3n": "write s3://", "file": "write the path: "}


def _as_text(value: Any) -> Any:
    return str(value) if isinstance(value, Path) else value


def _checked_root(root: str) -> str:
    if not root:
        raise PydanticCustomError(VALUE_ERROR, "is not a folder; write a path or s3://bucket/prefix")
    scheme, separator, rest = root.partition("://")
    if not separator:
        return os.path.expanduser(root)  # noqa: PTH111 - a root keeps its spelling otherwise
    if f"{scheme}://" != SCHEME:
        reason = f"the scheme {scheme!r} is not supported; {_OTHER_SCHEMES.get(scheme, 'write a path or s3://')}{rest}"
        raise PydanticCustomError(PLAIN_ERROR, "{reason}", {"reason": reason})
    try:
        split_root(root)
    except ValueError as error:
        raise PydanticCustomError(PLAIN_ERROR, "{reason}", {"reason": str(error)}) from None
    return root


def _checked_endpoint(url: str) -> str:
    # A password in an address would be shown with it.
    if not re.fullmatch(r"https?://[A-Za-z0-9.\-\[\]:]+/?", url):
        raise PydanticCustomError(VALUE_ERROR, "is not an endpoint; write https://host or http://host:port")
    return url


# Objects of the archive classes cannot be read before they are restored.
StorageClass: TypeAlias = Literal[
    "STANDARD", "STANDARD_IA", "ONEZONE_IA", "INTELLIGENT_TIERING", "GLACIER_IR", "REDUCED_REDUNDANCY"
]
Root = Annotated[str, BeforeValidator(_as_text), AfterValidator(_checked_root)]


class S3Reach(AwsRoleOptions):
    """How to reach S3 or a compatible server.

    Without keys, those of the environment, a profile or the machine's role are used.
    """

    endpoint_url: Annotated[str, AfterValidator(_checked_endpoint)] | None = Field(
        None, description="Address of a server other than Amazon's, for example `http://minio:9000`."
    )
    region: str | None = Field(None, description="Region of the bucket; by default that of the environment.")
    access_key_id: Secret | None = Field(None, description="Access key; prefer the role of the machine.")
    secret_access_key: Secret | None = Field(None, description="Secret of the access key.")
    session_token: Secret | None = Field(None, description="Token of temporary keys.")
    path_style: bool = Field(
        False,
        description="Put the bucket into the path, not into the host name; most servers other than Amazon's need it.",
    )
    expected_bucket_owner: Annotated[str | None, Field(pattern=r"^\d{12}$"), AddedLater] = Field(
        None, description="Account that owns the bucket; S3 refuses requests to a bucket of another account."
    )

    @model_validator(mode="after")
    def _keys_come_in_pairs(self) -> Self:
        if (self.access_key_id is None) != (self.secret_access_key is None):
            raise PydanticCustomError(PLAIN_ERROR, "access_key_id and secret_access_key must be given both, or neither")
        if self.session_token is not None and self.access_key_id is None:
            raise PydanticCustomError(PLAIN_ERROR, "session_token needs access_key_id and secret_access_key")
        return self


class S3Options(S3Reach):
    """How to reach S3 or a compatible server, and how files are staged there."""

    staging: Literal["auto", "multipart", "copy"] = Field(
        "auto",
        description="How files are staged until their commit: as incomplete uploads, or as hidden objects that are "
        "copied. With `auto`, a probe at start decides.",
    )
    part_size: Annotated[ByteSize, Field(ge=SMALLEST_PART, le=5 << 30)] = Field(
        PART_SIZE, description="Size of the parts of an upload; an open file keeps up to three of them in memory."
    )
    storage_class: Annotated[StorageClass | None, AddedLater] = Field(
        None,
        description="Storage class of written files, one that can be read at once; the server's default unless given, "
        "and always for objects below `_holdfast/`.",
    )
    server_side_encryption: Annotated[Literal["AES256", "aws:kms", "aws:kms:dsse"] | None, AddedLater] = Field(
        None, description="How S3 encrypts written objects; as configured for the bucket unless given."
    )
    kms_key_id: Annotated[str | None, Field(min_length=1), AddedLater] = Field(
        None, description="Key for `aws:kms`; the account's default key for S3 unless given."
    )
    tags: Annotated[dict[str, str], Field(max_length=10), AddedLater] = Field(
        {}, description="Tags of written objects, at most 10."
    )

    @model_validator(mode="after")
    def _key_is_for_kms(self) -> Self:
        if self.kms_key_id is not None and self.server_side_encryption not in {"aws:kms", "aws:kms:dsse"}:
            raise PydanticCustomError(PLAIN_ERROR, "kms_key_id needs server_side_encryption: aws:kms")
        return self

    def written(self) -> ObjectSettings:
        """Return how objects are written."""
        return ObjectSettings(
            self.storage_class, self.server_side_encryption, self.kms_key_id, tuple(self.tags.items())
        )


def check_together(root: str, s3: S3Reach | None) -> None:
    """Raise unless the settings for S3 belong to a root on S3."""
    if s3 is not None and not root.startswith(SCHEME):
        raise PydanticCustomError(PLAIN_ERROR, "s3 is for a root that begins with s3://; this root is a folder")


def root_identity(root: str, s3: S3Reach | None) -> str:
    """A text that is the same for the same root, regardless of how the settings spell it."""
    if not root.startswith(SCHEME):
        return os.path.realpath(root)
    bucket, prefix = split_root(root)
    endpoint = "" if s3 is None or s3.endpoint_url is None else s3.endpoint_url.rstrip("/")
    return f"{SCHEME}{endpoint}/{bucket}/{prefix}".rstrip("/")


def bucket_of(root: str, s3: S3Options | None) -> Bucket:
    """The bucket that the settings name. Sends no request."""
    if not root.startswith(SCHEME):
        from holdfast.buckets.local import LocalBucket

        return LocalBucket(root)
    options = s3 or S3Options()
    access, prefix = access_of(root, options)
    from holdfast.buckets.s3 import S3Bucket

    return S3Bucket(access, prefix, options.staging, options.part_size)


def access_of(root: str, options: S3Reach, patience: float = PATIENCE) -> tuple[S3Access, str]:
    """How to reach the bucket of a root on S3, and the prefix in it. Raises `UsageError` if boto3 is missing."""
    with needing("a root on S3", "boto3", "s3"):
        import boto3  # noqa: F401 - it fails here and not in a task
    bucket, prefix = split_root(root)
    access = S3Access(
        bucket,
        options.endpoint_url,
        options.region,
        AwsIdentity.of(options),
        options.path_style,
        patience,
        owner=options.expected_bucket_owner,
        written=options.written() if isinstance(options, S3Options) else ObjectSettings(),
    )
    return access, prefix
