"""The S3 bucket when its server does not answer, loses answers, or dies and comes back. Nothing is lost or guessed."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, TypeVar

import pytest

from holdfast.buckets.bucket import Published, StagedFile
from holdfast.buckets.s3 import S3Bucket
from holdfast.errors import Refused, Unavailable
from holdfast.flow.names import staging_folder
from holdfast.s3 import client as s3_client
from holdfast.s3.access import Traits
from holdfast.testing.buckets import KEY, NAME, staged
from holdfast.testing.proxy import TcpProxy
from tests.servers.processes import running
from tests.servers.s3 import S3Server
from tests.servers.s3_roots import BUCKET, PART, S3Root, access

Result = TypeVar("Result")
# What is in the request that makes something final, by way of staging.
PUBLISHING = {"multipart": b"<CompleteMultipartUpload", "copy": b"x-amz-copy-source"}


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    with running(S3Server) as s3:
        s3.create_bucket(BUCKET)
        yield s3
        # It would wait for clients that keep their connections.
        s3.crash()


@pytest.fixture
def root(server: S3Server) -> S3Root:
    return S3Root(server)


@pytest.fixture
def proxy(server: S3Server) -> Iterator[TcpProxy]:
    with TcpProxy(server.port) as line:
        yield line


def repeated(call: Callable[[], Result]) -> Result:
    """What a node does: the same call again until it is answered."""
    give_up_at = time.monotonic() + 60.0
    while True:
        try:
            return call()
        except Unavailable:
            assert time.monotonic() < give_up_at
            time.sleep(0.05)


@pytest.mark.parametrize("delivered", [True, False])
def test_a_create_without_an_answer_is_known_to_be_ours(root: S3Root, proxy: TcpProxy, delivered: bool) -> None:
    bucket = root.bucket(port=proxy.port)
    bucket.read("connected")
    # The body is sent when the server has agreed to the head of the request.
    proxy.cut(b"these bytes", delivered=delivered)
    assert bucket.create("a", b"these bytes")
    assert bucket.read("a") == b"these bytes"
    assert not bucket.create("a", b"these bytes")


def test_a_create_without_an_answer_that_somebody_else_has_won_is_known_to_be_lost(
    root: S3Root, proxy: TcpProxy
) -> None:
    root.bucket().create("a", b"these bytes")
    bucket = root.bucket(port=proxy.port)
    bucket.read("connected")
    proxy.cut(b"these bytes")
    assert not bucket.create("a", b"these bytes")


@pytest.mark.parametrize("delivered", [True, False])
@pytest.mark.parametrize("staging", ["multipart", "copy"])
def test_publishing_without_an_answer_is_resolved_by_looking(
    root: S3Root, proxy: TcpProxy, staging: Any, delivered: bool
) -> None:
    bucket = root.bucket(staging, proxy.port)
    file = staged(bucket, b"some bytes")
    proxy.cut(PUBLISHING[staging], delivered=delivered)
    assert bucket.publish([file]) == [Published.DONE]
    assert bucket.read(KEY) == b"some bytes"


def test_a_part_whose_line_breaks_is_sent_again(root: S3Root, proxy: TcpProxy) -> None:
    bucket = root.bucket("multipart", proxy.port)
    bucket.probe()
    proxy.cut(b"partNumber=2", delivered=False)
    data = bytes(range(256)) * (2 * PART // 256 + 1)
    assert bucket.publish([staged(bucket, data)]) == [Published.DONE]
    assert bucket.read(KEY) == data


@pytest.mark.parametrize("withheld", [1 << 16, 10])
def test_a_read_that_breaks_off_is_not_half_an_object(root: S3Root, proxy: TcpProxy, withheld: int) -> None:
    bucket = root.bucket(port=proxy.port)
    bucket.create("a", b"x" * 1000)
    proxy.cut(b"GET ", withheld=withheld)
    assert bucket.read("a") == b"x" * 1000


def every_call(bucket: S3Bucket, file: StagedFile) -> list[Callable[[], Any]]:
    return [
        bucket.probe,
        lambda: bucket.create("b", b""),
        lambda: bucket.read("a"),
        lambda: list(bucket.keys("")),
        lambda: staged(bucket, b"y", batch="b2"),
        lambda: bucket.has_staged([file]),
        lambda: bucket.publish([file]),
        lambda: bucket.discard([file.handle]),
        lambda: list(bucket.staged_under(staging_folder(NAME))),
    ]


def test_a_server_that_is_away_is_unavailable_and_then_works_again(
    root: S3Root, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(s3_client, "_FIRST_PAUSE", 0.001)
    bucket = root.bucket("multipart")
    file = staged(bucket, b"some bytes")
    root.server.crash()
    try:
        for call in every_call(bucket, file):
            with pytest.raises(Unavailable, match=str(root.server.port)):
                call()
    finally:
        root.server.start()
    assert bucket.has_staged([file]) == [True]
    assert bucket.publish([file]) == [Published.DONE]
    assert bucket.read(KEY) == b"some bytes"


def test_a_server_that_hangs_is_not_waited_for_for_ever(
    root: S3Root, proxy: TcpProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(s3_client, "CONNECT_TIMEOUT", 0.5)
    file = staged(root.bucket("multipart"), b"some bytes")
    bucket = root.bucket(port=proxy.port)
    bucket._access = replace(bucket._access, patience=0.5)
    bucket._traits = Traits("multipart", conditional_complete=True, conditional_copy=False)
    root.server.freeze()
    try:
        with pytest.raises(Unavailable, match="timeout"):
            bucket.publish([file])
        with pytest.raises(Unavailable, match="timeout"):
            bucket.create("a", b"mine")
    finally:
        root.server.thaw()
    assert repeated(partial(bucket.publish, [file])) == [Published.DONE]
    # The create may have been applied when the server woke up; then it is there, whole.
    bucket.create("a", b"mine")
    assert bucket.read("a") == b"mine"


def test_a_server_that_is_killed_in_the_middle_loses_nothing(root: S3Root) -> None:
    """Staging goes on in tasks, publishing on nodes, while the server dies and comes back twice."""
    total, workers = 48, 4
    first_done = threading.Barrier(workers + 1, timeout=60)

    def work(worker: int) -> None:
        bucket = root.bucket("multipart")
        for number in range(worker, total, workers):
            data = number.to_bytes(2, "big") * (PART // 2 + number)
            file = repeated(partial(staged, bucket, data, key=f"a/{number}", batch=f"b{number}"))
            assert repeated(partial(bucket.publish, [file])) == [Published.DONE]
            if number == worker:
                first_done.wait()

    with ThreadPoolExecutor(workers) as pool:
        results = [pool.submit(work, worker) for worker in range(workers)]
        first_done.wait()
        for _ in range(2):
            root.server.crash()
            root.server.start()
        for result in results:
            result.result()
    bucket = root.bucket()
    assert sorted(bucket.keys("")) == sorted(f"a/{number}" for number in range(total))
    for number in range(total):
        assert bucket.read(f"a/{number}") == number.to_bytes(2, "big") * (PART // 2 + number)


# --- servers that answer with trouble --------------------------------------------------------------------------------


@pytest.fixture
def grumbler() -> Iterator[Callable[[int, str], int]]:
    """Start a server that answers everything alike; tells its port."""
    servers: list[ThreadingHTTPServer] = []

    def started(status: int, code: str) -> int:
        body = f"<Error><Code>{code}</Code><Message>not now</Message></Error>".encode()

        class Answer(BaseHTTPRequestHandler):
            def handle_one_request(self) -> None:
                self.raw_requestline = self.rfile.readline()
                if not self.raw_requestline or not self.parse_request():
                    self.close_connection = True
                    return
                self.rfile.read(int(self.headers.get("Content-Length", 0)))
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body if self.command != "HEAD" else b"")

            def log_message(self, *_: object) -> None:
                """Nobody wants to know."""

        servers.append(ThreadingHTTPServer(("127.0.0.1", 0), Answer))
        threading.Thread(target=servers[-1].serve_forever, daemon=True).start()
        return int(servers[-1].server_port)

    yield started
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize(
    ("status", "code"),
    [(503, "SlowDown"), (503, "ServiceUnavailable"), (500, "InternalError"), (429, "TooManyRequests")],
)
def test_a_server_that_asks_for_patience_is_unavailable(
    grumbler: Callable[[int, str], int], status: int, code: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(s3_client, "_FIRST_PAUSE", 0.001)
    bucket = S3Bucket(access(grumbler(status, code)))
    with pytest.raises(Unavailable, match=code):
        bucket.probe()
    with pytest.raises(Unavailable, match=code):
        bucket.create("a", b"")
    with pytest.raises(Unavailable, match=code):
        bucket.read("a")


def test_a_permission_that_is_missing_later_is_told_and_waited_for(grumbler: Callable[[int, str], int]) -> None:
    bucket = S3Bucket(access(grumbler(403, "AccessDenied")))
    with pytest.raises(Unavailable, match="AccessDenied"):
        bucket.create("a", b"")
    with pytest.raises(Unavailable, match="403"):
        bucket.has_staged([StagedFile({"place": "_holdfast/staging/a"}, "a", "")])
    with pytest.raises(Refused, match="AccessDenied"):
        bucket.probe()


def test_a_server_that_cannot_even_create_is_refused(grumbler: Callable[[int, str], int]) -> None:
    with pytest.raises(Refused, match="NotImplemented"):
        S3Bucket(access(grumbler(501, "NotImplemented"))).probe()
