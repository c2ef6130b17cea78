"""The permissions that the documentation asks for are enough, and keep a node from taking anything back."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError

from holdfast.buckets.bucket import Published
from holdfast.buckets.s3 import S3Bucket
from holdfast.config.aws import AwsIdentity
from holdfast.config.secrets import Secret
from holdfast.errors import Refused
from holdfast.flow.names import staging_folder
from holdfast.s3.access import Staging
from holdfast.sinks.files.sink import FilesSink
from holdfast.testing.buckets import KEY, NAME, staged
from tests.servers.processes import running
from tests.servers.s3 import ACCESS_KEY, SECRET_KEY, S3Server
from tests.servers.s3_roots import BUCKET, PART, access

GUIDE = Path(__file__).parents[2] / "docs/how-to/store-files-in-s3.md"
PREFIX = "raw/orders/"
NODE = "node"


def documented() -> dict[str, Any]:
    """The policy of the guide as one of a bucket, for the user that stands for a node."""
    (text,) = re.findall(r"```json\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    policy: dict[str, Any] = json.loads(text)
    for statement in policy["Statement"]:
        statement["Principal"] = {"AWS": [NODE]}
        # This server knows no conditions in policies.
        statement.pop("Condition", None)
    return policy


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with running(S3Server, **{"iam-dir": str(tmp_path_factory.mktemp("iam"))}) as s3:
        s3.create_bucket(BUCKET)
        admin = (s3.command()[0], "admin", "-a", ACCESS_KEY, "-s", SECRET_KEY, "--er", s3.endpoint)
        subprocess.run([*admin, "create-user", "-a", NODE, "-s", "nodesecret", "-r", "user"], check=True)
        yield s3
        # It would wait for clients that keep their connections.
        s3.crash()


@pytest.fixture
def node(server: S3Server) -> Iterator[S3Bucket]:
    """The bucket as the node may use it."""
    server.client().put_bucket_policy(Bucket=BUCKET, Policy=json.dumps(documented()))
    yield bucket_of(server)
    server.client().delete_bucket_policy(Bucket=BUCKET)


def bucket_of(server: S3Server, staging: Staging = "auto") -> S3Bucket:
    reached = replace(access(server.port), identity=AwsIdentity(Secret(NODE), Secret("nodesecret")))
    return S3Bucket(reached, PREFIX, staging, PART)


@pytest.mark.parametrize("staging", ["auto", "multipart", "copy"])
def test_documented_permissions_are_enough(node: S3Bucket, server: S3Server, staging: Staging) -> None:
    bucket = bucket_of(server, staging)
    FilesSink("files", bucket).open("orders", durable=True)
    bucket.probe()
    files = [staged(bucket, bytes(size), key=f"{staging}/{size}", batch=f"{staging}{size}") for size in (3, PART + 1)]
    garbage = staged(bucket, b"", batch=f"{staging}-garbage")
    assert bucket.has_staged(files) == [True, True]
    assert bucket.publish(files) == [Published.DONE] * 2
    assert garbage.handle in dict(bucket.staged_under(staging_folder(NAME))).values()
    bucket.discard([file.handle for file in [*files, garbage]])
    assert list(bucket.staged_under(staging_folder(NAME))) == []
    assert list(bucket.keys(f"{staging}/")) == [file.key for file in files]


def test_what_is_published_cannot_be_deleted(node: S3Bucket) -> None:
    assert node.create(KEY, b"published")
    client = node._objects.client._client
    with pytest.raises(ClientError, match="AccessDenied"):
        client.delete_object(Bucket=BUCKET, Key=PREFIX + KEY)
    assert node.read(KEY) == b"published"


def test_a_node_without_permissions_does_not_start(server: S3Server) -> None:
    with pytest.raises(Refused, match="AccessDenied"):
        bucket_of(server).probe()
