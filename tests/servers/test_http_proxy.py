"""Bad days of S3, made on purpose: each fault is what its name says, to the server and to the client."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from botocore.exceptions import BotoCoreError, ClientError

from tests.servers.http_proxy import Fault, HttpProxy
from tests.servers.processes import running
from tests.servers.s3 import S3Server

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

BUCKET = "lake"
LARGE = os.urandom(9_000_000)


@pytest.fixture(scope="module")
def s3() -> Iterator[S3Server]:
    with running(S3Server) as server:
        server.create_bucket(BUCKET)
        yield server


@pytest.fixture
def proxy(s3: S3Server) -> Iterator[HttpProxy]:
    with HttpProxy(s3.port) as started:
        yield started


@pytest.fixture
def client(s3: S3Server, proxy: HttpProxy) -> Iterator[S3Client]:
    client = s3.client(proxy.port)
    yield client
    client.close()


def put(client: S3Client, key: str, body: bytes = b"1") -> None:
    client.put_object(Bucket=BUCKET, Key=key, Body=body)


def stored(s3: S3Server, key: str) -> bytes | None:
    """What the server has, asked without the proxy."""
    client = s3.client()
    try:
        return client.get_object(Bucket=BUCKET, Key=key)["Body"].read()
    except client.exceptions.NoSuchKey:
        return None
    finally:
        client.close()


def test_requests_pass_whole_and_are_counted_once(s3: S3Server, proxy: HttpProxy, client: S3Client) -> None:
    put(client, "large", LARGE)
    put(client, "small")
    assert client.get_object(Bucket=BUCKET, Key="large")["Body"].read() == LARGE
    assert stored(s3, "small") == b"1"
    assert [request.split()[:2] for request in proxy.requests] == [
        ["PUT", "/lake/large"],
        ["PUT", "/lake/small"],
        ["GET", "/lake/large"],
    ]


def test_every_request_takes_the_delay(proxy: HttpProxy, client: S3Client) -> None:
    put(client, "warm")
    proxy.delay = 0.2
    before = time.monotonic()
    for _ in range(3):
        put(client, "slow")
    assert time.monotonic() - before >= 0.6


@pytest.mark.parametrize("body", [b"1", LARGE], ids=["small", "large"])
def test_a_refused_request_is_answered_with_503_and_not_done(
    s3: S3Server, proxy: HttpProxy, client: S3Client, body: bytes
) -> None:
    key = f"refused-{len(body)}"
    proxy.fail(Fault.REFUSED, f"PUT /lake/{key}")
    put(client, "another")
    with pytest.raises(ClientError) as caught:
        put(client, key, body)
    assert caught.value.response["ResponseMetadata"]["HTTPStatusCode"] == 503
    assert caught.value.response["Error"].get("Code") == "SlowDown"
    assert stored(s3, key) is None
    put(client, key, body)
    assert stored(s3, key) == body


@pytest.mark.parametrize(("fault", "done"), [(Fault.DROPPED, None), (Fault.ANSWER_LOST, b"1")])
def test_a_broken_connection_leaves_the_request_done_or_not(
    s3: S3Server, proxy: HttpProxy, client: S3Client, fault: Fault, done: bytes | None
) -> None:
    key = fault.name.lower()
    put(client, "warm")
    proxy.fail(fault, key)
    with pytest.raises(BotoCoreError):
        put(client, key)
    assert stored(s3, key) == done
    assert len(proxy.requests) == 2


def test_a_rule_decides_about_every_request(s3: S3Server) -> None:
    with HttpProxy(s3.port, decide=lambda request: Fault.REFUSED if "DELETE" in request else None) as proxy:
        client = s3.client(proxy.port)
        put(client, "stays")
        for _ in range(2):
            with pytest.raises(ClientError):
                client.delete_object(Bucket=BUCKET, Key="stays")
        client.close()
    assert stored(s3, "stays") == b"1"


def test_a_server_that_is_down_ends_the_connection(s3: S3Server, client: S3Client) -> None:
    s3.stop()
    try:
        with pytest.raises(BotoCoreError):
            put(client, "nowhere")
    finally:
        s3.start()
    put(client, "back")
    assert stored(s3, "back") == b"1"
