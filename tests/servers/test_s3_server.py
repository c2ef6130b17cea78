"""The S3 server that other tests rely on: what exactly-once is built upon holds there."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest
from botocore.exceptions import BotoCoreError, ClientError

from tests.servers.processes import running
from tests.servers.s3 import S3Server

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

BUCKET = "lake"


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    with running(S3Server) as started:
        started.create_bucket(BUCKET)
        yield started


@pytest.fixture
def client(server: S3Server) -> Iterator[S3Client]:
    client = server.client(max_pool_connections=16)
    yield client
    client.close()


def content(client: S3Client, key: str) -> bytes:
    return client.get_object(Bucket=BUCKET, Key=key)["Body"].read()


def keys(client: S3Client, prefix: str) -> list[str]:
    return [found["Key"] for found in client.list_objects_v2(Bucket=BUCKET, Prefix=prefix).get("Contents", [])]


def refusal(caught: pytest.ExceptionInfo[ClientError]) -> int:
    return int(caught.value.response["ResponseMetadata"]["HTTPStatusCode"])


def test_a_key_is_created_once(client: S3Client) -> None:
    client.put_object(Bucket=BUCKET, Key="once", Body=b"first", IfNoneMatch="*")
    with pytest.raises(ClientError) as caught:
        client.put_object(Bucket=BUCKET, Key="once", Body=b"second", IfNoneMatch="*")
    assert refusal(caught) == 412
    assert content(client, "once") == b"first"


def test_of_many_who_create_a_key_one_wins(client: S3Client) -> None:
    def create(number: int) -> int | None:
        try:
            client.put_object(Bucket=BUCKET, Key="race", Body=b"%d" % number, IfNoneMatch="*")
            return number
        except ClientError:
            return None

    with ThreadPoolExecutor(16) as racers:
        winners = [number for number in racers.map(create, range(64)) if number is not None]
    assert [b"%d" % number for number in winners] == [content(client, "race")]


def test_a_change_needs_the_current_tag(client: S3Client) -> None:
    tag = client.put_object(Bucket=BUCKET, Key="tag", Body=b"1")["ETag"]
    client.put_object(Bucket=BUCKET, Key="tag", Body=b"2", IfMatch=tag)
    with pytest.raises(ClientError) as caught:
        client.put_object(Bucket=BUCKET, Key="tag", Body=b"3", IfMatch=tag)
    assert refusal(caught) == 412
    assert content(client, "tag") == b"2"


def test_an_upload_is_not_there_until_it_is_completed(client: S3Client) -> None:
    upload = client.create_multipart_upload(Bucket=BUCKET, Key="staged/a", Metadata={"commit": "7"})["UploadId"]
    part = client.upload_part(Bucket=BUCKET, Key="staged/a", UploadId=upload, PartNumber=1, Body=b"rows")
    assert keys(client, "staged/") == []
    with pytest.raises(ClientError) as caught:
        client.head_object(Bucket=BUCKET, Key="staged/a")
    assert refusal(caught) == 404
    client.complete_multipart_upload(
        Bucket=BUCKET,
        Key="staged/a",
        UploadId=upload,
        MultipartUpload={"Parts": [{"PartNumber": 1, "ETag": part["ETag"]}]},
        IfNoneMatch="*",
    )
    assert keys(client, "staged/") == ["staged/a"]
    assert client.head_object(Bucket=BUCKET, Key="staged/a")["Metadata"] == {"commit": "7"}
    assert content(client, "staged/a") == b"rows"


@pytest.mark.parametrize("end", ["stop", "crash"])
def test_objects_and_uploads_survive_a_restart_on_the_same_port(server: S3Server, client: S3Client, end: str) -> None:
    key, port = f"kept-{end}", server.port
    client.put_object(Bucket=BUCKET, Key=key, Body=b"before")
    upload = client.create_multipart_upload(Bucket=BUCKET, Key=f"{key}-staged")["UploadId"]
    getattr(server, end)()
    with pytest.raises(BotoCoreError):
        content(client, key)
    server.start()
    assert content(client, key) == b"before"
    found = client.list_multipart_uploads(Bucket=BUCKET, Prefix=f"{key}-staged")["Uploads"]
    assert [upload_found["UploadId"] for upload_found in found] == [upload]
    assert server.port == port


def test_a_frozen_server_is_silent_and_goes_on_when_thawed(server: S3Server, client: S3Client) -> None:
    hasty = server.client(read_timeout=1)
    client.put_object(Bucket=BUCKET, Key="frozen", Body=b"here")
    server.freeze()
    try:
        with pytest.raises(BotoCoreError):
            content(hasty, "frozen")
    finally:
        server.thaw()
        hasty.close()
    assert content(client, "frozen") == b"here"
